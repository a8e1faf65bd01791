"""Steps to train on, in windows: all at once from memory, or a few shards of a set at a time.

A window of shards is read where it is asked for, so a process that loads data opens its own files. Knows nothing about
batches or the network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spot_infer.errors import SpotError
from spot_train.fit.examples import Steps, lay_out
from spot_train.shards.store import ShardSet, Split
from spot_train.trajectory import Trajectory


@dataclass(frozen=True)
class WindowFacts:
    """Over all windows. usable: states that have an example, a window; digest: sha256 of everything training reads."""

    block_length: int
    trajectories: int
    steps: int
    usable: tuple[int, ...]
    digest: str


class StepWindows(Protocol):
    """Steps in windows, each laid out end to end when it is asked for."""

    @property
    def facts(self) -> WindowFacts: ...

    def steps(self, window: int) -> Steps:
        """The steps of one window; the same at every call."""

    def first(self, count: int) -> list[Trajectory]:
        """The first `count` trajectories that have a step."""


@dataclass(frozen=True)
class InMemory:
    """One window of trajectories that are in memory anyway; `kept`: the first of them, as many as may be asked for."""

    all_steps: Steps
    kept: Sequence[Trajectory] = ()

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory], keep: int = 0) -> InMemory:
        """Lay out `trajectories` and keep the first `keep` of them. Raises SpotError as `lay_out` does."""
        kept: list[Trajectory] = []

        def keeping() -> Iterable[Trajectory]:
            for one in trajectories:
                if len(one) and len(kept) < keep:
                    kept.append(one)
                yield one

        return cls(lay_out(keeping()), kept)

    @cached_property
    def facts(self) -> WindowFacts:
        return _facts([self.all_steps])

    def steps(self, window: int) -> Steps:
        return self.all_steps

    def first(self, count: int) -> list[Trajectory]:
        return list(self.kept[:count])


@dataclass
class ShardWindows:
    """One split of a set of shards, at most `resident` of its shards in memory in each process that reads it; `limit`:
    most trajectories, from the set's first.

    Window i of n holds shards i, i + n, i + 2n, ..., so that each spans the whole pool of prompts. Making one reads
    every shard once. Raises SpotError where the split has no step.
    """

    shards: ShardSet
    split: Split
    resident: int
    limit: int | None = None
    taken: dict[str, int] = field(init=False)
    names: tuple[tuple[str, ...], ...] = field(init=False)
    facts: WindowFacts = field(init=False)
    _held: tuple[int, Steps] | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        self.taken = self._taken()
        held = tuple(self.taken)
        windows = -(-len(held) // self.resident)
        self.names = tuple(held[index::windows] for index in range(windows))
        if not self.names:
            raise SpotError(f"{self.shards.path} has no {self.split} trajectory; collect more prompts")
        self.facts = _facts(self.steps(window) for window in range(len(self.names)))

    def _taken(self) -> dict[str, int]:
        """How many trajectories are taken of each shard, where that is any."""
        left, taken = self.limit, {}
        for name in self.shards.names:
            counts = self.shards.manifest["shards"][name]["counts"]
            count = counts["heldout"] if self.split == "heldout" else counts["trajectories"] - counts["heldout"]
            if left is not None:
                count = min(count, left)
                left -= count
            if count:
                taken[name] = count
        return taken

    def _trajectories(self, names: Sequence[str]) -> Iterator[Trajectory]:
        for name in names:
            yield from islice(self.shards.trajectories(self.split, (name,)), self.taken[name])

    def steps(self, window: int) -> Steps:
        if self._held is None or self._held[0] != window:
            self._held = None
            self._held = window, lay_out(self._trajectories(self.names[window]))
        return self._held[1]

    def first(self, count: int) -> list[Trajectory]:
        return list(islice((one for one in self._trajectories(tuple(self.taken)) if len(one)), count))

    def __getstate__(self) -> dict[str, object]:
        """Without the window in memory: another process reads its own."""
        return {**self.__dict__, "_held": None}


def spread_states(windows: StepWindows, count: int) -> Steps:
    """All steps end to end, with tables for at most `count` usable states, spread evenly over all: the states that
    `CheckBatches` measures. Memory: one window, `count` tables, those before them, and 34 bytes a
    step."""
    usable = windows.facts.usable
    total = sum(usable)
    wanted = np.linspace(0, total - 1, count).astype(np.int64) if total > count else np.arange(total)
    parts, first = [], 0
    for window, size in enumerate(usable):
        steps = windows.steps(window)
        inside = wanted[(wanted >= first) & (wanted < first + size)] - first
        parts.append(_with_tables_of(steps, steps.usable[inside]))
        first += size
    return _joined(parts)


def _with_tables_of(steps: Steps, states: NDArray[np.int64]) -> Steps:
    """The same steps, those outside `states` with an empty table."""
    lengths = np.diff(steps.start)
    kept = np.zeros(len(steps), dtype=bool)
    kept[states] = True
    kept[states[steps.follows[states]] - 1] = True
    rows = np.repeat(kept, lengths)
    return Steps(
        block_length=steps.block_length,
        trajectories=steps.trajectories,
        start=np.concatenate([[0], np.cumsum(lengths * kept)]).astype(np.int64),
        top_logprob=steps.top_logprob[rows],
        log_odds=steps.log_odds[rows],
        slot=steps.slot[rows],
        best=steps.best[rows],
        follows=steps.follows,
        committed=steps.committed,
        deepest=steps.deepest,
        block=steps.block,
        before_stop=steps.before_stop,
    )


def _joined(parts: Sequence[Steps]) -> Steps:
    lengths = np.concatenate([np.diff(part.start) for part in parts])
    names = ("top_logprob", "log_odds", "slot", "best", "follows", "committed", "deepest", "block", "before_stop")
    return Steps(
        block_length=parts[0].block_length,
        trajectories=sum(part.trajectories for part in parts),
        start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names},
    )


def _facts(windows: Iterable[Steps]) -> WindowFacts:
    digest = hashlib.sha256()
    block_length, trajectories, steps = 0, 0, 0
    usable = []
    for one in windows:
        block_length = one.block_length
        trajectories += one.trajectories
        steps += len(one)
        usable.append(len(one.usable))
        for array in (one.start, one.top_logprob, one.log_odds, one.slot, one.best, one.committed, one.deepest):
            digest.update(array.tobytes())
    return WindowFacts(block_length, trajectories, steps, tuple(usable), digest.hexdigest())
