"""The tiny target's own task: the rows of `data/pools`, answered by numbers, lists, JSON values and Python functions.

`score` is a pure function of the row and the text; code rows run the answer in `sandbox.py`, only where allowed.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spot_infer.errors import SpotError
from spot_infer.packaged import packaged
from spot_train.tasks.rows import Source, chosen_split, file_rows
from spot_train.tasks.sandbox import passes
from spot_train.tasks.task import Example, Task

SOURCE = Source(
    "builtin:data/pools",
    None,
    ("eval", "heldout", "train"),
    {"prompt": str, "family": str, "scorer": dict},
    "a pool: JSONL with prompt, family and scorer",
)
MAX_NEW_TOKENS = 128

_NUMBER = re.compile(r"####\s*(-?\d+(?:\.\d+)?)\s*$")
_LIST = re.compile(r"(\[[^\[\]]*\])\s*$")


def load(path: str | Path | None = None, split: str | None = None) -> Task:
    """The packaged pool of a split, or the pool at `path`; the families in turn, so any first rows are balanced."""
    if path is not None and split is not None:
        raise SpotError(f"split is {split!r} beside a pool file, which is one split; leave one of them out")
    if path is None:
        path = packaged(f"data/pools/{chosen_split(split, SOURCE.splits, 'tiny')}.jsonl")
    by_family: dict[str, list[Example]] = {}
    for number, row in file_rows(path, SOURCE.columns, SOURCE.rows):
        messages = [{"role": "user", "content": row["prompt"]}]
        example = Example(str(number), messages, row["family"], row, row["scorer"].get("type") == "code")
        by_family.setdefault(example.family, []).append(example)
    longest = max(map(len, by_family.values()))
    turns = [examples[turn] for turn in range(longest) for examples in by_family.values() if turn < len(examples)]
    return Task("tiny", turns, (), MAX_NEW_TOKENS, score)


def score(row: Mapping[str, Any], text: str, allow_code_execution: bool = False) -> bool:
    """Whether `text` solves the row of a pool."""
    scorer = row["scorer"]
    kind = scorer["type"]
    if kind == "number":
        return _number_matches(text, scorer["value"])
    if kind == "list":
        match = _LIST.search(text)
        return match is not None and _same(_parse(match.group(1)), scorer["value"])
    if kind == "json":
        lines = text.strip().splitlines()
        return bool(lines) and _same(_parse(lines[-1]), scorer["value"])
    if kind == "code":
        tests = "\n".join(scorer["tests"])
        return passes(text, tests, [scorer["function"]], allow_code_execution=allow_code_execution)
    raise ValueError(f"unknown scorer type {kind!r}: expected number, list, json or code")


def _number_matches(text: str, value: float) -> bool:
    match = _NUMBER.search(text)
    return match is not None and math.isclose(float(match.group(1)), value)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _same(left: Any, right: Any) -> bool:
    """Equality of JSON values in which 1, 1.0 and true are three different things."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return left == right
