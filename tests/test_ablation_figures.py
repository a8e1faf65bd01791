"""What each group of version 2's columns is worth; `-m figures -s` prints the table of docs/decoding.md.

SPOT_ABLATION_SHARDS names a set of shards with a held-out split, SPOT_ABLATION_STEPS the optimiser steps (600). All
but the last start alike, and train in turns on the same batches, so that their losses pair.
"""

from __future__ import annotations

import os
from itertools import islice
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spot_infer.changes import CHANGE_FEATURES
from spot_infer.drafters import OrderDrafter
from spot_infer.features import TABLE_FEATURES
from spot_infer.order_model import HEAD_HIDDEN, OrderModel, OrderModelConfig
from spot_train.fit.data import TrainBatches
from spot_train.fit.errors import errors
from spot_train.fit.module import OrderModule
from spot_train.fit.step_windows import InMemory
from spot_train.recipe.recipe import FitSection
from spot_train.shards.store import ShardSet, open_shards

pytestmark = pytest.mark.figures

VARIABLE = "SPOT_ABLATION_SHARDS"
STEPS = int(os.environ.get("SPOT_ABLATION_STEPS", "600"))
SECTION = FitSection(learning_rate=1e-3, batch_size=32, warmup_steps=20, residual="rank")
TRAJECTORIES = 1500
STANDARDISE_BATCHES = 16
VERSION_1, OTHER_SEED = "version 1, without all of them", "version 2, weights of another seed"
LEFT_OUT = {
    "version 2": range(0),
    "without change of log-odds, rank, argmax, and whether there is a table before": range(4),
    "without gaps to the neighbours in the stale order": range(4, 6),
    "without distances to the nearest filled slots": range(6, 8),
    "without the neighbours just filled": range(8, 10),
    "without distances to the slots just filled": range(10, 12),
    "without slots that hold the same token": range(12, 15),
    VERSION_1: range(CHANGE_FEATURES),
    OTHER_SEED: range(0),
}
"""Rows of the table, and which of `change_columns` are zero in them; the last says what the weights' seed is worth."""
WORTH_MOST = ("without the neighbours just filled", "without slots that hold the same token")


class Blind(OrderModel):
    """An order model that sees zeros in some columns."""

    def __init__(self, config: OrderModelConfig, left_out: range) -> None:
        super().__init__(config)
        self.left_out = torch.tensor([TABLE_FEATURES + column for column in left_out], dtype=torch.int64)

    def inputs(self, table: Tensor, taken: Tensor, depth: Tensor) -> Tensor:
        return super().inputs(table, taken, depth).index_fill(-1, self.left_out, 0.0)


class Trained:
    """One row's network and the losses of its steps so far."""

    def __init__(self, config: OrderModelConfig, left_out: range, seed: int) -> None:
        self.module = OrderModule(config.to_dict(), {**SECTION.model_dump(), "seed": seed}, STEPS, {})
        model = Blind(config, left_out)
        model.load_state_dict(self.module.model.state_dict())
        self.module.model = model
        chosen: Any = self.module.configure_optimizers()
        self.optimizer, self.rate = chosen["optimizer"], chosen["lr_scheduler"]["scheduler"]
        self.losses: list[float] = []

    def step(self, batch: Any) -> None:
        loss = self.module.training_step(batch, 0)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.rate.step()
        self.losses.append(float(loss.detach()))


@pytest.fixture(scope="module")
def shards() -> ShardSet:
    if not (folder := os.environ.get(VARIABLE)):
        pytest.skip(f"{VARIABLE} names no set of shards that spot-train collect wrote")
    return open_shards(Path(folder))


def test_columns(shards: ShardSet) -> None:
    sizes = {"block_length": shards.block_length, "head_hidden": HEAD_HIDDEN[SECTION.scorer]}
    named = {"features": SECTION.features, "scorer": SECTION.scorer, "residual": SECTION.residual}
    config = OrderModelConfig(**sizes, **named, d_max=SECTION.d_max, rule=shards.rule)  # type: ignore[arg-type]
    batches = TrainBatches(InMemory.of(islice(shards.trajectories("train"), TRAJECTORIES)), SECTION, shards.rule)
    assert len(batches) >= STEPS, "the last steps would repeat states"
    rows = {name: Trained(config, left_out, int(name == OTHER_SEED)) for name, left_out in LEFT_OUT.items()}
    first = [batches[step] for step in range(min(STEPS, STANDARDISE_BATCHES))]
    for row in rows.values():
        row.module.model.standardise(torch.cat([row.module.model.rows(*one.asked) for one in first]))
    for step in range(STEPS):
        batch = batches[step]
        for row in rows.values():
            row.step(batch)
    heldout = [one for one in shards.trajectories("heldout") if len(one)]
    whole = np.array(rows["version 2"].losses[STEPS // 2 :])
    print(f"\n{STEPS} steps, {len(heldout)} held-out trajectories; loss of the last half: {whole.mean():.3f}")
    print("| columns | errors | up to the stop token | at depth 0 | loss |\n|---|---|---|---|---|")
    worth: dict[str, tuple[float, float]] = {}
    for name, row in rows.items():
        found = errors(OrderDrafter(row.module.model), heldout, rule=shards.rule)["scopes"]
        more = np.array(row.losses[STEPS // 2 :]) - whole
        worth[name] = float(more.mean()), float(more.std(ddof=1) / sqrt(len(more)))
        figures = (found["all"]["errors"], found["before_stop"]["errors"], found["all"]["by_depth"]["0"])
        loss = f"{whole.mean():.3f}" if row is rows["version 2"] else "{:+.3f} ± {:.3f}".format(*worth[name])
        print(f"| {name} | {' | '.join(f'{one:.3f}' for one in figures)} | {loss} |", flush=True)
    for name in WORTH_MOST:
        more, doubt = worth[name]
        assert more > 2 * doubt, name
    assert worth[VERSION_1][0] > 2 * abs(worth[OTHER_SEED][0])
