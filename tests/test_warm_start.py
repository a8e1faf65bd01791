"""Training that starts from a drafter: its weights and input scales, recorded, and refused where they don't fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_trajectories import fake_trajectories

from spot_infer.drafters import OrderDrafter
from spot_infer.errors import SpotError
from spot_train.fit.export import read_checkpoint
from spot_train.fit.fit import fit
from spot_train.provenance import weights_hash
from spot_train.recipe.recipe import FitSection

SMALL = {"epochs": 2, "batch_size": 16, "d_max": 3, "replay_trajectories": 0}


def run(out: Path, data: int, warm_start: OrderDrafter | None = None, **changes: Any) -> Path:
    train, heldout = fake_trajectories(count=5, seed=data), fake_trajectories(count=2, seed=data + 1)
    return fit(FitSection(**{**SMALL, **changes}), train, heldout, out, warm_start=warm_start)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> OrderDrafter:
    """Trained a little, so that nothing of it is as a new network would be."""
    return read_checkpoint(run(tmp_path_factory.mktemp("first"), 1, learning_rate=1e-2, max_steps=5))


def distance(one: OrderDrafter, other: OrderDrafter) -> float:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return max(float((left - right).detach().abs().max()) for left, right in pairs)


def test_training_goes_on_from_the_drafter(drafter: OrderDrafter, tmp_path: Path) -> None:
    settings = {"seed": 7, "learning_rate": 1e-6, "max_steps": 2}
    warm = read_checkpoint(run(tmp_path / "warm", 5, drafter, **settings))
    cold = read_checkpoint(run(tmp_path / "cold", 5, **settings))
    assert 0 < distance(warm, drafter) < 1e-5 < 0.05 < distance(cold, drafter)
    for name, scale in drafter.model.named_buffers():
        assert torch.equal(scale, dict(warm.model.named_buffers())[name])
    assert warm.info.training["data"]["warm_start"] == weights_hash(drafter.model)
    assert "warm_start" not in cold.info.training["data"]


def test_a_run_is_resumed_from_its_own_start(drafter: OrderDrafter, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 5, drafter, max_steps=6)
    run(tmp_path / "halves", 5, drafter, max_steps=3)
    with pytest.raises(SpotError, match=r"warm_start\.weights_hash"):
        run(tmp_path / "halves", 5, max_steps=6)
    halves = run(tmp_path / "halves", 5, drafter, max_steps=6)
    assert distance(read_checkpoint(halves), read_checkpoint(whole)) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"d_max": 2}, "d_max is 3, but"),
        ({"residual": "rank"}, "residual is"),
        ({"scorer": "per_level"}, "scorer is 'one_call', but"),
    ],
)
def test_another_network_is_refused(drafter: OrderDrafter, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(
        SpotError, match=rf"--warm-start has a drafter whose {said}.*add --set fit\.{next(iter(change))}="
    ):
        run(tmp_path / "out", 5, drafter, **change)
    assert not (tmp_path / "out").exists()
