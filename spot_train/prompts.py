"""Prompt pools -> prompts to decode: read, normalised, encoded, filtered; every skipped row counted by reason.

Reads JSONL and Parquet files and hub data sets, all through `datasets`; local files need no network and leave no cache.
Knows nothing about decoding or shards.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spot_infer.api import encode_prompt
from spot_infer.errors import SpotError
from spot_infer.noise import prompt_hash
from spot_infer.targets.protocol import Target, TargetSpec
from spot_train.recipe.local_files import POOL_FORMATS, pool_file
from spot_train.recipe.recipe import PromptSource, Recipe

REASONS = ("empty", "evaluation", "duplicate", "mask_token", "too_long")
_COLUMNS = ("prompt", "messages")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Prompt:
    """One prompt to decode. content_hash: of what the user said, whatever the template; heldout: by that hash."""

    prompt_ids: tuple[int, ...]
    content_hash: str
    heldout: bool


@dataclass
class PromptReport:
    """Which rows became prompts. rows: read in all; skipped: rows by reason; evaluation_matches: source, row and
    content hash of each row that an evaluation split holds too; sha256: of the prompts in order, with their marks."""

    rows: int = 0
    used: int = 0
    heldout: int = 0
    skipped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    evaluation_matches: list[dict[str, Any]] = field(default_factory=list)
    sha256: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        """The counts in one line."""
        skipped = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in self.skipped.items() if count)
        return f"{self.used} prompts ({self.heldout} held out) from {self.rows} rows; skipped: {skipped or 'none'}"


def load_prompts(recipe: Recipe, target: Target) -> tuple[list[Prompt], PromptReport]:
    """The recipe's prompts in order, and what became of every row.

    Raises SpotError naming the source, and the row, that can't be read, and where no prompt is left.
    """
    section = recipe.prompts
    evaluation = {
        content_hash(prompt) for source in section.evaluation for _, prompt in read_source(source, recipe) if prompt
    }
    prompts: list[Prompt] = []
    report = PromptReport()
    seen: set[str] = set()
    for source in section.sources:
        for row, prompt in read_source(source, recipe):
            if section.limit is not None and len(prompts) >= section.limit:
                break
            report.rows += 1
            content = content_hash(prompt) if prompt else ""
            ids = encode_prompt(target, prompt, section.raw and isinstance(prompt, str)) if prompt else ()
            reason = _reason(ids, content, evaluation, seen, recipe, target.spec)
            if reason is not None:
                report.skipped[reason] += 1
                if reason == "evaluation":
                    report.evaluation_matches.append({"source": source.path_or_id, "row": row, "content_hash": content})
                continue
            seen.add(prompt_hash(ids))
            prompts.append(Prompt(ids, content, is_heldout(content, section.heldout_fraction)))
    if not prompts:
        raise SpotError(f"prompts.sources gave no prompt to decode: {report.sentence()}")
    report.used = len(prompts)
    report.heldout = sum(prompt.heldout for prompt in prompts)
    report.sha256 = lease_hash(prompts)
    return prompts, report


def read_source(source: PromptSource, recipe: Recipe) -> Iterator[tuple[int, Any]]:
    """(row number from 0, prompt) of one pool: text, chat messages or token ids; None or "" where the row is empty."""
    where = source.path_or_id
    for number, row in enumerate(_rows(source, recipe)):
        if source.limit is not None and number >= source.limit:
            return
        if source.template is not None:
            yield number, _fill(source.template, row, f"{where} row {number}")
            continue
        column = source.field or next((name for name in _COLUMNS if row.get(name) is not None), _COLUMNS[0])
        if column not in row:
            raise SpotError(
                f"{where} row {number} has no column {column!r}; set prompts.sources.field to one of {sorted(row)}"
            )
        yield number, _checked(row[column], f"{where} row {number}", column)


def content_hash(prompt: Any) -> str:
    """sha256 of what the user says in a prompt: the text of its user turns, white space collapsed; or its token ids.

    Independent of chat template, tokenizer and system message, so a question is held out, or found in an evaluation
    split, however it is wrapped.
    """
    if not isinstance(prompt, str) and prompt and isinstance(prompt[0], int):
        return prompt_hash([int(token) for token in prompt])
    turns = [prompt] if isinstance(prompt, str) else [turn["content"] for turn in prompt if turn["role"] == "user"]
    normal = [" ".join(unicodedata.normalize("NFKC", turn).split()) for turn in turns]
    return hashlib.sha256(json.dumps(normal, ensure_ascii=False).encode()).hexdigest()


def is_heldout(content: str, fraction: float) -> bool:
    """Whether a content hash falls into the held-out fraction."""
    return int(content[:16], 16) < fraction * 2**64


def lease_hash(prompts: Sequence[Prompt]) -> str:
    """sha256 of an ordered list of prompts with their held-out marks."""
    lines = [f"{prompt_hash(prompt.prompt_ids)} {prompt.content_hash} {prompt.heldout}\n" for prompt in prompts]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _reason(
    ids: Sequence[int], content: str, evaluation: set[str], seen: set[str], recipe: Recipe, spec: TargetSpec
) -> str | None:
    """Why a prompt is skipped; None where it is used."""
    most = recipe.prompts.max_prompt_tokens
    positions = spec.blocks_end(len(ids), recipe.collect.max_new_tokens)
    if not ids:
        return "empty"
    if content in evaluation:
        return "evaluation"
    if prompt_hash(ids) in seen:
        return "duplicate"
    if spec.mask_id in ids:
        return "mask_token"
    if positions > spec.max_positions or (most is not None and len(ids) > most):
        return "too_long"
    return None


def _rows(source: PromptSource, recipe: Recipe) -> Iterator[Mapping[str, Any]]:
    where = source.path_or_id
    path = pool_file(where, recipe)
    try:
        yield from _local_rows(path, source) if path else _hub_rows(source)
    except SpotError:
        raise
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        if path:
            raise SpotError(_local_problem(path, where, error)) from error
        reason = " ".join(str(error).split())[:300]
        raise SpotError(
            f"data set {where} can't be read ({type(error).__name__}: {reason}); check prompts.sources path_or_id, "
            "name, revision and split, and that the hub can be reached or the data set is in its cache"
        ) from error


def _local_rows(path: Path, source: PromptSource) -> Iterator[Mapping[str, Any]]:
    import datasets

    if path.stat().st_size == 0:
        return
    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        rows = datasets.load_dataset(POOL_FORMATS[path.suffix], data_files=str(path), split="train", streaming=True)
        yield from _only_used_columns(rows, source)
    except datasets.exceptions.DatasetsError as error:
        raise ValueError(str(error)) from error
    finally:
        datasets.logging.set_verbosity(level)


def _hub_rows(source: PromptSource) -> Iterator[Mapping[str, Any]]:
    import datasets

    try:
        rows = datasets.load_dataset(
            source.path_or_id,
            source.name,
            split=source.split,
            revision=source.revision,
            streaming=source.limit is not None,
        )
        yield from _only_used_columns(rows, source)
    except datasets.exceptions.DatasetsError as error:
        raise ValueError(str(error)) from error


def _only_used_columns(rows: Any, source: PromptSource) -> Any:
    """Leave out columns that no prompt is read from: decoding them is most of the time."""
    used = _PLACEHOLDER.findall(source.template) if source.template else [source.field] if source.field else _COLUMNS
    known = [name for name in used if name in (rows.features or ())]
    return rows.select_columns(known) if known and set(used) - set(known) <= set(_COLUMNS) else rows


def _local_problem(path: Path, where: str, error: Exception) -> str:
    """Name the line that is not JSON, or repeat the reader's reason."""
    if path.suffix == ".jsonl":
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            try:
                if line.strip() and not isinstance(json.loads(line), dict):
                    return f"prompt file {where} line {number} is not a JSON object; write one object a line"
            except ValueError:
                return f"prompt file {where} line {number} is not valid JSON; write one UTF-8 object a line"
    reason = " ".join(str(error).split())[:200]
    return f"prompt file {where} can't be read as {path.suffix[1:]} ({reason}); rewrite the file"


def _fill(template: str, row: Mapping[str, Any], where: str) -> str:
    unknown = [name for name in _PLACEHOLDER.findall(template) if name not in row]
    if unknown:
        raise SpotError(f"{where} has no column {unknown[0]!r} for prompts.sources.template; it has {sorted(row)}")
    values = {name: "" if row[name] is None else str(row[name]) for name in _PLACEHOLDER.findall(template)}
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template).strip()


def _checked(prompt: Any, where: str, column: str) -> Any:
    """The prompt as text, messages or token ids; None where it is blank."""
    if prompt is None or (isinstance(prompt, str) and not prompt.strip()):
        return None
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        return prompt
    if isinstance(prompt, list) and all(isinstance(turn, dict) for turn in prompt):
        if all(isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str) for turn in prompt):
            spoken = any(turn["content"].strip() for turn in prompt if turn["role"] == "user")
            return prompt if spoken else None
        raise SpotError(f"{where}: a message in {column} lacks a text role or content; write both")
    raise SpotError(
        f"{where}: {column} is a {type(prompt).__name__}; expected a string, a list of messages with role and content, "
        "or a list of token ids"
    )
