"""Generated ids -> solved or not, as a task's scorer sees them: up to the first stop token, whatever was decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spot_infer.targets.protocol import Target
from spot_train.tasks import CodeExecutionNotAllowed, Task


@dataclass(frozen=True)
class Scores:
    """One entry a prompt; None where it was not scored, which needs code execution that was not allowed."""

    solved: Sequence[bool | None]
    families: Sequence[str]

    @property
    def unscored(self) -> int:
        """Prompts that were not scored."""
        return sum(one is None for one in self.solved)

    @property
    def accuracy(self) -> float | None:
        """Share of the scored prompts that are solved."""
        scored = [one for one in self.solved if one is not None]
        return sum(scored) / len(scored) if scored else None

    @property
    def by_family(self) -> Mapping[str, float]:
        hits: dict[str, list[bool]] = {}
        for family, one in zip(self.families, self.solved, strict=True):
            if one is not None:
                hits.setdefault(family, []).append(one)
        return {family: sum(ones) / len(ones) for family, ones in sorted(hits.items())}


def answer(target: Target, tokens: Sequence[int], stop: Sequence[str]) -> str:
    """The text before the first stop token and before the first stop string."""
    end = next((index for index, token in enumerate(tokens) if token in target.spec.stop_ids), len(tokens))
    text = str(target.tokenizer.decode(tokens[:end], skip_special_tokens=True))
    return text[: min((text.index(one) for one in stop if one in text), default=len(text))]


def score(task: Task, target: Target, outputs: Sequence[Sequence[int]], allow_code_execution: bool) -> Scores:
    """Score the task's first prompts by their generated ids."""
    solved: list[bool | None] = []
    for example, tokens in zip(task.examples, outputs, strict=False):
        try:
            text = answer(target, tokens, task.stop)
            solved.append(task.score(example, text, allow_code_execution))
        except CodeExecutionNotAllowed:
            solved.append(None)
    return Scores(solved, [example.family for example in task.examples[: len(solved)]])
