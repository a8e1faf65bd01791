"""spot_infer: lossless drafted decoding for diffusion language models.

target = load_target("data/tiny-sdar")
drafter = load_drafter("data/tiny-sdar-drafter-one-call")
results = generate(target, ["..."], GenerationConfig(budget=8), drafter)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spot_infer.api import Delta, GenerationConfig, generate, rounds, stream
    from spot_infer.checkpoint import load_drafter
    from spot_infer.errors import SpotError
    from spot_infer.requests import Result, Stats
    from spot_infer.targets import from_model, load_target
    from spot_infer.transition import CommitRule

_HOMES = {
    "CommitRule": "transition",
    "Delta": "api",
    "GenerationConfig": "api",
    "Result": "requests",
    "SpotError": "errors",
    "Stats": "requests",
    "from_model": "targets",
    "generate": "api",
    "load_drafter": "checkpoint",
    "load_target": "targets",
    "rounds": "api",
    "stream": "api",
}
__all__ = [
    "CommitRule",
    "Delta",
    "GenerationConfig",
    "Result",
    "SpotError",
    "Stats",
    "from_model",
    "generate",
    "load_drafter",
    "load_target",
    "rounds",
    "stream",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `spot-infer --help` does not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'spot_infer' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"spot_infer.{_HOMES[name]}"), name)
