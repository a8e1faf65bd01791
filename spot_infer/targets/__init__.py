"""Targets: load one by path or hub id, or wrap a model that is already loaded."""

from spot_infer.targets.family import Family, native_fields
from spot_infer.targets.load import from_model, load_target
from spot_infer.targets.native_model import with_float32_head
from spot_infer.targets.protocol import PrefixCache, Target, TargetSpec

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
