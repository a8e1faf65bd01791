"""What a family of targets is: how its config.json and weights map onto a native transformers class; and the registry.

A family is one file that defines a `Family`. Those of the package are listed here; any other is a plugin: a package
whose entry point in the group `spot_infer.targets` is named after the `model_type` and points at a `Family`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from spot_infer.errors import SpotError
from spot_infer.targets.protocol import Attention

GROUP = "spot_infer.targets"
Fields = Mapping[str, Any]
_BUILT_IN = {
    "sdar": "spot_infer.targets.sdar:SDAR",
    "qwen3": "spot_infer.targets.sdar:SDAR",
    "sdar_moe": "spot_infer.targets.sdar:SDAR_MOE",
    "qwen3_moe": "spot_infer.targets.sdar:SDAR_MOE",
    "llada2_moe": "spot_infer.targets.llada2:LLADA2",
    "llada": "spot_infer.targets.llada:LLADA",
    "Dream": "spot_infer.targets.dream:DREAM",
}
_REMOTE_ONLY = ("model_type", "architectures", "auto_map", "attn_implementation", "torch_dtype", "transformers_version")


@dataclass(frozen=True)
class Family:
    """How one family of checkpoints loads and decodes.

    native: config.json's fields to the transformers model class and the config it is built with. key_mapping: regular
    expressions from the checkpoint's weight names to the native ones, where they differ. attention: what a position
    sees. logit_shift: 1 where the logits at position i predict token i + 1. block_length: where config.json has none.
    vocab_size: rows of the published embedding; mask_id and stop_ids hold for checkpoints of that vocabulary alone, and
    only where the files name none (stop_ids: beside those they name). tokenizer: transformers' class for checkpoints
    that hold no tokenizer.json. fused: native config to what the checkpoint holds as rows of one weight: a part of its
    name, and in order the native ones in its place with their counts of rows. Loading splits them, except where
    transformers opens the files itself (a device_map, quantised weights).
    """

    native: Callable[[Fields], tuple[Any, Any]]
    key_mapping: Mapping[str, str] | None = None
    attention: Attention = "block-causal"
    logit_shift: int = 0
    block_length: int | None = None
    vocab_size: int | None = None
    mask_id: int | None = None
    stop_ids: tuple[int, ...] = ()
    tokenizer: Any = None
    fused: Callable[[Any], Mapping[str, Mapping[str, int]]] | None = None


def native_fields(config: Fields) -> dict[str, Any]:
    """config.json's fields without those that only its own remote code reads."""
    return {key: value for key, value in config.items() if key not in _REMOTE_ONLY}


def family_of(model_type: Any, where: str) -> Family:
    """The family registered for `model_type`; `where` names the file for the error where there is none."""
    place = _BUILT_IN.get(model_type)
    if place is not None:
        module, name = place.split(":")
        return getattr(import_module(module), name)
    plugins = {entry.name: entry for entry in entry_points(group=GROUP)}
    if model_type not in plugins:
        known = ", ".join(sorted({*_BUILT_IN, *plugins}))
        raise SpotError(
            f"{where}: model_type is {model_type!r}; known families: {known}; a package with an entry point of that "
            f"name in the group {GROUP} adds another"
        )
    entry = plugins[model_type]
    try:
        family = entry.load()
    except (ImportError, AttributeError) as error:
        raise SpotError(
            f"the plugin {entry.value} for model_type {model_type!r} can't be imported ({error})"
        ) from error
    if not isinstance(family, Family):
        raise SpotError(f"the plugin {entry.value} for model_type {model_type!r} is not a spot_infer.targets.Family")
    return family
