"""From a checkpoint folder or hub id to a target: read config.json, pick the family by `model_type`, load, wrap."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from transformers.distributed import DistributedConfig
from transformers.quantizers import AutoHfQuantizer
from transformers.utils import is_accelerate_available

from spot_infer.errors import SpotError
from spot_infer.targets.block_causal import BlockCausalTarget
from spot_infer.targets.checkpoint_folder import (
    commit_of,
    find_folder,
    json_digest,
    load_tokenizer,
    named_stop_ids,
    quiet,
    read_json,
)
from spot_infer.targets.family import Family, family_of
from spot_infer.targets.full_attention import FullAttentionTarget
from spot_infer.targets.protocol import Attention, CacheKind, Target, TargetSpec
from spot_infer.targets.stored_weights import stored_weights

_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MOST_SLOTS = 256
_MASK_STRINGS = ("<|MASK|>", "<|mask|>", "<MASK>", "<|mdm_mask|>")


def load_target(
    path_or_id: str | Path,
    *,
    dtype: str = "auto",
    device: str | torch.device | None = None,
    revision: str | None = None,
    block_length: int | None = None,
    mask_id: int | None = None,
    stop_ids: Iterable[int] | None = None,
    device_map: str | dict[str, Any] | None = None,
    tp_plan: str | dict[str, str] | None = None,
    chat_template: str | None = None,
    cache: CacheKind | None = None,
) -> Target:
    """Load a target from a local folder, a hub id or a packaged `builtin:data/tiny-sdar`.

    dtype: `auto` is the checkpoint's own on a GPU and float32 on a CPU. block_length, mask_id and stop_ids default to
    what the checkpoint's files, and then its family, say. device_map and tp_plan (`auto` under torchrun) are
    transformers' own and need accelerate; a quantised checkpoint loads as transformers loads it. chat_template: a Jinja
    template or a file of one, in place of the tokenizer's. cache: what a full-attention target keeps while a block
    lasts. `spec.revision` is the hub commit that was loaded. Raises SpotError naming the file and field that is missing
    or wrong.
    """
    folder = find_folder(path_or_id, revision)
    config = read_json(folder / "config.json")
    if config is None:
        raise SpotError(f"{folder / 'config.json'} is missing; a target is a folder with config.json and safetensors")
    family = family_of(config.get("model_type"), str(folder / "config.json"))
    place = usable_device(device)
    distributed = _distributed(tp_plan)
    _check_spread(device_map, tp_plan, family, quantised="quantization_config" in config)
    tokenizer = load_tokenizer(folder, chat_template, family.tokenizer)
    model = _load_model(folder, config, family, _dtype(dtype, config, place), device_map, distributed)
    if device_map is None and tp_plan is None and not getattr(model, "is_quantized", False):
        model = model.to(place)
    published = model.config.vocab_size == family.vocab_size
    named = named_stop_ids(folder, config)
    return from_model(
        model,
        tokenizer,
        name=str(path_or_id),
        revision=commit_of(folder),
        block_length=block_length or config.get("block_size") or config.get("block_length") or family.block_length,
        mask_id=_mask(mask_id, config, tokenizer, family.mask_id if published else None),
        stop_ids=stop_ids if stop_ids is not None else (named | set(family.stop_ids if published else ())) or None,
        config=config,
        attention=family.attention,
        logit_shift=family.logit_shift,
        cache=cache,
    )


def from_model(
    model: Any,
    tokenizer: Any,
    *,
    block_length: int | None,
    mask_id: int | None = None,
    stop_ids: Iterable[int] | None = None,
    forbidden_ids: Iterable[int] = (),
    name: str = "model",
    revision: str | None = None,
    config: dict[str, Any] | None = None,
    attention: Attention = "block-causal",
    logit_shift: int = 0,
    cache: CacheKind | None = None,
) -> Target:
    """Wrap a transformers model that is already loaded, quantised or adapted.

    It must have been loaded with `attn_implementation="sdpa"`. attention: what a position sees; with `full`, blocks are
    counted from the prompt's end and cache is none, prefix (the default) or dual. logit_shift: 1 where the logits at
    position i predict token i + 1. Raises SpotError where a needed fact is unknown or does not fit.
    """
    if model.config._attn_implementation != "sdpa":
        raise SpotError(
            f"the model's attention is {model.config._attn_implementation!r}; load it with attn_implementation='sdpa', "
            "which takes the 4D masks that drafting needs"
        )
    if not block_length:
        raise SpotError(f"{name}: config.json has no block_size; pass block_length, such as 32 for an SDAR -b32 model")
    if block_length > _MOST_SLOTS:
        raise SpotError(
            f"{name}: block_length is {block_length}; slots are stored in a byte: use at most {_MOST_SLOTS}"
        )
    mask_id = _mask(mask_id, {}, tokenizer, None)
    vocab_size = int(model.config.vocab_size)
    cache = cache or ("prefix" if attention == "full" else "exact")
    if cache not in get_args(CacheKind) or (cache == "exact") is (attention == "full"):
        raise SpotError(
            f"cache is {cache!r}, but {name} has {attention} attention; use none, prefix or dual under full attention, "
            "and exact otherwise"
        )
    if logit_shift and attention != "full":
        raise SpotError(f"logit_shift is {logit_shift}, which goes with attention='full' alone")
    if mask_id is None:
        raise SpotError(f"{name}: config.json has no mask_token_id and the tokenizer no known mask token; pass mask_id")
    if not 0 <= mask_id < vocab_size:
        raise SpotError(f"{name}: mask_id is {mask_id}, but the target's ids are 0..{vocab_size - 1}; pass its own")
    if stop_ids is None:
        stop_ids = [tokenizer.eos_token_id] if tokenizer is not None and tokenizer.eos_token_id is not None else []
    weight = model.get_input_embeddings().weight
    spec = TargetSpec(
        name=name,
        revision=revision,
        block_length=int(block_length),
        vocab_size=vocab_size,
        mask_id=mask_id,
        stop_ids=tuple(sorted(set(map(int, stop_ids)))),
        forbidden_ids=tuple(sorted({mask_id, *map(int, forbidden_ids)})),
        max_positions=int(model.config.max_position_embeddings),
        exact_prefix_cache=cache in ("exact", "none"),
        grid_origin="prompt" if attention == "full" else "absolute",
        cache=cache,
        logit_shift=logit_shift,
        dtype=str(weight.dtype).removeprefix("torch."),
        config_hash=json_digest(config if config is not None else model.config.to_dict()),
        tokenizer_hash=json_digest(tokenizer.get_vocab()) if tokenizer is not None else "",
        template_hash=json_digest(tokenizer.chat_template) if tokenizer is not None else "",
    )
    return (
        FullAttentionTarget(model, tokenizer, spec)
        if attention == "full"
        else BlockCausalTarget(model, tokenizer, spec)
    )


def _load_model(
    folder: Path,
    config: Mapping[str, Any],
    family: Family,
    dtype: torch.dtype,
    device_map: str | dict[str, Any] | None,
    distributed: DistributedConfig | None,
) -> Any:
    """The native model with every weight from the checkpoint: transformers fills a missing one with noise.

    transformers reads from `stored_weights`. Under a device_map it opens the files itself, since it may leave weights
    there, and so it does where they are quantised.
    """
    method = config.get("quantization_config")
    if method is not None and not _can_quantise(method):
        raise SpotError(
            f"{folder / 'config.json'}: quantization_config is {method!r}, which this transformers can't load; upgrade "
            "it, or fetch a checkpoint that is not quantised"
        )
    try:
        model_class, native = family.native(config)
        if method is not None:
            native.quantization_config = method
        experts = {"experts_implementation": "eager"} if dtype == torch.float64 else {}  # the default has no float64
        here = method is None and device_map is None
        fused = {} if family.fused is None else family.fused(native)
        with quiet(), stored_weights(folder, fused) if here else nullcontext() as weights:
            model, found = model_class.from_pretrained(
                None if here else folder,
                state_dict=weights,
                config=native,
                dtype=dtype,
                attn_implementation="sdpa",
                device_map=device_map,
                distributed_config=distributed,
                key_mapping=None if family.key_mapping is None else dict(family.key_mapping),
                use_safetensors=True,
                output_loading_info=True,
                **experts,
            )
    except KeyError as error:
        raise SpotError(
            f"{folder / 'config.json'} has no {error}, which its model_type needs; fetch it again"
        ) from error
    except (OSError, ValueError, TypeError, ImportError, RuntimeError, AttributeError, SafetensorError) as error:
        how = "" if method is None else f" as {method.get('quant_method')} quantised"
        raise SpotError(f"{folder}: the weights could not be loaded{how} ({_first_line(error)})") from error
    wrong = sorted([*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])])
    if wrong:
        raise SpotError(
            f"{folder}: {len(wrong)} weights are missing or of another shape than config.json says, {wrong[0]} among "
            "them; fetch the checkpoint again, or correct model_type"
        )
    return model


def _can_quantise(method: dict[str, Any]) -> bool:
    """Whether transformers knows this way of quantising: it would load an unknown one's numbers as weights."""
    try:
        with quiet():
            return bool(AutoHfQuantizer.supports_quant_method(method))
    except (ValueError, AttributeError):
        return False


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _check_spread(device_map: object, tp_plan: object, family: Family, quantised: bool) -> None:
    """Refuse what a model can't be spread with, and what needs a package that is missing."""
    if device_map is not None and tp_plan is not None:
        raise SpotError(f"device_map is {device_map!r} and tp_plan {tp_plan!r}; use one of them")
    if tp_plan is not None and quantised and family.fused is not None:
        raise SpotError(
            f"tp_plan is {tp_plan!r}, but the weights are quantised and some hold the rows of several, which can't be "
            "sharded; use device_map"
        )
    for name, value in (("device_map", device_map), ("tp_plan", tp_plan)):
        if value is not None and not is_accelerate_available():
            raise SpotError(f"{name} is {value!r}, which needs accelerate; pip install accelerate, or leave {name} out")


