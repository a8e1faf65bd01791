"""spot_infer: lossless drafted decoding for diffusion language models.

target = load_target("data/tiny-sdar")
drafter = load_drafter("data/tiny-sdar-drafter-one-call")
results = generate(target, ["..."], GenerationConfig(budget=8), drafter)
"""

from typing import TYPE_CHECKING

from spot_infer.lazy import first_use

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


__getattr__ = first_use(__name__, _HOMES)  # `spot-infer --help` does not load torch
