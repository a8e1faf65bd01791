"""From a checkpoint folder or hub id to a target: read config.json, pick the adapter by `model_type`."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as hf_logging

from spot_infer.errors import SpotError
from spot_infer.packaged import local_path
from spot_infer.targets.protocol import Target, TargetSpec
from spot_infer.targets.qwen3 import BlockCausalTarget

_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NOT_QWEN3 = ("model_type", "architectures", "auto_map", "attn_implementation", "torch_dtype", "transformers_version")
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
) -> Target:
    """Load a target from a local folder, a hub id or a packaged `builtin:data/tiny-sdar`.

    dtype: `auto` is the checkpoint's own on a GPU and float32 on a CPU. block_length, mask_id and stop_ids default to
    what the checkpoint's files say. Raises SpotError naming the file and field that is missing or wrong.
    """
    folder = _folder(path_or_id, revision)
    config = _json(folder / "config.json")
    if config is None:
        raise SpotError(f"{folder / 'config.json'} is missing; a target is a folder with config.json and safetensors")
    family = config.get("model_type")
    if family not in _FAMILIES:
        raise SpotError(
            f"{folder / 'config.json'}: model_type is {family!r}; known families: {', '.join(sorted(_FAMILIES))}"
        )
    place = _device(device)
    model = _FAMILIES[family](folder, config, _dtype(dtype, config, place), device_map)
    if device_map is None:
        model = model.to(place)
    tokenizer = _tokenizer(folder)
    return from_model(
        model,
        tokenizer,
        name=str(path_or_id),
        revision=revision,
        block_length=block_length or config.get("block_size") or config.get("block_length"),
        mask_id=config.get("mask_token_id") if mask_id is None else mask_id,
        stop_ids=_stop_ids(folder, config) if stop_ids is None else stop_ids,
        config=config,
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
) -> Target:
    """Wrap a block-causal transformers model that is already loaded, quantised or adapted.

    It must have been loaded with `attn_implementation="sdpa"`. Raises SpotError where a needed fact is unknown.
    """
    if model.config._attn_implementation != "sdpa":
        raise SpotError(
            f"the model's attention is {model.config._attn_implementation!r}; load it with attn_implementation='sdpa', "
            "which takes the 4D masks that drafting needs"
        )
    if not block_length:
        raise SpotError(f"{name}: config.json has no block_size; pass block_length, such as 32 for an SDAR -b32 model")
    if mask_id is None:
        mask_id = _mask_of(tokenizer, name)
    if stop_ids is None:
        stop_ids = [tokenizer.eos_token_id] if tokenizer is not None and tokenizer.eos_token_id is not None else []
    weight = model.get_input_embeddings().weight
    spec = TargetSpec(
        name=name,
        revision=revision,
        block_length=int(block_length),
        vocab_size=int(model.get_output_embeddings().weight.shape[0]),
        mask_id=int(mask_id),
        stop_ids=tuple(sorted(set(map(int, stop_ids)))),
        forbidden_ids=tuple(sorted({int(mask_id), *map(int, forbidden_ids)})),
        max_positions=int(model.config.max_position_embeddings),
        dtype=str(weight.dtype).removeprefix("torch."),
        config_hash=_digest(config if config is not None else model.config.to_dict()),
        tokenizer_hash=_digest(tokenizer.get_vocab()) if tokenizer is not None else "",
        template_hash=_digest(tokenizer.chat_template) if tokenizer is not None else "",
    )
    return BlockCausalTarget(model, tokenizer, spec)


def _load_sdar(folder: Path, config: dict[str, Any], dtype: torch.dtype, device_map: Any) -> Any:
    fields = {key: value for key, value in config.items() if key not in _NOT_QWEN3}
    try:
        with _quiet():
            return Qwen3ForCausalLM.from_pretrained(
                folder,
                config=Qwen3Config(**fields),
                dtype=dtype,
                attn_implementation="sdpa",
                device_map=device_map,
                use_safetensors=True,
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise SpotError(f"{folder}: the weights could not be loaded ({str(error).splitlines()[0]})") from error


def _tokenizer(folder: Path) -> Any:
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    try:
        with _quiet():
            return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise SpotError(f"{folder}: the tokenizer could not be loaded ({str(error).splitlines()[0]})") from error


_FAMILIES: dict[str, Callable[[Path, dict[str, Any], torch.dtype, Any], Any]] = {
    "sdar": _load_sdar,
    "qwen3": _load_sdar,
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the per-tensor progress bar and the notices that model_type is not Qwen3's: the keys and shapes are."""
    level, bar = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        hf_logging.set_verbosity(level)
        if bar:
            hf_logging.enable_progress_bar()


def _folder(path_or_id: str | Path, revision: str | None) -> Path:
    path = local_path(path_or_id)
    if path.is_dir():
        return path
    if path.is_absolute() or str(path_or_id).startswith((".", "~")) or str(path_or_id).count("/") != 1:
        raise SpotError(f"{path_or_id} is neither a folder nor a hub id of the form owner/name")
    try:
        return Path(snapshot_download(str(path_or_id), revision=revision, allow_patterns=_FILES))
    except (RepositoryNotFoundError, HFValidationError, LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SpotError(
            f"{path_or_id} is not a local folder and could not be fetched from the hub ({reason}); check the name, or "
            "download it first and pass the folder"
        ) from error


def _json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SpotError(f"{path} is not valid JSON ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise SpotError(f"{path} holds a {type(content).__name__}, not an object; fetch it again")
    return content


def _device(device: str | torch.device | None) -> torch.device:
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=place).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SpotError(
            f"device is {str(device)!r}, which this machine or build of torch can't use; use cpu"
        ) from error
    return place


def _dtype(name: str, config: dict[str, Any], device: torch.device) -> torch.dtype:
    if name == "auto":
        name = (
            "float32" if device.type == "cpu" else str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
        )
    if name not in _DTYPES:
        raise SpotError(f"dtype is {name!r}; use auto or one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _stop_ids(folder: Path, config: dict[str, Any]) -> list[int]:
    generation = _json(folder / "generation_config.json") or {}
    found: set[int] = set()
    for value in (generation.get("eos_token_id"), config.get("eos_token_id")):
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return sorted(found)


def _mask_of(tokenizer: Any, name: str) -> int:
    if tokenizer is not None:
        vocabulary = tokenizer.get_vocab()
        for string in _MASK_STRINGS:
            if string in vocabulary:
                return int(vocabulary[string])
    raise SpotError(f"{name}: config.json has no mask_token_id and the tokenizer no known mask token; pass mask_id")


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
