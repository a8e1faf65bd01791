"""Examples -> batches of tensors. The order of training data is a pure function of (seed, step), so a resumed run sees
what an uninterrupted one would have seen. Knows nothing about the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import lightning
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from spot_infer.features import FeatureKind
from spot_infer.transition import CommitRule
from spot_train.examples import Steps, epoch_batches, make_examples, sample_depths
from spot_train.recipe import FitSection

CHECKED_DEPTHS = (0, 1, 2, 3, 5, 7, 11, 15)
"""Depths measured after every epoch; `evaluate` measures all."""
CHECKED_STATES = 512
"""Held-out states measured after every epoch, spread evenly over all."""


class Batch(NamedTuple):
    """`examples.Examples` as tensors, tables spread over their examples: everything is [Q, ...]."""

    table: Tensor
    slot: Tensor
    valid: Tensor
    taken: Tensor
    depth: Tensor
    rank: Tensor
    label: Tensor
    block: Tensor
    before_stop: Tensor


def make_batch(
    steps: Steps, states: NDArray[np.int64], depths: NDArray[np.int64], kind: FeatureKind, rule: CommitRule
) -> Batch:
    """The examples (states[i], depths[i, j]) that exist; states [S], depths [S, k]."""
    examples = make_examples(steps, states, depths, kind, rule)
    of = torch.from_numpy(examples.table)
    return Batch(
        table=torch.from_numpy(examples.features)[of],
        slot=torch.from_numpy(examples.slot)[of],
        valid=torch.from_numpy(examples.valid)[of],
        taken=torch.from_numpy(examples.taken),
        depth=torch.from_numpy(examples.depth),
        rank=torch.from_numpy(examples.rank)[of],
        label=torch.from_numpy(examples.label),
        block=torch.from_numpy(examples.block),
        before_stop=torch.from_numpy(examples.before_stop),
    )


class TrainBatches(Dataset[Batch]):
    """Batch number `step` of the whole training run, for any step."""

    def __init__(self, steps: Steps, section: FitSection, rule: CommitRule, rank: int = 0, ranks: int = 1) -> None:
        self.steps, self.section, self.rule = steps, section, rule
        self.rank, self.ranks = rank, ranks
        self.per_epoch = -(-len(steps.usable) // section.batch_size)
        self._epoch = -1
        self._batches: list[NDArray[np.int64]] = []
        self._depths: NDArray[np.int64] = np.empty((0, 0), dtype=np.int64)

    def __len__(self) -> int:
        """Steps an epoch."""
        return self.per_epoch

    def __getitem__(self, step: int) -> Batch:
        epoch, index = divmod(step, self.per_epoch)
        section = self.section
        if epoch != self._epoch:
            self._batches = epoch_batches(self.steps, section.batch_size, section.seed, epoch)
            self._depths = sample_depths(
                self.steps.deepest, section.d_max, section.depths_per_state, section.seed, epoch
            )
            self._epoch = epoch
        batch = self._batches[index]
        states = batch[self.rank :: self.ranks] if len(batch) >= self.ranks else batch
        return make_batch(self.steps, states, self._depths[states], section.features, self.rule)


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


class OrderDataModule(lightning.LightningDataModule):
    """Training batches by step number and held-out batches at fixed depths."""

    def __init__(self, train: Steps, heldout: Steps, section: FitSection, rule: CommitRule) -> None:
        super().__init__()
        self.train, self.heldout, self.section, self.rule = train, heldout, section, rule

    def train_dataloader(self) -> DataLoader[Batch]:
        trainer = self.trainer
        assert trainer is not None
        batches = TrainBatches(self.train, self.section, self.rule, trainer.global_rank, trainer.world_size)
        sampler = EpochSteps(len(batches), lambda: trainer.global_step)
        return DataLoader(batches, batch_size=None, sampler=sampler, num_workers=self.section.num_workers)

    def val_dataloader(self) -> DataLoader[Batch]:
        depths = [depth for depth in CHECKED_DEPTHS if depth <= self.section.d_max]
        batches = CheckBatches(self.heldout, self.section.features, self.rule, depths, CHECKED_STATES)
        return DataLoader(batches, batch_size=None, shuffle=False)
