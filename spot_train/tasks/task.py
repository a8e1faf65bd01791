"""What a task is: prompts, when an answer stops, and whether it is right. Knows no task, and nothing about decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spot_infer.targets.protocol import Target

Scorer = Callable[[Mapping[str, Any], str, bool], bool]
"""(reference, text, allow_code_execution) -> solved."""


@dataclass(frozen=True)
class Example:
    """One prompt. prompt: text that the target continues, or chat messages for its template; family: what accuracies
    are split by; reference: what its scorer needs; runs_code: whether scoring runs the answer."""

    id: str
    prompt: str | list[dict[str, str]]
    family: str
    reference: Mapping[str, Any] = field(repr=False)
    runs_code: bool = False

    def encode(self, target: Target) -> tuple[int, ...]:
        """Token ids: messages through the target's chat template, text as it stands."""
        from spot_infer.api import encode_prompt

        return encode_prompt(target, self.prompt, raw=isinstance(self.prompt, str))


@dataclass(frozen=True)
class Task:
    """Examples with one stop rule and one scorer. stop: strings that end an answer; the scorer cuts there too, so
    a score does not depend on whether decoding did; max_new_tokens: most tokens generated an answer (appendix E)."""

    name: str
    examples: Sequence[Example]
    stop: tuple[str, ...]
    max_new_tokens: int
    scorer: Scorer = field(repr=False)

    @property
    def runs_code(self) -> bool:
        """Whether any example is scored by running its answer."""
        return any(example.runs_code for example in self.examples)

    def score(self, example: Example, text: str, allow_code_execution: bool = False) -> bool:
        """Whether `text`, generated up to the first stop token, solves `example`.

        Raises CodeExecutionNotAllowed where that would run the answer without permission.
        """
        return self.scorer(example.reference, text, allow_code_execution)


def before_stop(text: str, stop: Sequence[str]) -> str:
    """`text` up to the first stop string, as decoding cuts it."""
    return text[: min((text.index(string) for string in stop if string in text), default=len(text))]
