"""A small training run, and the same in a process of its own, to be killed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from fake_trajectories import fake_trajectories

from spot_train.fit import record as fit_record
from spot_train.fit.fit import fit
from spot_train.recipe.recipe import FitSection


def train(out: Path, epochs: int, progress: bool = False) -> Path:
    """So many epochs, with a checkpoint every third step."""
    fit_record.SAVE_EVERY_STEPS = 3
    section = FitSection(
        epochs=epochs, batch_size=16, d_max=3, replay_trajectories=1, learning_rate=1e-3, patience_epochs=None
    )
    return fit(section, fake_trajectories(count=4, seed=1), fake_trajectories(count=2, seed=2), out, progress=progress)


def killable_train(out: Path, delay_s: float, epochs: int) -> None:
    """Runs in a child process, with every rename late by `delay_s`; touches `started` beside `out` before it trains."""
    torch.set_num_threads(1)
    rename = os.replace

    def late(source: Any, target: Any) -> None:
        time.sleep(delay_s)
        rename(source, target)

    os.replace = late
    out.mkdir(parents=True, exist_ok=True)
    (out.parent / "started").touch()
    train(out, epochs)
