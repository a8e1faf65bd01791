"""A target's files: where its folder is, what its JSON says, its tokenizer. Knows nothing about models."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging as hf_logging

from spot_infer.errors import SpotError
from spot_infer.packaged import local_path

_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


def find_folder(path_or_id: str | Path, revision: str | None) -> Path:
    """The local folder, or the hub snapshot, that `path_or_id` names. Raises SpotError where there is none."""
    path = local_path(path_or_id)
    if path.is_dir():
        if revision is not None:
            raise SpotError(f"revision is {revision!r}, but {path_or_id} is a folder, which has none; leave it out")
        return path
    if path.is_absolute() or str(path_or_id).startswith((".", "~")) or str(path_or_id).count("/") != 1:
        raise SpotError(f"{path_or_id} is neither a folder nor a hub id of the form owner/name")
    try:
        return Path(snapshot_download(str(path_or_id), revision=revision, allow_patterns=_FILES))
    except (RepositoryNotFoundError, HFValidationError, LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        if constants.HF_HUB_OFFLINE:
            raise SpotError(
                f"{path_or_id} is neither a local folder nor in the hub's cache{_at(revision)}, and HF_HUB_OFFLINE is "
                "set; pass a folder, or unset it once to download"
            ) from None
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SpotError(
            f"{path_or_id} is not a local folder and could not be fetched from the hub{_at(revision)} ({reason}); "
            "check the name, or download it first and pass the folder"
        ) from error


def commit_of(folder: Path) -> str | None:
    """The commit whose snapshot `folder` is in the hub's cache; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" else None


def _at(revision: str | None) -> str:
    return f" at revision {revision}" if revision else ""


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`, None where there is no such file. Raises SpotError where it is not one."""
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SpotError(f"{path} is not valid JSON ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise SpotError(f"{path} holds a {type(content).__name__}, not an object; fetch it again")
    return content


def json_digest(content: Any) -> str:
    """sha256 of a value as sorted JSON: how configs, vocabularies and templates are told apart."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def named_stop_ids(folder: Path, config: Mapping[str, Any]) -> set[int]:
    """The end tokens that generation_config.json and config.json name."""
    generation = read_json(folder / "generation_config.json") or {}
    found: set[int] = set()
    for value in (generation.get("eos_token_id"), config.get("eos_token_id")):
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return found


def load_tokenizer(folder: Path, chat_template: str | None, native: Any = None) -> Any:
    """The folder's tokenizer, None where it has none; `chat_template` (a file or the template) replaces its own.

    tokenizer.json is read as it is; where there is none, `native` is the family's class of transformers. Code that the
    folder names as its tokenizer never runs.
    """
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        if chat_template is not None:
            raise SpotError(f"chat_template is given, but {folder} has no tokenizer to use it with; leave it out")
        return None
    whole = (folder / "tokenizer.json").exists()
    chosen: Any = PreTrainedTokenizerFast if whole else native or AutoTokenizer
    try:
        with quiet():
            tokenizer = chosen.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpotError(
            f"{folder}: the tokenizer could not be loaded without the checkpoint's own code "
            f"({str(error).strip().splitlines()[0]}); put its tokenizer.json there, or fetch the folder again"
        ) from error
    if chat_template is not None:
        tokenizer.chat_template = _template(chat_template)
        try:
            tokenizer.apply_chat_template(
                [{"role": "user", "content": "a"}], tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # whatever a template raises is about the template
            raise SpotError(f"chat_template does not render a user message ({error}); correct it") from error
    return tokenizer


def _template(text_or_file: str) -> str:
    """A template holds braces, a path does not."""
    if "{" in text_or_file:
        return text_or_file
    path = local_path(text_or_file)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpotError(
            f"chat_template is {text_or_file!r}, neither a Jinja template nor a readable file ({error}); correct it"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the per-tensor progress bar and notices that the model_type is not the native one: keys and shapes are."""
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
