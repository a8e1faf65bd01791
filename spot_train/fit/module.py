"""The order model as a LightningModule: loss -log q at the next commit, Adam, held-out measures (paper appendix D.1).

Knows nothing about files or the draft search.
"""

from __future__ import annotations

import math
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_train.fit.data import Batch
from spot_train.fit.metrics import OrderMetrics, untrained_orders
from spot_train.recipe.recipe import FitSection


class OrderModule(lightning.LightningModule):
    """Trains `model`. horizon_steps: optimiser steps over which the learning rate falls to zero.

    `facts` travel with every checkpoint: the target, the data and the rule that the drafter is for.
    """

    def __init__(self, model: dict[str, Any], fit: dict[str, Any], horizon_steps: int, facts: dict[str, Any]) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.section = FitSection(**fit)
        self.horizon_steps = horizon_steps
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.section.seed)
            self.model = OrderModel(OrderModelConfig.from_dict(model))
        depths = self.section.d_max + 1
        self.heldout = OrderMetrics(depths)
        self.untrained = torch.nn.ModuleDict(
            {name: OrderMetrics(depths) for name in ("stale_confidence", "left_to_right")}
        )

    def log_q(self, batch: Batch) -> Tensor:
        """log q float32 [Q, m], -inf at taken and padded slots."""
        return torch.log_softmax(self.model(*batch.asked).float(), dim=-1)

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        losses = -self.log_q(batch).gather(1, batch.label[:, None]).squeeze(1)
        return (losses * batch.weight).sum()

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        self.heldout.update(self.log_q(batch), batch.label, batch.depth)
        for name, scores in untrained_orders(batch.rank, batch.slot, batch.of, batch.taken, batch.valid).items():
            metric = self.untrained[name]
            assert isinstance(metric, OrderMetrics)
            metric.update(scores, batch.label, batch.depth)

    def on_validation_epoch_end(self) -> None:
        measured = self.heldout.compute()
        values = {f"heldout/{name}": measured[name] for name in ("accuracy", "top3", "loss", "calibration_error")}
        for depth, accuracy in enumerate(measured["by_group"]):
            if accuracy is not None:
                values[f"heldout/accuracy_depth_{depth:02d}"] = accuracy
        self.heldout.reset()
        for name, metric in self.untrained.items():
            assert isinstance(metric, OrderMetrics)
            baseline = metric.compute()
            values[f"{name}/accuracy"] = baseline["accuracy"]
            values[f"{name}/top3"] = baseline["top3"]
            metric.reset()
        self.log_dict(values, sync_dist=False, batch_size=1, logger=False)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        section = self.section
        kind = torch.optim.AdamW if section.weight_decay else torch.optim.Adam
        optimizer = kind(self.parameters(), lr=section.learning_rate, weight_decay=section.weight_decay, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _rate(self, step: int) -> float:
        """Share of the learning rate at `step`: a linear warm-up, then half a cosine down to zero."""
        warmup = self.section.warmup_steps
        if step < warmup:
            return (step + 1) / warmup
        done = min((step - warmup) / max(self.horizon_steps - warmup, 1), 1.0)
        return 0.5 * (1 + math.cos(math.pi * done))
