"""What a training run writes down: metrics.csv, last.ckpt and best.ckpt. Each is whole or not there at all.

Rows and running sums travel inside the checkpoint, so a run that was killed and resumed leaves the same files as one
that was not. Replays held-out trajectories after every epoch. Knows nothing about the loss.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from spot_infer.atomic import write_file
from spot_infer.drafters import ChainDrafter, OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.transition import CommitRule
from spot_train.fit.module import OrderModule
from spot_train.fit.step_windows import StepWindows
from spot_train.output_lock import Interrupted, PendingSignal
from spot_train.replay.replay import mean_reduction, replay
from spot_train.trajectory import Trajectory

METRICS_FILE = "metrics.csv"
LAST_FILE = "last.ckpt"
BEST_FILE = "best.ckpt"
EPOCH_FILE = "best-epoch.ckpt"
"""The best of whole epochs, where max_steps ended the run inside one and that end is better: a longer run goes on with
it as if it had never stopped."""
MONITOR = "heldout/loss"
BUDGETS = (8, 20)
SAVE_EVERY_STEPS = 100
LOG_EVERY_STEPS = 50

Row = dict[str, float | int]


class AtomicCheckpoints(TorchCheckpointIO):
    """Lightning checkpoints that appear by rename."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_file(Path(path), buffer.getvalue())


class HeldoutReplay:
    """NFE reduction of the model and of the untrained chain on the first `count` trajectories of `heldout`, at each of
    `BUDGETS`."""

    def __init__(self, heldout: StepWindows, count: int, rule: CommitRule, temperature: float) -> None:
        self.heldout, self.count, self.rule, self.temperature = heldout, count, rule, temperature

    def __call__(self, module: OrderModule) -> Row:
        if not self.trajectories:
            return {}
        drafter = OrderDrafter(module.model)
        reductions: Row = {f"replay/reduction_d{budget}": self._reduction(drafter, budget) for budget in BUDGETS}
        module.model.train()
        return {**reductions, **self.chain}

    @cached_property
    def trajectories(self) -> list[Trajectory]:
        return self.heldout.first(self.count)

    @cached_property
    def chain(self) -> Row:
        chain = ChainDrafter(self.rule)
        return {f"chain/reduction_d{budget}": self._reduction(chain, budget) for budget in BUDGETS}

    def _reduction(self, drafter: ChainDrafter | OrderDrafter, budget: int) -> float:
        return mean_reduction(replay(drafter, self.trajectories, budget, temperature=self.temperature))


class FitRecord(Callback):
    """Keeps the rows of metrics.csv and decides which checkpoint is the best: the smallest held-out loss."""

    def __init__(self, out: Path, heldout_replay: HeldoutReplay, max_steps: int | None) -> None:
        self.out = out
        self.heldout_replay = heldout_replay
        self.max_steps = max_steps
        self.rows: list[Row] = []
        self.loss_sum: float | Tensor = 0.0
        self.loss_count = 0
        self.complete = False
        self.pending: PendingSignal | None = None

    @property
    def best(self) -> Row | None:
        return min(self.rows, key=lambda row: row[MONITOR], default=None)

    def state_dict(self) -> dict[str, Any]:
        loss_sum = float(self.loss_sum)
        return {"rows": self.rows, "loss_sum": loss_sum, "loss_count": self.loss_count, "complete": self.complete}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, value in state_dict.items():
            setattr(self, name, value)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss: Tensor = outputs["loss"]
        self.loss_sum = self.loss_sum + loss.detach().double()
        self.loss_count += 1
        if trainer.global_step % LOG_EVERY_STEPS == 0:
            self._check_loss(trainer)
            if trainer.is_global_zero:
                log(trainer, {"train/step_loss": float(loss)}, trainer.global_step)
        if batch_idx + 1 == int(trainer.num_training_batches):
            return
        number = None if self.pending is None else self.pending.number
        due = trainer.global_step % SAVE_EVERY_STEPS == 0 or trainer.global_step == self.max_steps
        if due or number is not None:
            self._check_loss(trainer)
            trainer.save_checkpoint(self.out / LAST_FILE)
        if number is not None:
            raise Interrupted(number, f"interrupted: step {trainer.global_step} is in {self.out}; run again to resume")

    def _check_loss(self, trainer: lightning.Trainer) -> None:
        """Read the losses so far, which waits for the device, so not at every step; before anything is saved."""
        if not math.isfinite(self.loss_sum):
            raise SpotError(f"the loss is not a number at step {trainer.global_step}; lower fit.learning_rate")

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if trainer.fit_loop.epoch_loop.batch_progress.current.ready < int(trainer.num_training_batches):
            return
        assert isinstance(pl_module, OrderModule)
        self.add_row(trainer, pl_module)
        self.loss_sum, self.loss_count = 0.0, 0
        self.complete = bool(trainer.should_stop) or trainer.current_epoch + 1 == trainer.max_epochs
        trainer.save_checkpoint(self.out / LAST_FILE)

    def add_row(self, trainer: lightning.Trainer, module: OrderModule, inside: bool = False) -> None:
        """Measure, write the row, and save the checkpoint if it is the best so far. inside: not at an epoch's end."""
        self._check_loss(trainer)
        values = {name: float(value) for name, value in trainer.callback_metrics.items() if "/" in name}
        row: Row = {"epoch": trainer.current_epoch, "step": trainer.global_step}
        row["train/loss"] = float(self.loss_sum) / max(self.loss_count, 1)
        row |= dict(sorted(values.items()))
        if trainer.is_global_zero:
            row |= self.heldout_replay(module)
        best = self.best
        self.rows.append(row)
        if trainer.is_global_zero:
            write_rows(self.out / METRICS_FILE, self.rows)
            log(trainer, {name: float(value) for name, value in row.items()}, int(row["step"]))
        if best is None or row[MONITOR] < best[MONITOR]:
            if inside and best is not None and trainer.is_global_zero:
                os.replace(self.out / BEST_FILE, self.out / EPOCH_FILE)
            trainer.save_checkpoint(self.out / BEST_FILE)

    def go_on(self) -> None:
        """Forget the row and the checkpoint of an end inside an epoch; to be asked before training goes on."""
        if (self.out / EPOCH_FILE).exists():
            os.replace(self.out / EPOCH_FILE, self.out / BEST_FILE)
        elif not self.rows:
            (self.out / BEST_FILE).unlink(missing_ok=True)


def log(trainer: lightning.Trainer, values: dict[str, float], step: int) -> None:
    """To the trainer's loggers, where it has some; Lightning's own way looks through the module at every call."""
    for logger in trainer.loggers:
        logger.log_metrics(values, step)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Replace `path` by a CSV of `rows`; columns are those of any row."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    write_file(path, text.getvalue().encode())
