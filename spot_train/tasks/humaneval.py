"""HumanEval: a function's head and docstring, completed as plain text and run against its tests (appendix E)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spot_train.tasks.rows import Source, read_rows
from spot_train.tasks.sandbox import passes
from spot_train.tasks.task import Example, Task, before_stop

SOURCE = Source(
    "openai/openai_humaneval",
    None,
    ("test",),
    {"task_id": str, "prompt": str, "entry_point": str, "test": str},
    "HumanEval rows (task_id, prompt, entry_point, test)",
)
STOP = ("\nclass ", "\ndef ", "\n#", "\n@", "\nif ", "\nprint", "\nassert ", "\n```")
MAX_NEW_TOKENS = 256


def load(path: str | Path | None = None, split: str | None = None) -> Task:
    """The 164 problems in their order, or the rows of a file."""
    examples = [
        Example(row["task_id"], row["prompt"], "humaneval", row, runs_code=True)
        for _, row in read_rows(SOURCE, path, split)
    ]
    return Task("humaneval", examples, STOP, MAX_NEW_TOKENS, score)


def score(row: Mapping[str, Any], text: str, allow_code_execution: bool = False) -> bool:
    """Whether the prompt and its completion, cut where the function ends, pass the row's `check`."""
    program = row["prompt"] + before_stop(text, STOP)
    tests = f"{row['test']}\ncheck({row['entry_point']})\n"
    return passes(program, tests, [row["entry_point"]], allow_code_execution=allow_code_execution)
