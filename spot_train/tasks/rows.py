"""Rows of a task: a JSONL file, plain or gzipped, or a data set of the hub. Knows nothing about what rows mean."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spot_infer.errors import SpotError

Row = tuple[int, dict[str, Any]]
"""(number from 1, fields)."""


@dataclass(frozen=True)
class Source:
    """Where a task's rows come from. dataset, name: on the hub, or shipped; splits: the evaluated one first; columns:
    what every row must hold; rows: what they are, for errors."""

    dataset: str
    name: str | None
    splits: tuple[str, ...]
    columns: Mapping[str, type]
    rows: str


def read_rows(source: Source, path: str | Path | None, split: str | None) -> list[Row]:
    """Rows of the file at `path`, or of a split of the hub's data set. Raises SpotError for a split beside a file."""
    if path is None:
        return hub_rows(source, chosen_split(split, source.splits, source.dataset))
    if split is not None:
        raise SpotError(f"split is {split!r} beside a file, which is one split; leave one of them out")
    return file_rows(path, source.columns, source.rows)


def file_rows(path: str | Path, columns: Mapping[str, type], what: str) -> list[Row]:
    """Rows of a JSONL file. Raises SpotError naming the line that is no object or lacks one of `columns`."""
    file = Path(path).expanduser()
    try:
        data = file.read_bytes()
        lines = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8").split("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise SpotError(f"{path} can't be read ({error}); give {what}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise SpotError(f"{path} line {number} is not a JSON object; give {what}")
        rows.append((number, checked(row, columns, f"{path} line {number}", what)))
    if not rows:
        raise SpotError(f"{path} holds no rows; give {what}")
    return rows


def hub_rows(source: Source, split: str) -> list[Row]:
    """Rows of one split of a hub data set, fetched once and then kept by `datasets`."""
    import datasets

    try:
        rows = datasets.load_dataset(source.dataset, source.name, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SpotError(
            f"{source.dataset} could not be fetched from the hub ({reason[:200]}); go online once, or give "
            f"{source.rows} with --path"
        ) from error
    where = f"{source.dataset} {split}"
    return [
        (number, checked(dict(row), source.columns, f"{where} row {number}", source.rows))
        for number, row in enumerate(rows, 1)
    ]


def checked(row: dict[str, Any], columns: Mapping[str, type], where: str, what: str) -> dict[str, Any]:
    """`row`, if it has every column with a value of its type."""
    if missing := [name for name in columns if name not in row]:
        raise SpotError(f"{where} has no {', '.join(missing)}; give {what}")
    for name, kind in columns.items():
        if not isinstance(row[name], kind):
            raise SpotError(f"{where}: {name} is a {type(row[name]).__name__}, not a {kind.__name__}; give {what}")
    return row


def chosen_split(split: str | None, known: Sequence[str], task: str) -> str:
    """`split`, or the first known one. Raises SpotError for one that the task hasn't."""
    if split is not None and split not in known:
        raise SpotError(f"{task} has no split {split!r}; use {', '.join(known)}")
    return split or known[0]
