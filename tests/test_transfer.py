"""A drafter on targets it wasn't trained on: what drives what, what is refused, and what is said about the rule."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from collecting import fake_target, small_recipe, write_prompts
from fake_trajectories import fake_trajectories
from second_target import save_second_target
from small_bench import Quiet, bench_options, cells, run_bench, save_bench_files
from small_target import REPO, save_small_target

from spot_infer import GenerationConfig, generate, load_drafter, load_target
from spot_infer import cli as infer
from spot_infer.checkpoint import DrafterInfo, PretrainedDrafter, save_drafter
from spot_infer.errors import SpotError
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_infer.targets.protocol import Target
from spot_infer.transition import CommitRule
from spot_train.cli import run
from spot_train.collect.collect import collect
from spot_train.fit.evaluate import evaluate
from spot_train.provenance import weights_hash
from spot_train.results import Cell, read_rows
from spot_train.shards import store as shard_sets

TEXTS = ["Add 3 and 4.", "Reverse the list [5, 2, 9]."]
COARSE = CommitRule(resolution="bfloat16")
MISMATCH = "the drafter was trained under rule.resolution=bfloat16 and runs under the default commit rule"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two targets of one block length, a sibling of another, and a drafter of either rule "trained" on the first."""
    place = tmp_path_factory.mktemp("transfer")
    save_small_target(place / "first")
    save_second_target(place / "second")
    save_small_target(place / "sibling", block_size=16)
    first = load_target(place / "first", dtype="float64")
    info = DrafterInfo(target={"name": "first", "block_length": 8, "weights_hash": weights_hash(first.model)})
    for seed, rule in enumerate((CommitRule(), COARSE)):
        torch.manual_seed(seed)
        config = OrderModelConfig(8, d_model=16, heads=2, layers=1, d_max=7, rule=rule)
        save_drafter(PretrainedDrafter(OrderModel(config), info=info), place / f"drafter-{rule.resolution}")
    return place


@pytest.fixture(scope="module")
def targets(folder: Path) -> dict[str, Target]:
    return {name: load_target(folder / name, dtype="float64") for name in ("first", "second", "sibling")}


def test_the_two_targets_share_a_block_length_and_nothing_else(targets: dict[str, Target]) -> None:
    one, other = targets["first"].spec, targets["second"].spec
    assert one.block_length == other.block_length != targets["sibling"].spec.block_length
    for name in ("vocab_size", "mask_id", "stop_ids", "tokenizer_hash", "template_hash"):
        assert getattr(one, name) != getattr(other, name), name


