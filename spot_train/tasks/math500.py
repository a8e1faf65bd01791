"""MATH500: competition problems, asked zero-shot in chat, answered in a box (appendix E)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spot_train.tasks.latex import last_boxed, normal_form
from spot_train.tasks.rows import Source, read_rows
from spot_train.tasks.task import Example, Task

SOURCE = Source(
    "HuggingFaceH4/MATH-500", None, ("test",), {"problem": str, "answer": str}, "MATH500 rows (problem, answer)"
)
INSTRUCTION = "Think step by step. Put the final answer in \\boxed{}."
MAX_NEW_TOKENS = 256


def load(path: str | Path | None = None, split: str | None = None) -> Task:
    """The 500 problems in their order, or the rows of a file."""
    examples = [
        Example(str(number), [{"role": "user", "content": f"{row['problem']}\n\n{INSTRUCTION}"}], "math500", row)
        for number, row in read_rows(SOURCE, path, split)
    ]
    return Task("math500", examples, (), MAX_NEW_TOKENS, score)


def score(row: Mapping[str, Any], text: str, allow_code_execution: bool = False) -> bool:
    """Whether the last boxed answer of `text` is the row's, both in normal form."""
    boxed = last_boxed(text)
    return boxed is not None and normal_form(boxed) == normal_form(row["answer"])
