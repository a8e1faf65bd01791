"""Budget auto on the commands: the same text, a curve that is measured once and kept, and figures beside a grid's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from collecting import fake_target, small_recipe, write_prompts
from fake_dlm import FakeTarget
from small_target import save_small_target
from test_replay import order_drafter

from spot_infer import cli as infer_cli
from spot_infer.allocate import MOST_STATES
from spot_infer.api import GenerationConfig, generate
from spot_infer.checkpoint import PretrainedDrafter, save_drafter
from spot_infer.cost import load_curve, save_curve
from spot_infer.drafters import ConfidenceTreeDrafter
from spot_infer.errors import SpotError
from spot_infer.machine_curve import curves_folder
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_infer.requests import DecodeSettings, Request
from spot_infer.transition import Sampling
from spot_train import cli as train_cli
from spot_train.collect.collect import collect
from spot_train.collect.recording import decoded_trajectories
from spot_train.cost.allocation import against_grid, decoded, replayed

PROMPTS = [[2, 3, 4], [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small target, a drafter of its block length and shards of a fake target of the same."""
    place = tmp_path_factory.mktemp("auto")
    save_small_target(place / "target")
    torch.manual_seed(0)
    save_drafter(PretrainedDrafter(OrderModel(OrderModelConfig(8))), place / "drafter")
    recipe = small_recipe(
        write_prompts(place / "pool.jsonl", 8), prompts={"heldout_fraction": 0.999}, collect={"max_new_tokens": 30}
    )
    collect(recipe, place / "set", target=fake_target())
    return place


@pytest.mark.parametrize("batch_size", [1, 2])
def test_the_budget_follows_the_curve_and_the_text_does_not(batch_size: int) -> None:
    target, drafter = FakeTarget(block_length=8, vocab_size=30), order_drafter(8)
    base = GenerationConfig(max_new_tokens=24, batch_size=batch_size)
    fixed = generate(target, PROMPTS, base, drafter)
    sizes = []
    for name in ("paper-gsm8k", "cpu-core"):
        auto = generate(target, PROMPTS, replace(base, budget="auto", cost_curve=name), drafter)
        assert [one.tokens for one in auto] == [one.tokens for one in fixed]
        again = generate(target, PROMPTS, replace(base, budget="auto", cost_curve=load_curve(name)), drafter)
        assert [one.stats.nfe for one in again] == [one.stats.nfe for one in auto]
        sizes.append(sum(one.stats.drafted for one in auto))
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"budget": "lots"}, "budget is 'lots'"),
        ({"budget": True}, "budget is True"),
        ({"budget": 4, "cost_curve": "cpu-core"}, "cost_curve is given beside a budget of 4"),
        ({"budget": "auto", "floor": 0.1}, "takes no floor"),
        ({"budget": "auto", "pad": True}, "takes no floor, pad"),
        ({"budget": "auto", "bitwise": True}, "bitwise"),
        ({"budget": "auto", "cost_curve": "nowhere"}, "neither a file nor a named cost curve"),
    ],
)
def test_what_can_not_be_allocated_is_one_sentence(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SpotError, match=said):
        GenerationConfig(**settings).settings(True)


def test_a_curve_is_measured_once_and_kept_with_what_it_depends_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    models = ["--target", str(folder / "target"), "--drafter", str(folder / "drafter")]
    command = ["generate", *models, "--prompt", "two plus two", "--max-new-tokens", "20", "--json", "--budget", "auto"]
    seen = []
    for _ in range(2):
        assert infer_cli.run(command) == 0
        printed = capsys.readouterr()
        assert "measured at start-up" in printed.err
        seen.append(json.loads(printed.out))
    (kept,) = curves_folder().glob("*.json")
    assert curves_folder().is_relative_to(tmp_path)
    curve = load_curve(kept)
    assert curve.drafter is not None and curve.cost(1) > 0
    assert json.loads(kept.read_text())["facts"]["target"][4] == 8
    assert [one["stats"]["nfe"] for one in seen] == [seen[0]["stats"]["nfe"]] * 2
    assert infer_cli.run([*command[:3], *command[5:-2], "--draft-free"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == seen[0]["tokens"]
    pinned = tmp_path / "pinned.json"
    save_curve(curve, pinned)
    assert infer_cli.run([*command, "--cost-curve", str(pinned)]) == 0
    assert json.loads(capsys.readouterr().out)["stats"]["nfe"] == seen[0]["stats"]["nfe"]
    assert infer_cli.run([*command[:-1], "-3"]) == 2


def test_replay_and_simulate_count_what_pays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = ["--data", str(folder / "set"), "--method", "confidence_tree"]
    auto = ["--budget", "4", "--budget", "auto", "--cost-curve", "cpu-core"]
    assert train_cli.run(["replay", *shards, *auto, "--json"]) == 0
    fixed, paid = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert paid["options"] == {"budget": "auto", "curve": "cpu-core"} and paid["budget"] == MOST_STATES
    assert fixed["options"] == {}
    assert train_cli.run(["simulate", *shards, "--budget", "auto", "--curve", "cpu-core", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["budget"] == "auto" and row["nfe"] == paid["nfe"]
    assert train_cli.run(["replay", *shards, *auto]) == 0
    assert "auto" in capsys.readouterr().out
    for wrong in (["--budget", "auto"], ["--cost-curve", "cpu-core"], ["--budget", "0"]):
        assert train_cli.run(["replay", *shards, *wrong]) == 2
    assert "--budget auto and --cost-curve together" in capsys.readouterr().err


def test_allocation_prints_auto_beside_the_grids_best(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--budget", "1", "--budget", "4", "--floor", "0", "--floor", "0.3", "--curve", "paper-gsm8k"]
    command = ["allocation", "--data", str(folder / "set"), "--drafter", str(folder / "drafter"), *grid]
    assert train_cli.run([*command, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["n"] == 4 and row["budget"] in (1, 4) and row["floor"] in (0, 0.3)
    assert row["share"] == pytest.approx(row["auto"] / row["fixed"])
    assert row["share_of_best_here"] <= row["share"] + 1e-9
    assert train_cli.run(command) == 0
    assert "auto on none" in capsys.readouterr().out
    for wrong in (command[:1] + command[3:], [*command, "--recipe", "x.yaml"], [*command, "--set", "fit.epochs=1"]):
        assert train_cli.run(wrong) == 2
    assert "without --recipe" in capsys.readouterr().err
    assert train_cli.run([*command[:1], *command[3:], "--recipe", "builtin:recipes/tiny.yaml", "--split", "all"]) == 2
    assert "--split is given without --data" in capsys.readouterr().err


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grid_is_decoded_or_replayed_alike_where_replay_knows_what_is_drafted(temperature: float) -> None:
    """`temperature`: 1 through tables that hold what is drawn, for a drafter that reads nothing else."""
    target, drafter = FakeTarget(block_length=8, vocab_size=30, strength=0.3), ConfidenceTreeDrafter()
    requests = [Request(tuple(2 + (i * k) % 20 for k in range(1 + 5 * i)), seed=i) for i in range(5)]
    free = DecodeSettings(max_new_tokens=20, batch_size=2, sampling=Sampling(temperature))
    control = decoded_trajectories(target, requests, free)
    curves = [load_curve(name) for name in ("paper-gsm8k", "cpu-core")]
    grid = ((1, 4), (0.0, 0.2))
    rows = [
        against_grid(*halves, curves, *grid)
        for halves in (replayed(drafter, control, temperature), decoded(drafter, target, requests, free))
    ]
    assert rows[0] == rows[1] and rows[0][0]["n"] == 3