@pytest.mark.parametrize("name", ["first", "second"])
@pytest.mark.parametrize("rule", [CommitRule(), COARSE], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_drafter_drives_both_targets_and_changes_no_token(
    folder: Path, targets: dict[str, Target], name: str, rule: CommitRule, temperature: float
) -> None:
    drafter = load_drafter(folder / f"drafter-{rule.resolution}")
    config = GenerationConfig(max_new_tokens=20, rule=rule, temperature=temperature, budget=6, ignore_stop=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drafted = generate(targets[name], TEXTS, config, drafter)
    free = generate(targets[name], TEXTS, config)
    assert [one.tokens for one in drafted] == [one.tokens for one in free]
    assert sum(one.stats.accepted for one in drafted) > 0


def test_the_other_rule_is_named_and_costs_no_exactness(folder: Path, targets: dict[str, Target]) -> None:
    config = GenerationConfig(max_new_tokens=20, budget=6)
    with pytest.warns(UserWarning, match=MISMATCH):
        drafted = generate(targets["second"], TEXTS, config, load_drafter(folder / "drafter-bfloat16"))
    assert [one.tokens for one in drafted] == [one.tokens for one in generate(targets["second"], TEXTS, config)]


def _refused(capsys: pytest.CaptureFixture[str], words: str) -> bool:
    printed = " ".join(capsys.readouterr().err.split())
    return words in printed and "Traceback" not in printed


def test_another_block_length_is_refused_with_the_reason_and_leaves_nothing(
    folder: Path, targets: dict[str, Target], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "the drafter was trained for block length 8, the target decodes blocks of 16"
    drafter, output = str(folder / "drafter-float32"), tmp_path / "rows.jsonl"
    with pytest.raises(SpotError, match=reason):
        generate(targets["sibling"], TEXTS, GenerationConfig(max_new_tokens=4), load_drafter(drafter))
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "Add 3 and 4."}) + "\n")
    command = ["generate", "--target", str(folder / "sibling"), "--drafter", drafter]
    command += ["--input", str(tmp_path / "prompts.jsonl"), "--output", str(output)]
    assert infer.run(command) == 2 and _refused(capsys, reason) and not output.exists()
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"target: {{path_or_id: {folder / 'sibling'}}}\nprompts: {{sources: [{{path_or_id: x.jsonl}}]}}\n"
    )
    pool = str(REPO / "data" / "pools" / "eval.jsonl")
    command = ["compare", str(recipe), "--drafter", drafter, "--pool", pool, "--prompts", "1", "--output", str(output)]
    assert run(command) == 2 and _refused(capsys, reason) and not output.exists()
    with pytest.raises(SpotError, match="the data has block length 16, the drafter 8"):
        evaluate(load_drafter(drafter), fake_trajectories(count=2, block_length=16))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of a target without a network, under the default rule."""
    place = tmp_path_factory.mktemp("recorded")
    pool = write_prompts(place / "pool.jsonl", 4)
    changes = {"prompts": {"heldout_fraction": 0.999}, "collect": {"max_new_tokens": 12, "lease_prompts": 4}}
    collect(small_recipe(pool, **changes), place / "shards", target=fake_target())
    return place / "shards"


def _drafter_for(recorded: Path, folder: Path, rule: CommitRule, longer: int = 0) -> str:
    length = shard_sets.open_shards(recorded).block_length + longer
    config = OrderModelConfig(length, d_model=16, heads=2, layers=1, d_max=3, rule=rule)
    save_drafter(PretrainedDrafter(OrderModel(config)), folder)
    return str(folder)


def test_replay_and_eval_name_the_other_rule_and_refuse_another_block_length(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(recorded), "--budget", "3"]
    own, other = (_drafter_for(recorded, tmp_path / r.resolution, r) for r in (CommitRule(), COARSE))  # type: ignore[operator]
    for drafter, expected in ((own, None), (other, MISMATCH)):
        assert run(["replay", *data, "--drafter", drafter, "--output", str(tmp_path / "cells.jsonl")]) == 0
        assert (MISMATCH in " ".join(capsys.readouterr().out.split())) is (expected is not None)
        for row in read_rows(tmp_path / "cells.jsonl"):
            assert isinstance(row, Cell)
            said = str(row.provenance.get("warning", ""))
            assert said.startswith(MISMATCH) if row.method == "spot" and expected else not said
        (tmp_path / "cells.jsonl").unlink()
        assert run(["eval", *data, "--drafter", drafter]) == 0
        assert (MISMATCH in " ".join(capsys.readouterr().out.split())) is (expected is not None)
    wide = _drafter_for(recorded, tmp_path / "wide", CommitRule(), longer=1)
    for command in ("replay", "eval"):
        assert run([command, *data, "--drafter", wide]) == 2
        assert _refused(capsys, "block length")


def test_the_untrained_chain_of_eval_ranks_by_the_rule_of_the_data(recorded: Path, tmp_path: Path) -> None:
    drafter = load_drafter(_drafter_for(recorded, tmp_path / "drafter", COARSE))
    own = load_drafter(_drafter_for(recorded, tmp_path / "own", CommitRule()))
    data = list(shard_sets.read_trajectories(recorded))
    foreign, native = (evaluate(one, data, budgets=(3,), rule=CommitRule()) for one in (drafter, own))
    assert foreign["replay"]["chain"] == native["replay"]["chain"] and foreign["stale"] == native["stale"]
    assert foreign["warning"].startswith(MISMATCH) and "warning" not in native


def test_tables_of_another_width_are_refused(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_sets, "TOP_K", 16)
    with pytest.raises(SpotError, match="tables of the 32 likeliest tokens, but drafters of this release read 16"):
        shard_sets.open_shards(recorded)


def _transfer(folder: Path, out: Path, progress: Quiet, names: Sequence[str]) -> list[Cell]:
    recipe = save_bench_files(out.parent / f"files-{out.name}")
    (recipe.parent / "second.yaml").write_text(
        recipe.read_text().replace("./target", str(folder / "second")).replace("float64", "float32")
    )
    places = {name: str(folder / name) for name in names} | {"second": str(recipe.parent / "second.yaml")}
    drafters = tuple((name, str(folder / f"drafter-{name}")) for name in ("float32", "bfloat16"))
    chosen = bench_options(
        recipe, out, targets=tuple(places.items()), drafters=drafters, overrides={"target.dtype": "float64"}
    )
    return cells(run_bench(["transfer"], chosen, progress))


def test_the_suite_stars_the_native_target_and_says_what_it_left_out(folder: Path, tmp_path: Path) -> None:
    progress = Quiet()
    rows = _transfer(folder, tmp_path / "out", progress, ["first", "sibling"])
    drafted = [row for row in rows if row.drafter]
    assert {(row.target, row.drafter, str(row.rule["resolution"])) for row in drafted} == {
        (target, drafter, rule)
        for target in ("first", "second")
        for drafter in ("float32", "bfloat16")
        for rule in ("float32", "bfloat16")
    }
    assert all(row.native is (row.target == "first") for row in drafted)
    assert all(("warning" in row.provenance) is (row.drafter != row.rule["resolution"]) for row in drafted)
    assert {row.method for row in rows if row.target == "sibling"} == {"draft-free", "chain"}
    assert any("trained for block length 8, sibling decodes 16" in note for note in progress.notes)


def test_set_reaches_a_recipe_given_as_a_target(folder: Path, tmp_path: Path) -> None:
    _transfer(folder, tmp_path / "out", Quiet(), ["first"])
    facts = json.loads((tmp_path / "out" / "bench.json").read_text())["target settings"]
    assert {name: one["dtype"] for name, one in facts.items()} == {"first": "float64", "second": "float64"}


SHIPPED = {"tiny-sdar": "builtin:data/tiny-sdar-drafter", "tiny-llada2": "builtin:data/tiny-llada2-drafter"}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_drafters_drive_both_shipped_targets(name: str) -> None:
    target = load_target(f"builtin:data/{name}", dtype="float64")
    config = GenerationConfig(max_new_tokens=24, budget=8)
    (free,) = generate(target, TEXTS[1], config)
    for path in SHIPPED.values():
        (drafted,) = generate(target, TEXTS[1], config, load_drafter(path))
        assert drafted.tokens == free.tokens and drafted.stats.nfe < 0.6 * free.stats.nfe


def test_the_shipped_bfloat16_drafters_drive_the_second_target_under_their_rule() -> None:
    target = load_target("builtin:data/tiny-llada2", dtype="float64")
    config = GenerationConfig(max_new_tokens=32, budget=8, rule=CommitRule(resolution="bfloat16"))
    (free,) = generate(target, TEXTS[0], config)
    for path in SHIPPED.values():
        drafter = load_drafter(f"{path}-bf16")
        assert drafter.rule == config.rule
        (drafted,) = generate(target, TEXTS[0], config, drafter)
        assert drafted.tokens == free.tokens and drafted.stats.nfe < 0.5 * free.stats.nfe


def test_the_shipped_sibling_decodes_blocks_of_16_and_takes_no_shipped_drafter() -> None:
    sibling = load_target(REPO / "data" / "tiny-sdar-b16")
    (result,) = generate(sibling, "Add 3 and 4.", GenerationConfig(max_new_tokens=4))
    assert result.tokens and sibling.spec.block_length == 16
    for path in SHIPPED.values():
        with pytest.raises(SpotError, match="trained for block length 32, the target decodes blocks of 16"):
            generate(sibling, TEXTS, GenerationConfig(max_new_tokens=4), load_drafter(path))
