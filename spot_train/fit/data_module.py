"""Batches as Lightning asks for them. Knows nothing about what is in a batch."""

from __future__ import annotations

import lightning
import torch
from torch.utils.data import DataLoader

from spot_infer.transition import CommitRule
from spot_train.fit.data import CHECKED_DEPTHS, CHECKED_STATES, Batch, CheckBatches, EpochSteps, TrainBatches, loader
from spot_train.fit.examples import Steps
from spot_train.fit.step_windows import StepWindows
from spot_train.recipe.recipe import FitSection


class OrderDataModule(lightning.LightningDataModule):
    """Training batches by step number and held-out batches at fixed depths; each loading process holds one window."""

    def __init__(self, train: StepWindows, heldout: Steps, section: FitSection, rule: CommitRule) -> None:
        super().__init__()
        self.train, self.heldout, self.section, self.rule = train, heldout, section, rule

    def train_dataloader(self) -> DataLoader[Batch]:
        trainer = self.trainer
        assert trainer is not None
        batches = TrainBatches(self.train, self.section, self.rule, trainer.global_rank, trainer.world_size)
        sampler = EpochSteps(len(batches), lambda: trainer.global_step)
        return loader(batches, sampler, self.section.num_workers)

    def val_dataloader(self) -> DataLoader[Batch]:
        depths = [depth for depth in CHECKED_DEPTHS if depth <= self.section.d_max]
        batches = CheckBatches(self.heldout, self.section.features, self.rule, depths, CHECKED_STATES)
        return DataLoader(batches, batch_size=None, shuffle=False)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """As Lightning does, without looking through everything that a batch might hold."""
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in batch))
