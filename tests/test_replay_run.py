"""`spot-train replay`: the cells of every method from shards alone, printed and kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from collecting import fake_target, small_recipe, write_prompts

from spot_infer.decode import decode
from spot_infer.noise import request_seed
from spot_infer.requests import Request
from spot_train.calibrate.graph import calibrate_graph, recorded_shards
from spot_train.cli import run
from spot_train.collect.collect import collect, decode_settings
from spot_train.methods import DrafterSources, make_drafter
from spot_train.prompts import load_prompts
from spot_train.recipe.recipe import Recipe
from spot_train.replay.run import replay_cells
from spot_train.results import Cell, read_rows
from spot_train.shards.store import open_shards


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    folder = tmp_path_factory.mktemp("replay")
    pool = write_prompts(folder / "pool.jsonl", 8)
    return small_recipe(
        pool,
        prompts={"heldout_fraction": 0.999},
        collect={"max_new_tokens": 30, "lease_prompts": 8},
        calibrate={"prompts": 6, "heldout": 2},
    )


@pytest.fixture(scope="module")
def shards(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shards")
    collect(recipe, out / "set", target=fake_target())
    calibrate_graph(recipe, recorded_shards(recipe, open_shards(out / "set")), out / "graph.json")
    return out / "set"


def test_cells_are_what_decoding_the_same_prompts_counts(
    recipe: Recipe, shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--method", "draft-free", "--method", "chain:depth=3", "--method", "confidence_tree"]
    assert run(["replay", "--data", str(shards), *chosen, "--budget", "5", "--budget", "9", "--json"]) == 0
    cells = [Cell.model_validate_json(line) for line in capsys.readouterr().out.splitlines()]
    assert [(cell.method, cell.budget) for cell in cells] == [
        ("draft-free", 0),
        ("chain", 5),
        ("chain", 9),
        ("confidence_tree", 5),
        ("confidence_tree", 9),
    ]
    prompts, _ = load_prompts(recipe, fake_target())
    requests = [Request(one.prompt_ids, request_seed(0, one.prompt_ids)) for one in prompts]
    for cell in cells:
        settings = decode_settings(recipe).__class__(**{**vars(decode_settings(recipe)), "budget": cell.budget})
        drafter = make_drafter(cell.method, DrafterSources(settings.rule), cell.options)
        results = [r.result for r in decode(fake_target(), requests, settings, drafter) if r.result]
        nfe = [one.stats.nfe for one in sorted(results, key=lambda one: one.request)]
        assert cell.per_prompt.nfe == nfe
        assert cell.n == 8 and cell.mode == "replay" and cell.distribution_preserving
    assert cells[0].reduction == 1.0
    assert cells[1].options == {"depth": 3}


def test_by_default_every_method_with_its_sources_is_replayed_printed_and_kept(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "cells.jsonl"
    graph = str(shards.parent / "graph.json")
    arguments = ["replay", "--data", str(shards), "--budget", "6", "--limit", "4", "--graph", graph]
    assert run([*arguments, "--output", str(kept)]) == 0
    printed = capsys.readouterr().out
    rows = read_rows(kept)
    methods = [row.method for row in rows if isinstance(row, Cell)]
    assert methods == [
        *("draft-free", "chain", "trajectory_tree", "confidence_tree", "odds_tree", "calibrated_graph"),
        *("token_oracle", "position_oracle", "joint_oracle"),
    ]
    assert all(method in printed for method in methods)
    assert "4 trajectories (heldout), temperature 0" in printed
    reductions = {row.method: row.reduction for row in rows if isinstance(row, Cell)}
    assert 1 < reductions["chain"] <= reductions["joint_oracle"]
    assert reductions["position_oracle"] <= reductions["joint_oracle"]


def test_draft_free_writes_no_block_where_the_target_caches_none(shards: Path) -> None:
    opened = open_shards(shards)
    for writes in (True, False):
        trajectories = [replace(one, writes=writes) for one in opened.trajectories("heldout")]
        free, chain = replay_cells(
            opened, trajectories, [("draft-free", {}), ("chain", {})], [4], DrafterSources(opened.rule)
        )
        assert free.per_prompt.draft_free_nfe == free.per_prompt.nfe == chain.per_prompt.draft_free_nfe


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "calibrated_graph"], "--graph"),
        (["--method", "chain:width=2"], "no option 'width'"),
        (["--split", "test"], "use heldout, train or all"),
        (["--split", "train"], "no trajectory in split train"),
        (["--graph", "missing.json"], "missing.json"),
        (["--budget", "auto", "--cost-curve", "cpu-core", "--floor", "0.1"], "leave --floor out"),
    ],
)
def test_what_cannot_be_replayed_is_one_sentence(
    arguments: list[str], said: str, shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", "--data", str(shards), *arguments]) == 2
    printed = capsys.readouterr().err
    assert said in " ".join(printed.split())
    assert "Traceback" not in printed


def test_a_graph_is_calibrated_from_shards_on_the_command_line(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.yaml").write_text(
        json.dumps({"target": {"path_or_id": "fake"}, "prompts": {"sources": [{"path_or_id": "pool.jsonl"}]}})
    )
    sizes = ["--set", "calibrate.prompts=6", "--set", "calibrate.heldout=2", "--set", "calibrate.graph_size=5"]
    command = ["calibrate", "graph", str(tmp_path / "recipe.yaml"), "--data", str(shards), *sizes]
    assert run([*command, "--out", str(tmp_path / "graph.json")]) == 0
    assert "5 states" in capsys.readouterr().out
    assert run([*command, "--out", str(tmp_path / "graph.json"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["nodes"]) == 5
    assert run(["replay", "--data", str(shards), "--graph", str(tmp_path / "graph.json"), "--budget", "4"]) == 0
