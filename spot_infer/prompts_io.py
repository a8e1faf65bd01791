"""Prompt files in, result files out: JSON lines, one row a sample, appended whole and resumable.

Knows nothing about targets. A results file records which prompts and settings it belongs to in every row, so that a
changed prompt file or setting is refused instead of mixed in.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from spot_infer.api import Prompt
from spot_infer.errors import SpotError

_KINDS = ("prompt", "messages", "tokens")
Key = tuple[str | int, int]
"""A result row's name: the prompt's id (its `id`, else its line index from 0) and the sample's number."""

_ROW_START = b'{"id": '


@dataclass(frozen=True)
class PromptRow:
    """One line of a prompt file."""

    id: str | int
    prompt: Prompt
    line: int


@dataclass(frozen=True)
class Prompts:
    """Prompts and where they came from. source: what an error puts before a line's number; digest: of the bytes."""

    rows: tuple[PromptRow, ...]
    source: str
    digest: str = ""


def read_prompts(path: Path) -> Prompts:
    """The prompts of a JSONL file. Raises SpotError naming the line that is wrong.

    A line is an object with exactly one of `prompt` (text), `messages` (a list of role and content) and `tokens` (token
    ids), and an optional `id`; other keys are left alone.
    """
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise SpotError(f"{path} can't be read ({error.strerror}); pass a JSONL file of prompts") from error
    except UnicodeDecodeError as error:
        raise SpotError(f"{path} is not UTF-8 text; pass a JSONL file of prompts") from error
    rows = [_row(path, number, text, number - 1) for number, text in enumerate(lines, 1) if text.strip()]
    if not rows:
        raise SpotError(f"{path} holds no prompts; give it one JSON object a line")
    seen: dict[str | int, int] = {}
    for row in rows:
        if row.id in seen:
            raise SpotError(f"{path} lines {seen[row.id]} and {row.line} have the same id {row.id!r}; make ids unique")
        seen[row.id] = row.line
    return Prompts(tuple(rows), f"{path} line", hashlib.sha256(content).hexdigest()[:16])


def _row(path: Path, number: int, text: str, index: int) -> PromptRow:
    where = f"{path} line {number}"
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise SpotError(f'{where} is not JSON ({error}); expected an object such as {{"prompt": "..."}}') from error
    kinds = [kind for kind in _KINDS if isinstance(fields, dict) and kind in fields]
    if len(kinds) != 1:
        raise SpotError(f"{where} has {' and '.join(kinds) or 'no prompt'}; give exactly one of {', '.join(_KINDS)}")
    value = fields[kinds[0]]
    wanted = {"prompt": "a string", "messages": "a list of objects", "tokens": "a list of whole numbers"}[kinds[0]]
    good = {
        "prompt": isinstance(value, str),
        "messages": isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value),
        "tokens": isinstance(value, list) and all(type(item) is int for item in value),
    }[kinds[0]]
    if not good:
        raise SpotError(f"{where}: {kinds[0]} is {value!r}; expected {wanted}")
    name = fields.get("id", index)
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise SpotError(f"{where}: id is {name!r}; use a string or a whole number")
    return PromptRow(name, value, number)


class ResultsFile:
    """Append-only JSONL of results. Opening it drops a half-written last line and reads which samples are done.

    `run` names what the rows belong to (digests of the prompt file and the settings); rows of another run are refused.
    One process at a time: the file is locked while open.
    """

    def __init__(self, path: Path, run: Mapping[str, str]) -> None:
        self.path = path
        self.run = dict(run)
        self.done: set[Key] = set()

    def __enter__(self) -> ResultsFile:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise SpotError(f"{self.path} can't be written ({error.strerror}); pass another --output") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._resume()
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise SpotError(
                f"{self.path} is being written by another process; wait for it or pass another --output"
            ) from error
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def _resume(self) -> None:
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise SpotError(f"{self.path} is not a regular file; pass another --output")
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            self.done.add(self._key(number, line))
        torn = content[whole:]
        if torn and not (torn.startswith(_ROW_START) or _ROW_START.startswith(torn)):
            raise SpotError(
                f"{self.path} ends in a line that is not a result row of this program; pass another --output"
            )
        if torn:
            os.ftruncate(self._descriptor, whole)

    def _key(self, number: int, line: bytes) -> Key:
        try:
            fields = json.loads(line)
            key, run = (fields["id"], fields["sample"]), fields["run"]
        except (ValueError, KeyError, TypeError) as error:
            raise SpotError(
                f"{self.path} line {number} is not a result row of this program; pass another --output"
            ) from error
        if not isinstance(run, dict):
            run = {}
        changed = [name for name, digest in self.run.items() if run.get(name) != digest]
        if changed:
            raise SpotError(
                f"{self.path} line {number} was made with other {' and '.join(changed)}; pass another --output, remove "
                "the file, or go back to what it was made with"
            )
        return key

    def append(self, id_: str | int, sample: int, fields: Mapping[str, Any]) -> None:
        """Write one row in one call. Raises SpotError where the disk is full; the file then has no partial row."""
        line = json.dumps({"id": id_, "sample": sample, **fields, "run": self.run}, ensure_ascii=False) + "\n"
        data = line.encode("utf-8")
        before = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, data)
            if written < len(data):
                raise OSError(28, "No space left on device")
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, before)
            raise SpotError(
                f"{self.path} can't be written ({error.strerror}); {len(self.done)} samples are kept"
            ) from error
        self.done.add((id_, sample))
