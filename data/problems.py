"""The shape of one problem and the words that all families share.

A problem is drawn from a seeded `random.Random`. Its `content` names what is asked, without the
wording; the split of a problem is a function of that content alone, so the same question in other
words never appears in two splits. Knows nothing about files or tokenizers.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

NAMES = ["Mia", "Tom", "Ana", "Ben", "Lea", "Max", "Zoe", "Sam"]
OBJECTS = ["apples", "pens", "books", "coins", "cards", "shells", "stamps", "marbles"]
SPLITS = ("train", "heldout", "eval")
_BUCKETS = 16


@dataclass(frozen=True)
class Problem:
    """One prompt with its gold answer and the scorer that judges other answers."""

    family: str
    task: str
    wording: str
    content: str
    prompt: str
    answer: str
    scorer: dict[str, Any]

    def content_hash(self) -> str:
        """Sixteen hex digits that identify the question without its wording."""
        return hashlib.sha256(f"{self.task}|{self.content}".encode()).hexdigest()[:16]

    def split(self) -> str:
        """One sixteenth of all questions is for eval, one for heldout, the rest for train."""
        bucket = int(self.content_hash(), 16) % _BUCKETS
        return {0: "eval", 1: "heldout"}.get(bucket, "train")

    def row(self) -> dict[str, Any]:
        """The JSONL row of this problem."""
        return {
            "prompt": self.prompt,
            "answer": self.answer,
            "family": self.family,
            "task": self.task,
            "wording": self.wording,
            "content": self.content_hash(),
            "scorer": self.scorer,
        }


@dataclass(frozen=True)
class Phrases:
    """Ways to say one thing: those that training sees and those kept for evaluation."""

    seen: Sequence[str]
    unseen: Sequence[str]

    def pick(self, rng: Random, wording: str, **slots: object) -> str:
        """One phrase of the asked wording with its slots filled."""
        return rng.choice(self.seen if wording == "seen" else self.unseen).format(**slots)


def show(values: Sequence[int]) -> str:
    """`[1, 2, 3]`, the one way in which a list is written."""
    return "[" + ", ".join(str(value) for value in values) + "]"
