"""Examples -> batches of tensors. The order of training data is a pure function of (seed, step), so a resumed run sees
what an uninterrupted one would have seen. Knows nothing about the network or Lightning: loading processes import this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from spot_infer.features import FeatureKind
from spot_infer.transition import CommitRule
from spot_train.fit.examples import Steps, epoch_batches, make_examples, sample_depths, window_order
from spot_train.fit.step_windows import StepWindows
from spot_train.recipe.recipe import FitSection

CHECKED_DEPTHS = (0, 1, 2, 3, 5, 7, 11, 15)
"""Depths measured after every epoch; `evaluate` measures all."""
CHECKED_STATES = 512
"""Held-out states measured after every epoch, spread evenly over all."""


class Batch(NamedTuple):
    """`examples.Examples` as tensors: table, slot, valid, root and rank [S, m, ...], the rest [Q, ...]; of int64 [Q]
    says which of the S tables an example is of; weight float32 [Q]: its share of the step's loss; those of
    all ranks add up to the number of ranks. The first seven are what `OrderModel` takes."""

    table: Tensor
    slot: Tensor
    valid: Tensor
    root: Tensor
    of: Tensor
    taken: Tensor
    depth: Tensor
    rank: Tensor
    label: Tensor
    block: Tensor
    before_stop: Tensor
    weight: Tensor

    @property
    def asked(self) -> tuple[Tensor, ...]:
        """The arguments of `OrderModel.forward`."""
        return self[:7]


def make_batch(
    steps: Steps, states: NDArray[np.int64], depths: NDArray[np.int64], kind: FeatureKind, rule: CommitRule
) -> Batch:
    """The examples (states[i], depths[i, j]) that exist; states [S], depths [S, k]."""
    examples = make_examples(steps, states, depths, kind, rule)
    return Batch(
        table=torch.from_numpy(examples.features),
        slot=torch.from_numpy(examples.slot),
        valid=torch.from_numpy(examples.valid),
        root=torch.from_numpy(examples.root),
        of=torch.from_numpy(examples.table),
        taken=torch.from_numpy(examples.taken),
        depth=torch.from_numpy(examples.depth),
        rank=torch.from_numpy(examples.rank),
        label=torch.from_numpy(examples.label),
        block=torch.from_numpy(examples.block),
        before_stop=torch.from_numpy(examples.before_stop),
        weight=torch.full((len(examples.label),), 1 / max(len(examples.label), 1)),
    )


class TrainBatches(Dataset[Batch]):
    """Batch number `step` of the whole training run, for any step. An epoch goes through the windows one by one, in an
    order of its own; states mix inside a window."""

    def __init__(
        self, windows: StepWindows, section: FitSection, rule: CommitRule, rank: int = 0, ranks: int = 1
    ) -> None:
        self.windows, self.section, self.rule = windows, section, rule
        self.rank, self.ranks = rank, ranks
        self.sizes = np.array([-(-usable // section.batch_size) for usable in windows.facts.usable], dtype=np.int64)
        self.per_epoch = int(self.sizes.sum())
        self._planned = (-1, -1)
        self._batches: list[NDArray[np.int64]] = []
        self._depths: NDArray[np.int64] = np.empty((0, 0), dtype=np.int64)

    def __len__(self) -> int:
        """Steps an epoch."""
        return self.per_epoch

    def __getitem__(self, step: int) -> Batch:
        epoch, window, place = self._place(step)
        section = self.section
        steps = self.windows.steps(window)
        if (epoch, window) != self._planned:
            draw = epoch + (window << 34)
            self._batches = epoch_batches(steps, section.batch_size, section.seed, draw)
            self._depths = self._depths_of(steps, draw)
            self._planned = (epoch, window)
        batch = self._batches[place]
        split = len(batch) >= self.ranks
        states = batch[self.rank :: self.ranks] if split else batch
        made = make_batch(steps, states, self._depths[states], section.features, self.rule)
        depths = self._depths[batch]
        examples = (depths >= 0) & (depths <= steps.deepest[batch][:, None])
        whole = float(self._weights(torch.from_numpy(depths[examples])).sum())
        return made._replace(weight=self._weights(made.depth) * (self.ranks if split else 1) / whole)

    def _weights(self, depth: Tensor) -> Tensor:
        """What examples [Q] weigh beside one another: where every depth is one, 1 / (depth + 1), as often as depths are
        drawn otherwise."""
        return 1 / (depth + 1) if self.section.depths_per_state == "all" else torch.ones(depth.shape)

    def _depths_of(self, steps: Steps, draw: int) -> NDArray[np.int64]:
        """Depths [N, k] of all states' examples in one pass."""
        section = self.section
        if section.depths_per_state == "all":
            return np.broadcast_to(np.arange(section.d_max + 1), (len(steps), section.d_max + 1))
        return sample_depths(steps.deepest, section.d_max, section.depths_per_state, section.seed, draw)

    def window(self, step: int) -> int:
        """The window that batch `step` is taken from."""
        return self._place(step)[1]

    def _place(self, step: int) -> tuple[int, int, int]:
        """Epoch, window, and which of the window's batches."""
        epoch, place = divmod(step, self.per_epoch)
        order = window_order(len(self.sizes), self.section.seed, epoch)
        ends = np.cumsum(self.sizes[order])
        turn = int(np.searchsorted(ends, place, side="right"))
        window = int(order[turn])
        return epoch, window, place - int(ends[turn] - self.sizes[window])


class CheckBatches(Dataset[Batch]):
    """Held-out examples at given depths, always the same; at most `limit` states, spread evenly over all."""

    def __init__(
        self,
        steps: Steps,
        kind: FeatureKind,
        rule: CommitRule,
        depths: Iterable[int],
        limit: int | None = None,
        examples_a_batch: int = 1024,
    ) -> None:
        self.steps, self.kind, self.rule = steps, kind, rule
        self.depths = np.array(sorted(depths), dtype=np.int64)
        usable = steps.usable
        if limit is not None and len(usable) > limit:
            usable = usable[np.linspace(0, len(usable) - 1, limit).astype(np.int64)]
        usable = usable[np.argsort(np.diff(steps.start)[usable], kind="stable")]
        width = max(examples_a_batch // len(self.depths), 1)
        self.batches = [usable[first : first + width] for first in range(0, len(usable), width)]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        states = self.batches[index]
        depths = np.broadcast_to(self.depths, (len(states), len(self.depths)))
        return make_batch(self.steps, states, depths, self.kind, self.rule)


def loader(batches: Dataset[Batch], sampler: Sampler[int], num_workers: int) -> DataLoader[Batch]:
    """Batches in the sampler's order, made by `num_workers` processes that live as long as the loader.

    They are spawned, not forked: a fork inherits the locks, but not the threads, of the stores that were opened before
    it, and may wait for ever.
    """
    spawned: dict[str, Any] = {"multiprocessing_context": "spawn", "persistent_workers": True} if num_workers else {}
    return DataLoader(batches, batch_size=None, sampler=sampler, num_workers=num_workers, **spawned)


class EpochSteps(Sampler[int]):
    """Step numbers from where training stands to the end of its epoch; `current` names the step training stands at."""

    def __init__(self, per_epoch: int, current: Callable[[], int]) -> None:
        self.per_epoch = per_epoch
        self.current = current

    def __len__(self) -> int:
        return self.per_epoch

    def __iter__(self) -> Iterator[int]:
        step = self.current()
        return iter(range(step, (step // self.per_epoch + 1) * self.per_epoch))
