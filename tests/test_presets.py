"""Presets: the paper's form and the default are two speeds of one decoder, and what is set beside a preset wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from collecting import fake_target, small_recipe, write_prompts
from fake_dlm import FakeTarget
from test_replay import order_drafter

from spot_infer.api import GenerationConfig, rounds
from spot_infer.drafters import ConfidenceTreeDrafter, OrderDrafter
from spot_infer.graph import looks_ahead, reads_responses
from spot_infer.presets import PRESETS, find_preset
from spot_infer.requests import Result, Round
from spot_infer.responses import RESPONSE
from spot_train.cli import run
from spot_train.collect.collect import collect
from spot_train.methods import beside_preset
from spot_train.recipe.recipe import parse_recipe

PAPER = {"merged": False, "response": 0.0, "ahead": False}
PROMPTS = [[2, 3, 4], [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]]


def decoded(**settings: Any) -> tuple[list[Round], list[Result]]:
    target = FakeTarget(block_length=8, vocab_size=30)
    done = list(rounds(target, PROMPTS, GenerationConfig(max_new_tokens=24, **settings), order_drafter(8)))
    return done, sorted((one.result for one in done if one.result), key=lambda one: one.request)


def test_the_papers_form_writes_blocks_apart_drafts_trees_and_returns_the_same_tokens() -> None:
    seen, ours = decoded(budget=8)
    paper_rounds, paper = decoded(budget=8, preset="paper")
    assert [one.tokens for one in paper] == [one.tokens for one in ours]
    assert all(one.stats.boundary == "separate" and one.stats.cache_writes for one in paper)
    assert all(one.stats.boundary == "seamless" and not one.stats.cache_writes for one in ours)
    for done, merged in ((seen, True), (paper_rounds, False)):
        assert {round_.graph.merged for round_ in done if round_.graph} == {merged}
    assert sum(one.stats.nfe for one in ours) < sum(one.stats.nfe for one in paper)
    assert {one.stats.boundary for one in decoded(preset="paper", boundary="fused")[1]} == {"fused"}
    assert {one.stats.boundary for one in decoded(budget=0)[1]} == {"separate"}


def test_a_preset_forms_the_drafters_that_have_a_form_and_leaves_options_that_were_given() -> None:
    paper = find_preset("paper")
    for one in (order_drafter(8), ConfidenceTreeDrafter(runner_up_below=0.3, drawn_confidence=True)):
        formed = paper.apply(one)
        settings = formed.settings if isinstance(formed, OrderDrafter) else formed
        assert not settings.merged and not reads_responses(formed)  # type: ignore[union-attr]
        assert not looks_ahead(formed)
        assert find_preset("default").apply(one) is one
    tree = paper.apply(ConfidenceTreeDrafter(runner_up_below=0.3, drawn_confidence=True))
    assert isinstance(tree, ConfidenceTreeDrafter) and (tree.runner_up_below, tree.drawn_confidence) == (0.3, True)
    assert beside_preset("spot", {"tau": 2.0}, paper) == {**PAPER, "tau": 2.0}
    chosen = {"merged": True, "response": 1}
    assert beside_preset("spot", chosen, paper) == {**PAPER, **chosen}
    assert beside_preset("chain", {}, paper) == {}


@pytest.mark.parametrize(
    ("decode", "boundary", "merged", "response"),
    [
        ({}, "auto", True, RESPONSE),
        ({"preset": "paper"}, "separate", False, 0.0),
        ({"preset": "paper", "boundary": "fused", "response": 0.5}, "fused", False, 0.5),
        ({"preset": "paper", "merged": True}, "separate", True, 0.0),
        ({"merged": False}, "auto", False, RESPONSE),
    ],
)
def test_a_recipe_holds_a_preset_and_what_is_set_beside_it(
    decode: dict[str, Any], boundary: str, merged: bool, response: float
) -> None:
    tree = {"target": {"path_or_id": "x"}, "prompts": {"sources": [{"path_or_id": "p.jsonl"}]}, "decode": decode}
    section = parse_recipe(tree).decode
    draft = section.draft_settings()
    assert (section.form().boundary, draft.merged, draft.response) == (boundary, merged, response)
    assert set(PRESETS) == {"default", "paper"}


def test_replay_and_simulate_take_the_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = write_prompts(tmp_path / "pool.jsonl", 8)
    recipe = small_recipe(pool, prompts={"heldout_fraction": 0.999}, collect={"max_new_tokens": 30})
    collect(recipe, tmp_path / "set", target=fake_target())
    shards = ["--data", str(tmp_path / "set"), "--budget", "6", "--json"]

    def cell(*arguments: str, method: str = "confidence_tree") -> dict[str, Any]:
        assert run(["replay", *shards, "--method", method, *arguments]) == 0
        return dict(json.loads(capsys.readouterr().out))

    paper = cell("--preset", "paper")
    assert paper["options"] == {"merged": False, "boundary": "separate"}
    spelt = cell("--boundary", "separate", method="confidence_tree:merged=false")
    assert paper["nfe"] == spelt["nfe"] > cell()["nfe"]
    for preset in ("default", "paper"):
        chosen = ["--method", "confidence_tree", "--preset", preset, "--curve", "gpu-roofline"]
        assert run(["simulate", *shards, *chosen]) == 0
    replayed = [json.loads(line)[0]["nfe"] for line in capsys.readouterr().out.splitlines()]
    assert replayed[0] < replayed[1] == paper["nfe"]
    assert run(["replay", *shards, "--method", "chain", "--preset", "ours"]) == 2
    assert "use default, paper" in capsys.readouterr().err
