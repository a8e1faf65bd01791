"""A small training run in a process of its own, to be killed. Arguments: output folder, rename delay (s), epochs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from fake_trajectories import fake_trajectories

from spot_train import fit_record
from spot_train.fit import fit
from spot_train.recipe import FitSection


def train(out: Path, epochs: int, progress: bool = False) -> Path:
    """So many epochs, with a checkpoint every third step."""
    fit_record.SAVE_EVERY_STEPS = 3
    section = FitSection(
        epochs=epochs, batch_size=16, d_max=3, replay_trajectories=1, learning_rate=1e-3, patience_epochs=None
    )
    return fit(section, fake_trajectories(count=4, seed=1), fake_trajectories(count=2, seed=2), out, progress=progress)


def main() -> None:
    out, delay_s, epochs = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    rename = os.replace

    def late(source: Any, target: Any) -> None:
        time.sleep(delay_s)
        rename(source, target)

    os.replace = late
    out.mkdir(parents=True, exist_ok=True)
    (out.parent / "started").touch()
    train(out, epochs)


if __name__ == "__main__":
    main()
