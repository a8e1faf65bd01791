"""MBPP: short Python programs from a sentence and three tests, asked 3-shot as plain text (appendix E)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spot_infer.errors import SpotError
from spot_train.tasks.rows import Row, Source, chosen_split, file_rows, hub_rows
from spot_train.tasks.sandbox import passes
from spot_train.tasks.task import Example, Task, before_stop

SPLITS = {"test": (11, 510), "train": (601, 974), "validation": (511, 600), "prompt": (1, 10)}
"""First and last task id of each split; the evaluated one first."""
SOURCE = Source(
    "google-research-datasets/mbpp",
    "full",
    tuple(SPLITS),
    {"task_id": int, "text": str, "code": str, "test_list": list},
    "the full MBPP (task_id, text, code, test_list)",
)
EXEMPLARS = (2, 3, 4)
BEGIN, DONE = "[BEGIN]", "[DONE]"
MAX_NEW_TOKENS = 256

_DEFINED = re.compile(r"^def (\w+)|^class (\w+)|^(\w+) =", re.MULTILINE)


def load(path: str | Path | None = None, split: str | None = None) -> Task:
    """The test split in the order of task ids (11 to 510), or the same ids of a file that holds the whole data set.

    The exemplars are task ids 2, 3 and 4, of the `prompt` split. Raises SpotError where they are missing.
    """
    split = chosen_split(split, SOURCE.splits, "mbpp")
    if path is None:
        rows = hub_rows(SOURCE, split) + ([] if split == "prompt" else hub_rows(SOURCE, "prompt"))
    else:
        rows = file_rows(path, SOURCE.columns, SOURCE.rows)
    first, last = SPLITS[split]
    shots = _shots(rows, str(path or SOURCE.dataset))
    chosen = sorted((row for _, row in rows if first <= row["task_id"] <= last), key=lambda row: row["task_id"])
    if not chosen:
        raise SpotError(f"{path} has no row of MBPP's {split} split (task ids {first} to {last}); give {SOURCE.rows}")
    examples = [
        Example(str(row["task_id"]), f"{shots}{question(row)}{BEGIN}\n", "mbpp", row, runs_code=True) for row in chosen
    ]
    return Task("mbpp", examples, (DONE,), MAX_NEW_TOKENS, score)


def question(row: Mapping[str, Any]) -> str:
    """The task and its tests in the words of the MBPP paper."""
    tests = "\n".join(test.strip() for test in row["test_list"])
    return (
        f"You are an expert Python programmer, and here is your task: {row['text'].strip()} "
        f"Your code should pass these tests:\n\n{tests}\n"
    )


def score(row: Mapping[str, Any], text: str, allow_code_execution: bool = False) -> bool:
    """Whether the program up to [DONE] passes the row's tests, its setup code run before them."""
    program = before_stop(text.removeprefix(BEGIN), (DONE,))
    tests = "\n".join((_unix(row.get("test_setup_code") or ""), *row["test_list"]))
    defined = [name for groups in _DEFINED.findall(_unix(row["code"])) for name in groups if name]
    return passes(program, tests, defined, allow_code_execution=allow_code_execution)


def _shots(rows: Sequence[Row], where: str) -> str:
    by_id = {row["task_id"]: row for _, row in rows}
    if missing := [str(number) for number in EXEMPLARS if number not in by_id]:
        raise SpotError(
            f"{where} has no task_id {', '.join(missing)}, an exemplar of the 3-shot prompt; give {SOURCE.rows}"
        )
    return "".join(
        f"{question(row)}{BEGIN}\n{_unix(row['code']).strip()}\n{DONE}\n\n" for row in map(by_id.__getitem__, EXEMPLARS)
    )


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")
