"""How many trajectories a drafter needs: nested sizes, one schedule for all, and nothing done twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from collecting import small_recipe, write_prompts
from test_shards import make_set

from spot_infer.checkpoint import save_drafter
from spot_train.cli import run
from spot_train.fit.examples import lay_out
from spot_train.fit.export import read_checkpoint
from spot_train.fit.step_windows import ShardWindows
from spot_train.shards.copy import copy_set
from spot_train.shards.store import ShardSet, open_shards

FIT = {"batch_size": 5, "d_max": 3, "learning_rate": 1e-3, "warmup_steps": 2}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    return open_shards(make_set(tmp_path_factory.mktemp("curve") / "set", 4))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("recipe")
    file = folder / "recipe.yaml"
    tree = small_recipe(write_prompts(folder / "pool.jsonl"), fit=FIT).model_dump(mode="json", exclude_unset=True)
    file.write_text(yaml.safe_dump(tree))
    return str(file)


@pytest.mark.parametrize("limit", [1, 2, 5, 8, 99])
@pytest.mark.parametrize("resident", [1, 4])
def test_a_limit_takes_the_first_trajectories(shards: ShardSet, resident: int, limit: int) -> None:
    windows = ShardWindows(shards, "train", resident, limit)
    first = list(shards.trajectories("train"))[:limit]
    assert windows.facts.trajectories == len(first)
    assert windows.facts.steps == len(lay_out(first))
    assert sorted(one.seed for one in windows.first(99)) == sorted(one.seed for one in first)
    if resident == 4:
        assert windows.facts.digest == ShardWindows(shards, "train", 9, limit).facts.digest


def test_a_curve_is_made_once(
    recipe: str, shards: ShardSet, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "curve"
    command = ["learning-curve", recipe, "--data", str(shards.path), "--out", str(out), "--steps", "4"]
    command += ["--trajectories", "4", "--trajectories", "2", "--seed", "3", "--json"]
    assert run(command) == 0
    points = json.loads(capsys.readouterr().out)
    assert [(one["trajectories"], one["seed"], one["start"]) for one in points] == [
        (size, 3, "cold") for size in (2, 4)
    ]
    assert all(0 < one["accuracy"] < 1 and one["reductions"].keys() == {"D8", "D20"} for one in points)
    assert len({json.dumps(one["untrained"]) for one in points}) == 1
    fits = sorted(out.glob("*/last.ckpt"))
    made = [file.stat().st_mtime_ns for file in fits]
    assert len(fits) == 2
    stored = torch.load(fits[0], weights_only=True)
    assert stored["hyper_parameters"]["horizon_steps"] == stored["global_step"] == 4
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out) == points
    assert [file.stat().st_mtime_ns for file in fits] == made
    url = "memory://curve/set"
    copy_set(str(shards.path), url)
    assert run([*command, "--data", url]) == 2
    assert "own memory" in capsys.readouterr().err
    monkeypatch.setattr("spot_train.shards.copy.lasting", str)  # in a test the command's memory outlives it
    assert run([*command[:-1], "--data", url]) == 0
    printed = capsys.readouterr().out
    assert "untrained order" in printed and "4 optimiser steps a fit" in printed
    assert [len(open_shards(folder).names) for folder in (out / "data").glob("set-*")] == [4]
    assert [file.stat().st_mtime_ns for file in fits] == made
    assert run([*command, "--steps", "5"]) == 2
    assert "now --steps is 5" in capsys.readouterr().err


def test_a_warm_curve_begins_with_the_drafter_itself(
    recipe: str, shards: ShardSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["learning-curve", recipe, "--data", str(shards.path), "--json", "--budget", "4"]
    assert run([*command, "--out", str(tmp_path / "cold"), "--steps", "3", "--trajectories", "6"]) == 0
    cold = json.loads(capsys.readouterr().out)[0]
    drafter = read_checkpoint(next(tmp_path.glob("cold/cold-*/*.ckpt")))
    save_drafter(drafter, tmp_path / "drafter")
    warm = [*command, "--steps", "1", "--trajectories", "2", "--warm-start", str(tmp_path / "drafter")]
    warm += ["--out", str(tmp_path / "warm" / "curve")]
    assert run([*warm, "--set", "fit.d_max=2"]) == 2
    assert "d_max" in capsys.readouterr().err and not (tmp_path / "warm").exists()
    assert run([*warm, "--set", "fit.learning_rate=1e-9"]) == 0
    start, trained = json.loads(capsys.readouterr().out)
    assert (start["trajectories"], start["seed"]) == (0, None)
    for name in ("accuracy", "reductions"):
        assert start[name] == pytest.approx(cold[name]) and trained[name] == pytest.approx(cold[name])


def test_more_than_there_are_is_refused(
    recipe: str, shards: ShardSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["learning-curve", recipe, "--data", str(shards.path), "--out", str(tmp_path / "curve")]
    assert run([*command, "--trajectories", "5000"]) == 2
    assert "more than the 8 training trajectories" in capsys.readouterr().err
    assert not (tmp_path / "curve").exists()
