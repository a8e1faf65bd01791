"""Targets: load one by path or hub id, or wrap a model that is already loaded."""

from spot_infer.targets.load import from_model, load_target
from spot_infer.targets.protocol import PrefixCache, Target, TargetSpec

__all__ = ["PrefixCache", "Target", "TargetSpec", "from_model", "load_target"]
