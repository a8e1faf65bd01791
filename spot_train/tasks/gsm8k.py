"""GSM8K: grade-school word problems, asked zero-shot in chat, answered by a number (appendix E)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from spot_train.tasks.rows import Source, read_rows
from spot_train.tasks.task import Example, Task

SOURCE = Source(
    "openai/gsm8k", "main", ("test", "train"), {"question": str, "answer": str}, "GSM8K rows (question, answer)"
)
INSTRUCTION = "Think step by step. Then write the final answer on a line of its own: #### and the number."
MAX_NEW_TOKENS = 256

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!,?\d)|\d+)"
_NUMBER = rf"(?>[$€£]?[-+−]?[$€£]?(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d\d?)?(?:/{_DIGITS})?)"
_ALONE = r"(?![ \t]*[-–:*×x+=/,^]?[ \t]*\d|\.\d)"
_MARKED = re.compile(rf"####[ \t]*(?:\*\*)?\\?({_NUMBER}){_ALONE}")
_ANY = re.compile(rf"(?<![\w.])({_NUMBER})")


def load(path: str | Path | None = None, split: str | None = None) -> Task:
    """The test split in its order, or the rows of a file."""
    examples = [
        Example(str(number), [{"role": "user", "content": f"{row['question']}\n\n{INSTRUCTION}"}], "gsm8k", row)
        for number, row in read_rows(SOURCE, path, split)
    ]
    return Task("gsm8k", examples, (), MAX_NEW_TOKENS, score)


def score(row: Mapping[str, Any], text: str, allow_code_execution: bool = False) -> bool:
    """Whether the answer of `text` is the number of the row's solution, exactly."""
    answer = extract(text)
    return answer is not None and answer == extract(row["answer"])


def extract(text: str) -> Fraction | None:
    """The number of an answer: the last one that stands right after "####", else the last one of the text.

    Thousands separators, currency signs, exponents and quotients are read; units fall away. After "####" a number that
    is only the start of something (a range, a sum, a clock time) does not count.
    """
    found = _MARKED.findall(text) or _ANY.findall(text)
    if not found:
        return None
    plain = re.sub(r"[,$€£+]", "", found[-1].replace("−", "-"))
    numerator, _, denominator = plain.partition("/")
    try:
        return Fraction(numerator) / Fraction(denominator or "1")
    except (ValueError, ZeroDivisionError):
        return None
