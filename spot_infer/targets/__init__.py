"""Targets: load one by path or hub id, or wrap a model that is already loaded."""

from typing import TYPE_CHECKING

from spot_infer.lazy import first_use

if TYPE_CHECKING:
    from spot_infer.targets.family import Family, native_fields
    from spot_infer.targets.load import from_model, load_target
    from spot_infer.targets.native_model import with_float32_head
    from spot_infer.targets.protocol import PrefixCache, Target, TargetSpec

_HOMES = {
    "Family": "family",
    "PrefixCache": "protocol",
    "Target": "protocol",
    "TargetSpec": "protocol",
    "from_model": "load",
    "load_target": "load",
    "native_fields": "family",
    "with_float32_head": "native_model",
}
__all__ = [
    "Family",
    "PrefixCache",
    "Target",
    "TargetSpec",
    "from_model",
    "load_target",
    "native_fields",
    "with_float32_head",
]

__getattr__ = first_use(__name__, _HOMES)  # what reads a protocol does not load transformers
