"""What suites ask for: cells and curves, each under the condition whose draft-free control it is measured against.

Pure values; knows nothing about running them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from spot_infer.requests import Verifier
from spot_infer.transition import CommitRule, Sampling

if TYPE_CHECKING:
    from spot_train.bench.materials import Materials
    from spot_train.results import Curve

Mode = Literal["real", "replay"]
Options = tuple[tuple[str, Any], ...]
DRAFT_FREE = "draft-free"


@dataclass(frozen=True)
class Condition:
    """Everything that one draft-free control is shared under. prompts: of the task, from its first.

    block_length: None is the target's own; tables: keep every step's table in real runs, for `committed_measures`.
    """

    target: str
    rule: CommitRule
    mode: Mode
    prompts: int
    max_new_tokens: int
    ignore_stop: bool = False
    sampling: Sampling = Sampling()
    seed: int = 0
    block_length: int | None = None
    tables: bool = False

    def sentence(self) -> str:
        """The condition in a few words, for progress."""
        stops = "stops ignored" if self.ignore_stop else "stops honoured"
        block = f", L={self.block_length}" if self.block_length else ""
        return (
            f"{self.target}, {self.rule.resolution} rule, T={self.sampling.temperature:g}, seed {self.seed}, {stops}, "
            f"{self.max_new_tokens} tokens{block}, {self.prompts} prompts, {self.mode}"
        )


@dataclass(frozen=True)
class Wanted:
    """One cell a suite asks for. options: the drafter's own, sorted, with `floor`, `pad`, `boundary` and `curve` (a
    name) where they are set."""

    suite: str
    method: str
    budget: int = 0
    options: Options = ()
    verifier: Verifier = "coupled"
    drafter: str | None = None

    @property
    def run(self) -> tuple[str, int, Options, str, str | None]:
        """What has to be run: equal for two suites that ask for the same thing."""
        return self.method, self.budget, self.options, self.verifier, self.drafter


@dataclass(frozen=True)
class CellGroup:
    """Cells that share a condition, and so one control in one process."""

    condition: Condition
    wanted: tuple[Wanted, ...]


@dataclass(frozen=True)
class CurveGroup:
    """Curves that `compute`, a function of its module, reads off the control's recorded trajectories.

    about: what they depend on besides the condition, such as methods and budgets.
    """

    suite: str
    condition: Condition
    compute: Callable[[Materials, Condition], list[Curve]]
    about: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Identity across runs."""
        return hashlib.sha256(
            repr((self.suite, self.condition, self.compute.__name__, self.about)).encode()
        ).hexdigest()


Group = CellGroup | CurveGroup


def options(**chosen: Any) -> Options:
    """The options of a cell; a value of None is left out."""
    return tuple(sorted((name, value) for name, value in chosen.items() if value is not None))


def merged(groups: Iterable[Group]) -> list[Group]:
    """Groups of cells under one condition joined, each cell once; curves follow, in order."""
    cells: dict[Condition, dict[Wanted, None]] = {}
    curves: list[Group] = []
    for group in groups:
        if isinstance(group, CellGroup):
            cells.setdefault(group.condition, {}).update(dict.fromkeys(group.wanted))
        else:
            curves.append(group)
    return [*(CellGroup(condition, tuple(wanted)) for condition, wanted in cells.items()), *curves]


def runs_of(wanted: Sequence[Wanted]) -> list[Wanted]:
    """One request for each distinct run, the control first, whether or not it was asked for."""
    distinct = {one.run: one for one in [Wanted("", DRAFT_FREE), *wanted]}
    return list(distinct.values())
