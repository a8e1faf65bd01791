"""Results files: one JSON line a cell or a curve, appended whole, read back typed, found again by identity.

A cell is one method under one condition; a curve is one series of a figure. A line that a kill tore off at the end is
never read and is cut before the next append. Knows nothing about how results are made or drawn.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from spot_infer.atomic import full_disk_named, write_file
from spot_infer.errors import SpotError

RESULTS = "results.jsonl"
"""The file's name in the folder of a run."""

CELL_IDENTITY = (
    *("suite", "kind", "task", "target", "drafter", "rule", "method", "budget", "options", "temperature", "top_k"),
    *("top_p", "verifier", "seed", "ignore_stop", "max_new_tokens", "block_length", "mode", "n"),
)
CURVE_IDENTITY = (
    *("suite", "kind", "task", "target", "drafter", "rule", "temperature", "ignore_stop", "series", "x_label"),
    *("y_label", "n"),
)


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PerPrompt(_Line):
    """Figures a prompt, in the task's order; `solved` is None where an answer was not scored."""

    nfe: list[int]
    draft_free_nfe: list[int]
    solved: list[bool | None] = []

    @model_validator(mode="after")
    def _one_a_prompt(self) -> PerPrompt:
        if len(self.nfe) != len(self.draft_free_nfe) or len(self.solved) not in (0, len(self.nfe)):
            raise ValueError("nfe, draft_free_nfe and solved differ in length")
        return self


class Cell(_Line):
    """One method under one condition. None where a mode or a method has no such figure.

    rule: `CommitRule.to_dict()`; method: a name of `methods.METHODS`; options: the drafter's own parameters and, where
    set, floor, pad and boundary; n: prompts. nfe, draft_free_nfe, positions, drafter_calls and states_scored are means
    a prompt; reduction: the sums' ratio; accepted: drafts a drafted round; throughput_ratio: tokens a second over
    draft-free's in the same process; accuracy: a share of the scored prompts; identical: prompts whose output equals
    draft-free's; drafter_s, wall_s: seconds over all prompts; tokens: generated, over all prompts. native: whether the
    drafter was trained on this target. spread: 95% bootstrap intervals over prompts, by field name. measures: further
    named numbers of the suite.
    """

    suite: str
    kind: Literal["cell"] = "cell"
    task: str
    target: str
    drafter: str | None
    rule: dict[str, Any]
    method: str
    budget: int
    options: dict[str, Any]
    temperature: float
    top_k: int
    top_p: float
    verifier: str
    seed: int
    ignore_stop: bool
    max_new_tokens: int
    block_length: int
    mode: Literal["real", "replay"]
    n: int
    nfe: float
    draft_free_nfe: float
    reduction: float
    accepted: float
    throughput_ratio: float | None = None
    accuracy: float | None = None
    accuracy_by_family: dict[str, float] | None = None
    identical: int | None = None
    divergences: list[dict[str, Any]] | None = None
    positions: float | None = None
    drafter_calls: float
    states_scored: float
    drafter_s: float | None = None
    wall_s: float | None = None
    tokens: int | None = None
    distribution_preserving: bool
    reason: str = ""
    native: bool | None = None
    spread: dict[str, tuple[float, float]] = {}
    measures: dict[str, float | None] = {}
    per_prompt: PerPrompt
    provenance: dict[str, Any]

    @property
    def key(self) -> str:
        """Identity of the cell: equal for two rows that answer the same question."""
        return cell_key({name: getattr(self, name) for name in CELL_IDENTITY})


class Curve(_Line):
    """One series of a figure: y over x, both labelled; `series` names it in a legend. n: prompts behind it.

    A y of None is a point without an example.
    """

    suite: str
    kind: Literal["curve"] = "curve"
    task: str
    target: str
    drafter: str | None
    rule: dict[str, Any]
    temperature: float
    ignore_stop: bool
    series: str
    x_label: str
    y_label: str
    x: list[float | str]
    y: list[float | None]
    n: int
    provenance: dict[str, Any]

    @model_validator(mode="after")
    def _a_value_a_point(self) -> Curve:
        if len(self.x) != len(self.y):
            raise ValueError(f"x has {len(self.x)} points and y has {len(self.y)}")
        return self

    @property
    def key(self) -> str:
        """Identity of the curve: equal for two rows that draw the same series."""
        return _digest({name: getattr(self, name) for name in CURVE_IDENTITY})


Row = Cell | Curve
_ROW: TypeAdapter[Row] = TypeAdapter(Annotated[Row, Field(discriminator="kind")])


def cell_key(identity: Mapping[str, Any]) -> str:
    """The `Cell.key` of the cell with these values of `CELL_IDENTITY`, known before it is run."""
    return _digest({name: identity[name] for name in CELL_IDENTITY})


def _digest(identity: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def read_rows(path: Path) -> list[Row]:
    """All whole lines of a results file, in order. Raises SpotError naming the first line that is not a row."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SpotError(
            f"results file {path} can't be read ({error.strerror}); give a file that bench wrote"
        ) from error
    return [_parsed(path, number, line) for number, line in enumerate(data[: _whole(data)].splitlines(), 1)]


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add rows in one write, after cutting a torn last line. Raises SpotError on a full disk, leaving whole lines."""
    text = "".join(row.model_dump_json() + "\n" for row in rows).encode()
    with full_disk_named(path), path.open("a+b") as file:
        file.seek(0)
        end = _whole(file.read())
        file.truncate(end)
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            os.truncate(path, end)
            raise


def drop_rows(path: Path, keys: Collection[str]) -> None:
    """Rewrite the file without the rows of these identities, whole or not at all."""
    kept = [row for row in read_rows(path) if row.key not in keys]
    write_file(path, "".join(row.model_dump_json() + "\n" for row in kept).encode())


def _whole(data: bytes) -> int:
    """Bytes up to the end of the last whole line."""
    return data.rfind(b"\n") + 1


def _parsed(path: Path, number: int, line: bytes) -> Row:
    try:
        return _ROW.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("cell", "curve"))
        raise SpotError(
            f"{path} line {number}{f', key {place}' if place else ''}: {first['msg']}; give a results file that this "
            "version of bench wrote"
        ) from error