def _distributed(tp_plan: str | dict[str, str] | None) -> DistributedConfig | None:
    if tp_plan is None:
        return None
    processes = int(os.environ.get("WORLD_SIZE", "0"))
    if processes < 2:
        raise SpotError(
            f"tp_plan is {tp_plan!r}, but this process is alone; start it with torchrun --nproc-per-node N, or leave "
            "tp_plan out"
        )
    return DistributedConfig(tp_plan=tp_plan, tp_size=processes)  # type: ignore[arg-type]


def usable_device(device: str | torch.device | None) -> torch.device:
    """`device`, or the best there is. Raises SpotError for one that can't be used here."""
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=place).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SpotError(
            f"device is {str(device)!r}, which this machine or build of torch can't use; use cpu"
        ) from error
    return place


def _dtype(name: str, config: Mapping[str, Any], device: torch.device) -> torch.dtype:
    if name == "auto":
        name = (
            "float32" if device.type == "cpu" else str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
        )
    if name not in _DTYPES:
        raise SpotError(f"dtype is {name!r}; use auto or one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _mask(given: int | None, config: Mapping[str, Any], tokenizer: Any, published: int | None) -> int | None:
    """The mask token: as given, as config.json says, as the tokenizer spells it, as the family published it."""
    if given is not None:
        return int(given)
    if config.get("mask_token_id") is not None:
        return int(config["mask_token_id"])
    vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
    return next((int(vocabulary[string]) for string in _MASK_STRINGS if string in vocabulary), published)
