"""SIGKILL during fit, at random and between write and rename: same weights and metrics as an uninterrupted run."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch
from collecting import child_server
from fit_child import killable_train, train
from lightning.pytorch.callbacks import Callback

from spot_train.fit import fit as fit_module
from spot_train.output_lock import Interrupted

DELAY_S = 0.2


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServerContext]:
    with child_server("fit_child") as context:
        yield context


def run_and_kill(
    server: ForkServerContext, out: Path, epochs: int, between_write_and_rename: bool, generator: random.Random
) -> bool:
    """Start or resume the run and kill it; returns whether it was killed before it ended."""
    started = out.parent / "started"
    started.unlink(missing_ok=True)
    child = server.Process(target=killable_train, args=(out, DELAY_S, epochs))
    child.start()
    try:
        while not started.exists() and child.is_alive():
            time.sleep(0.01)
        renames_left = generator.randint(1, 3)
        deadline = time.monotonic() + generator.uniform(0.2, 2.0)
        seen = False
        while child.is_alive():
            partial = out.exists() and any(out.glob("*.partial"))
            renames_left -= partial and not seen
            seen = partial
            if (renames_left == 0 and partial) if between_write_and_rename else time.monotonic() > deadline:
                break
            time.sleep(0.005)
        return child.is_alive()
    finally:
        child.kill()
        child.join()


def check_kills(server: ForkServerContext, tmp_path: Path, kills: int) -> None:
    epochs = 2 * kills
    whole = train(tmp_path / "whole", epochs)
    generator = random.Random(0)
    out = tmp_path / "killed" / "run"
    killed = 0
    for attempt in range(kills):
        if not run_and_kill(server, out, epochs, attempt % 2 == 0, generator):
            break
        killed += 1
    assert killed == kills, "the run ended before it was killed often enough"
    resumed = train(out, epochs)
    left, right = (torch.load(path, weights_only=True)["state_dict"] for path in (resumed, whole))
    assert all(torch.equal(left[name], right[name]) for name in right)
    for name in ("metrics.csv", "fit.json", "run.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_step_in_hand(tmp_path: Path, number: signal.Signals) -> None:
    whole = train(tmp_path / "whole", epochs=3)
    out = tmp_path / "run"

    class Strike(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 4:
                os.kill(os.getpid(), number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_module, "RichProgressBar", Strike)
        with pytest.raises(Interrupted, match="run again to resume") as stopped:
            train(out, epochs=3, progress=True)
    assert stopped.value.code == 128 + number
    assert torch.load(out / "last.ckpt", weights_only=True)["global_step"] == 5
    resumed = train(out, epochs=3)
    left, right = (torch.load(path, weights_only=True)["state_dict"] for path in (resumed, whole))
    assert all(torch.equal(left[name], right[name]) for name in right)


def test_three_kills_leave_no_trace(server: ForkServerContext, tmp_path: Path) -> None:
    check_kills(server, tmp_path, 3)


@pytest.mark.figures
def test_twenty_kills_leave_no_trace(server: ForkServerContext, tmp_path: Path) -> None:
    check_kills(server, tmp_path, 20)
