"""Training: resumable to the bit, damage and mismatches named, better than the untrained order."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_trajectories import fake_trajectories

from spot_infer.errors import SpotError
from spot_train.fit.fit import fit
from spot_train.recipe.recipe import FitSection

SMALL = {"epochs": 2, "batch_size": 16, "d_max": 3, "replay_trajectories": 1, "learning_rate": 1e-3}


def section(**changes: Any) -> FitSection:
    return FitSection(**{**SMALL, **changes})


def run(out: Path, **changes: Any) -> Path:
    train, heldout = fake_trajectories(count=5, seed=1), fake_trajectories(count=2, seed=2)
    return fit(section(**changes), train, heldout, out)


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return dict(torch.load(checkpoint, weights_only=True)["state_dict"])


def assert_same(left: Path, right: Path) -> None:
    one, other = weights(left), weights(right)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


PAPER = {"scorer": "per_level", "depths_per_state": 2, "features": "v1"}


@pytest.mark.parametrize("changes", [{}, PAPER], ids=["one call", "per level"])
def test_ten_steps_and_ten_more_equal_twenty_to_the_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", max_steps=20, batch_size=5, **changes)
    run(tmp_path / "halves", max_steps=10, batch_size=5, **changes)
    assert_same(run(tmp_path / "halves", max_steps=20, batch_size=5, **changes), whole)
    assert whole.name == "best.ckpt"
    assert_same(tmp_path / "halves" / "last.ckpt", tmp_path / "whole" / "last.ckpt")
    assert rows(tmp_path / "halves") == rows(tmp_path / "whole")


def test_resuming_at_an_epochs_end_equals_going_on(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    per_epoch = int(rows(tmp_path / "whole")[0]["step"])
    run(tmp_path / "halves", max_steps=per_epoch)
    assert len(rows(tmp_path / "halves")) == 1
    assert_same(run(tmp_path / "halves"), whole)
    assert rows(tmp_path / "halves") == rows(tmp_path / "whole")


def test_an_end_inside_an_epoch_may_be_the_best_and_is_forgotten_by_a_longer_run(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", learning_rate=1e-4)
    per_epoch = int(rows(tmp_path / "whole")[0]["step"])
    for steps in (2, per_epoch + 2):
        cut = run(tmp_path / "cut", max_steps=steps, learning_rate=1e-4)
        assert cut.name == "best.ckpt" and torch.load(cut, weights_only=True)["global_step"] == steps
        assert int(rows(tmp_path / "cut")[-1]["step"]) == steps
        assert run(tmp_path / "cut", max_steps=steps, learning_rate=1e-4) == cut
    assert (tmp_path / "cut" / "best-epoch.ckpt").exists()
    assert_same(run(tmp_path / "cut", learning_rate=1e-4), whole)
    assert {file.name for file in (tmp_path / "cut").iterdir()} == {file.name for file in whole.parent.iterdir()}


def test_a_loss_that_is_no_number_ends_the_run_before_it_is_saved(tmp_path: Path) -> None:
    with pytest.raises(SpotError, match=r"the loss is not a number at step \d+; lower fit\.learning_rate"):
        run(tmp_path, max_steps=6, learning_rate=1e30)
    assert not list(tmp_path.glob("*.ckpt"))


def test_a_strategy_that_is_none_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SpotError, match=r"fit\.strategy"):
        run(tmp_path / "run", strategy="warp")
    assert not list(tmp_path.iterdir())


def test_a_finished_run_is_returned_without_training(tmp_path: Path) -> None:
    done = run(tmp_path)
    before = done.stat().st_mtime_ns
    assert run(tmp_path) == done
    assert done.stat().st_mtime_ns == before


def test_metrics_stand_beside_the_untrained_orders(tmp_path: Path) -> None:
    run(tmp_path)
    for row in rows(tmp_path):
        for name in ("heldout/accuracy", "stale_confidence/accuracy", "left_to_right/accuracy", "heldout/top3"):
            assert 0 <= float(row[name]) <= 1
        for budget in (8, 20):
            assert float(row[f"replay/reduction_d{budget}"]) >= 1
            assert float(row[f"chain/reduction_d{budget}"]) >= 1
        assert 0 <= float(row["heldout/calibration_error"]) <= 1
        assert float(row["heldout/accuracy_depth_03"]) <= 1


def test_early_stopping_ends_the_run_and_keeps_the_best(tmp_path: Path) -> None:
    best = run(tmp_path, epochs=12, learning_rate=0.3, patience_epochs=1)
    losses = [float(row["heldout/loss"]) for row in rows(tmp_path)]
    assert len(losses) < 12
    assert torch.load(best, weights_only=True)["epoch"] == losses.index(min(losses))
    assert run(tmp_path, epochs=12, learning_rate=0.3, patience_epochs=1) == best


@pytest.mark.parametrize("change", [{"learning_rate": 2e-3}, {"seed": 5}, {"epochs": 3}, {"features": "paper"}])
def test_a_folder_of_other_settings_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    run(tmp_path, max_steps=2)
    with pytest.raises(SpotError, match=next(iter(change))):
        run(tmp_path, **change)


def test_a_folder_of_other_data_is_refused(tmp_path: Path) -> None:
    run(tmp_path, max_steps=2)
    with pytest.raises(SpotError, match=r"data\.train"):
        fit(section(), fake_trajectories(count=5, seed=3), fake_trajectories(count=2, seed=2), tmp_path)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    run(tmp_path, max_steps=10)
    last = tmp_path / "last.ckpt"
    last.write_bytes(last.read_bytes()[:1000])
    with pytest.raises(SpotError, match=r"last\.ckpt"):
        run(tmp_path)


def test_unusable_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpotError, match="no recorded step"):
        fit(section(), (), fake_trajectories(count=4), tmp_path)
    with pytest.raises(SpotError, match="block length"):
        fit(section(), fake_trajectories(count=4), fake_trajectories(count=4, block_length=4), tmp_path)


def test_a_killed_run_leaves_nothing_half_written(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    run(tmp_path / "cut", max_steps=10)
    shutil.copy(tmp_path / "cut" / "last.ckpt", tmp_path / "cut" / "last.ckpt.partial")
    (tmp_path / "cut" / "fit.json").unlink()
    assert_same(run(tmp_path / "cut"), whole)
