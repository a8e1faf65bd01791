"""Training by several processes: together they take the step that one would take."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from collecting import small_recipe, write_prompts
from fake_trajectories import fake_trajectories
from test_shards import make_set

from spot_infer.order_model import HEAD_HIDDEN, OrderModelConfig
from spot_infer.transition import CommitRule
from spot_train.cli import run
from spot_train.collect.ranks import first_rank
from spot_train.fit.data import Batch, TrainBatches
from spot_train.fit.module import OrderModule
from spot_train.fit.step_windows import InMemory
from spot_train.recipe.recipe import FitSection

FIT: dict[str, Any] = {"batch_size": 7, "d_max": 3, "learning_rate": 1e-3, "replay_trajectories": 1, "epochs": 2}
ALL: dict[str, Any] = {"scorer": "one_call", "depths_per_state": "all", "features": "v2"}


def gradient(section: FitSection, batch: Batch) -> torch.Tensor:
    """Of one training step in float64, all parameters end to end, from weights that nothing is zero in."""
    sizes = {"block_length": 8, "d_max": section.d_max, "features": section.features, "scorer": section.scorer}
    config = OrderModelConfig(**sizes, head_hidden=HEAD_HIDDEN[section.scorer])
    module = OrderModule(config.to_dict(), section.model_dump(), 10, {}).double()
    torch.manual_seed(5)
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    module.log = lambda *arguments, **named: None  # type: ignore[assignment,method-assign]
    module.log_q = lambda one: torch.log_softmax(module.model(*one.asked), dim=-1)  # type: ignore[method-assign]
    module.training_step(batch, 0).backward()  # type: ignore[no-untyped-call]
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None])


@pytest.mark.parametrize("changes", [{}, ALL], ids=["drawn depths", "all depths"])
@pytest.mark.parametrize("ranks", [2, 3, 9])
def test_the_ranks_mean_gradient_is_that_of_one_process(ranks: int, changes: dict[str, Any]) -> None:
    section = FitSection(**{**FIT, **changes})
    data = InMemory.of(fake_trajectories(count=4, seed=1))
    for step in (0, 3):
        alone = gradient(section, TrainBatches(data, section, CommitRule())[step])
        parts = [TrainBatches(data, section, CommitRule(), rank, ranks)[step] for rank in range(ranks)]
        together = torch.stack([gradient(section, part) for part in parts]).mean(dim=0)
        assert alone.abs().max() > 1e-3
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-7)


def test_the_first_rank_is_the_one_that_writes() -> None:
    assert first_rank({}) and first_rank({"RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "0"})
    for name, value in (("RANK", "4"), ("LOCAL_RANK", "1"), ("NODE_RANK", "1"), ("SLURM_PROCID", "2")):
        assert not first_rank({"LOCAL_RANK": "0", name: value})


@pytest.mark.figures
def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    shards = make_set(tmp_path / "set", 3)
    recipe = tmp_path / "recipe.yaml"
    made = small_recipe(write_prompts(tmp_path / "pool.jsonl"), fit={**FIT, **ALL})
    recipe.write_text(yaml.safe_dump(made.model_dump(mode="json", exclude_unset=True)))

    def command(name: str, *more: str) -> list[str]:
        return ["fit", str(recipe), "--data", str(shards), "--out", str(tmp_path / name), *more]

    assert run(command("one", "--devices", "1")) == 0
    assert run(command("other", "--devices", "1", "--set", "fit.seed=1")) == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launch += ["-m", "spot_train.cli"]
    both = [*launch, *command("two", "--devices", "2", "--strategy", "ddp")]
    printed = subprocess.run(both, check=True, timeout=300, stdout=subprocess.PIPE, text=True).stdout
    assert printed.count("checkpoint: ") == 1
    one, two, other = (weights(tmp_path / name) for name in ("one", "two", "other"))
    assert (one - two).abs().mean() < 1e-2 * (one - other).abs().mean()
    losses = [loss(tmp_path / name) for name in ("one", "two", "other")]
    assert abs(losses[0] - losses[1]) < 0.05 * abs(losses[0] - losses[2])


def weights(folder: Path) -> torch.Tensor:
    stored = torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]
    return torch.cat([value.flatten() for name, value in stored.items() if name.startswith("model.")])


def loss(folder: Path) -> float:
    with (folder / "metrics.csv").open(newline="") as file:
        return float(list(csv.DictReader(file))[-1]["heldout/loss"])
