"""`spot-train shards`: what a set holds, whether it is sound, several sets as one, trajectories to look at."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from collecting import LEASE, PROMPTS, collect_fake, folder_bytes, small_recipe, write_prompts
from fake_trajectories import fake_trajectories
from format_1 import reseal
from test_shards import SHARED, assert_same, make_set, stored

from spot_infer.errors import SpotError
from spot_train.cli import run
from spot_train.fit.fit import fit
from spot_train.recipe.recipe import FitSection
from spot_train.replay.replay import draft_free
from spot_train.shards.files import check_shard, read_shard, write_shard
from spot_train.shards.merge import merge
from spot_train.shards.report import describe, verify
from spot_train.shards.sample import leftmost_share, sample
from spot_train.shards.source import open_source
from spot_train.shards.store import open_shards, shard_name, shard_paths, write_manifest

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two collections of one fake target under one rule, from two pools that share 5 prompts; not to be changed."""
    folder = tmp_path_factory.mktemp("halves")
    lines = write_prompts(folder / "all.jsonl", PROMPTS).read_text().splitlines(keepends=True)
    (folder / "a.jsonl").write_text("".join(lines[:10]))
    (folder / "b.jsonl").write_text("".join(lines[5:]))
    for name in "ab":
        collect_fake(folder / f"{name}.jsonl", folder / name, collect={"batch_size": 3 if name == "a" else 2})
    return [folder / "a", folder / "b"]


def test_info_adds_up(halves: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shards", "info", str(halves[0]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    trajectories = list(open_shards(halves[0]).trajectories())
    assert (found["trajectories"], found["shards"], found["leases"]) == (10, 3, 3)
    assert found["commits"] == sum(len(one.commit_token) for one in trajectories)
    assert found["rows"] == sum(len(one.slot) for one in trajectories)
    assert found["nfe"] == sum(draft_free(one).nfe for one in trajectories)
    files = [file for shard in shard_paths(halves[0]) for file in shard.rglob("*") if file.is_file()]
    assert found["bytes"] == sum(file.stat().st_size for file in files)
    roots = sum(file.stat().st_size for file in files if file.parent in shard_paths(halves[0]))
    assert sum(array["bytes"] for array in found["arrays"].values()) == found["bytes"] - roots
    assert run(["shards", "info", str(halves[0])]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "3 of 3 shards, complete" in printed
    assert f"{found['bytes'] / found['commits']:,.0f} bytes a commit" in printed
    assert "3 shards by draft-free" in printed
    assert "resolution float32" in printed and "top_logprob" in printed


def test_sound_sets_get_one_line(halves: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shards", "verify", str(halves[0])]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert "3 of 3 shards sound, 10 trajectories" in printed and "no duplicates" in printed
    assert run(["shards", "verify", *map(str, halves)]) == 0
    assert "in 2 sets, 23 trajectories" in (printed := capsys.readouterr().out)
    assert "5 in more than one set" in printed


def test_every_damaged_shard_is_named(halves: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(halves[0], tmp_path / "set")
    for index in (0, 2):
        (tmp_path / "set" / shard_name(index) / "slot" / "c" / "0").unlink()
    assert run(["shards", "verify", str(halves[1]), str(tmp_path / "set")]) == 2
    printed = capsys.readouterr()
    assert [shard_name(index) in printed.out for index in range(3)] == [True, False, True]
    assert "part-00000.zarr lacks its file slot/c/0" in printed.err and "(1 more)" in printed.err
    assert run(["shards", "verify", str(tmp_path)]) == 2
    assert "has no manifest.json" in capsys.readouterr().err


def test_a_repeated_prompt_inside_a_set_is_a_fault(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "set", 1)
    attributes = {**SHARED, "lease": {"index": 1}}
    repeat = list(read_shard(folder / shard_name(0)))[1:]
    written = {
        shard_name(0): check_shard(folder / shard_name(0)),
        shard_name(1): write_shard(folder / shard_name(1), repeat, attributes),
    }
    write_manifest(folder, SHARED, {}, {}, 2, written)
    (problem,) = verify([folder]).problems
    assert "2 trajectories repeat" in problem
    assert merge([folder], tmp_path / "merged").dropped == 2
    assert verify([tmp_path / "merged"]).problems == ()


def test_arrays_that_match_their_checksums_but_not_the_schema(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "set", 1)
    for name, expected in (("log_odds", "log_odds as float16"), ("extra", "holds extra"), ("step_start", "don't cut")):
        shard = tmp_path / name / shard_name(0)
        shutil.copytree(folder / shard_name(0), shard)
        group = zarr.open_group(shard, mode="r+")
        if name == "step_start":
            starts = np.asarray(group[name][...])
            group[name][...] = np.concatenate([starts[:1], starts[:0:-1]])
        else:
            group.create_array(name, data=np.zeros(group["log_odds"].shape, np.float16), overwrite=True)
        reseal(shard)
        write_manifest(tmp_path / name, SHARED, {}, {}, 1, {shard_name(0): check_shard(shard)})
        (problem,) = verify([tmp_path / name]).problems
        assert expected in problem


def test_merged_sets_hold_each_trajectory_once(halves: list[Path], tmp_path: Path) -> None:
    merged = merge(halves, tmp_path / "c")
    assert (merged.trajectories, merged.dropped) == (PROMPTS, 5)
    assert verify([merged.out]).problems == ()
    one = [each for half in halves for each in open_shards(half).trajectories()]
    expected = list({each.prompt_hash: each for each in reversed(one)}.values())
    found = {each.prompt_hash: each for each in open_shards(merged.out).trajectories()}
    assert len(found) == PROMPTS
    for each in expected:
        assert found[each.prompt_hash].commit_token.tolist() == each.commit_token.tolist()
    for each in one[:10]:
        assert_same(each, found[each.prompt_hash])
    shards = open_shards(merged.out)
    assert shards.complete
    assert shards.count("heldout") == len(list(shards.trajectories("heldout")))
    assert [part["decoding"]["batch_size"] for part in shards.attributes["merged"]] == [3, 2]
    assert [Path(one["path_or_id"]).name for one in shards.attributes["prompts"]["sources"]] == ["a.jsonl", "b.jsonl"]
    assert shards.manifest["prompts"]["skipped"]["duplicate"] == 5
    describe(merged.out)


def test_merging_is_repeatable_and_nests(halves: list[Path], tmp_path: Path) -> None:
    for name in ("one", "two"):
        merge(halves[:1], tmp_path / name)
    assert folder_bytes(tmp_path / "one") == folder_bytes(tmp_path / "two")
    again = merge([tmp_path / "one", *halves[:1]], tmp_path / "three")
    assert (again.trajectories, again.dropped) == (10, 10)
    assert len(open_shards(again.out).attributes["merged"]) == 2


def test_a_merged_set_trains(halves: list[Path], tmp_path: Path) -> None:
    shards = open_shards(merge(halves, tmp_path / "c").out)
    section = FitSection(max_steps=2, epochs=1, batch_size=8, d_max=3, replay_trajectories=1)
    out = fit(section, shards.trajectories("train"), shards.trajectories("heldout"), tmp_path / "fit", rule=shards.rule)
    assert out.exists()


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"rule": {"resolution": "bfloat16"}}, r"rule\.resolution 'bfloat16' where .* 'float32'"),
        ({"collect": {"max_new_tokens": 12}}, r"decoding\.max_new_tokens 12"),
        ({"prompts": {"heldout_fraction": 0.2}}, r"prompts\.heldout_fraction 0\.2"),
    ],
)
def test_mixed_sets_are_refused(
    halves: list[Path], tmp_path: Path, sections: dict[str, dict[str, object]], field: str
) -> None:
    other = tmp_path / "other"
    collect_fake(write_prompts(tmp_path / "p.jsonl", 4), other, **sections)
    with pytest.raises(SpotError, match=field):
        merge([halves[0], other], tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_merge_writes_whole_sets_or_none(
    halves: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    with pytest.raises(Killed):
        merge(halves, tmp_path / "c", before_rename=die)
    assert list(tmp_path.iterdir()) == []
    arguments = ["shards", "merge", *map(str, halves), "--out", str(tmp_path / "c")]
    assert run(arguments) == 0
    assert f"{PROMPTS} trajectories" in capsys.readouterr().out
    assert run(arguments) == 2
    assert "already exists" in capsys.readouterr().err
    with pytest.raises(SpotError, match="was merged from other sets"):
        collect_fake(halves[0].parent / "a.jsonl", tmp_path / "c")
    damaged = tmp_path / "damaged"
    shutil.copytree(halves[1], damaged)
    (damaged / shard_name(0) / "slot" / "c" / "0").write_bytes(b"")
    with pytest.raises(SpotError, match=r"part-00000\.zarr"):
        merge([halves[0], damaged], tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_seeds_tell_trajectories_apart_where_tokens_are_drawn(tmp_path: Path) -> None:
    pool = write_prompts(tmp_path / "p.jsonl", 4)
    warm = {"sampling": {"temperature": 1.0}}
    collect_fake(pool, tmp_path / "a", **warm)
    collect_fake(pool, tmp_path / "b", **warm, collect={"seed": 1})
    assert merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c").trajectories == 8
    assert verify([tmp_path / "c"]).problems == ()
    assert merge([tmp_path / "a", tmp_path / "a"], tmp_path / "d").dropped == 4


def test_samples_are_spread_over_the_set(halves: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    shards = open_shards(halves[1])
    source = open_source(str(halves[1]))
    chosen = list(sample(source, 4))
    places = [int(name[5:10]) * LEASE + place for name, place, _ in chosen]
    assert places == [0, 4, 8, 12]
    everything = list(shards.trajectories())
    for place, (_, _, item) in zip(places, chosen, strict=True):
        assert_same(item.trajectory, everything[place])
    assert len(list(sample(source, 99))) == len(everything)
    assert run(["shards", "sample", str(halves[1]), "-n", "2"]) == 0
    printed = capsys.readouterr().out
    assert "ids instead of text" in printed
    assert printed.count("finished by") == 2
    first = everything[0]
    (commit,) = first.step(0)
    assert f"{commit.token}₁ " in printed


def test_samples_of_the_tiny_target_are_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from spot_infer.targets import load_target
    from spot_train.collect.collect import collect

    recipe = small_recipe(REPO / "data" / "pools" / "heldout.jsonl", collect={"max_new_tokens": 8, "lease_prompts": 1})
    tree = recipe.model_copy(
        update={
            "prompts": recipe.prompts.model_copy(update={"limit": 1}),
            "target": recipe.target.model_copy(update={"path_or_id": "builtin:data/tiny-sdar"}),
        }
    )
    collect(tree, tmp_path / "set", target=load_target("builtin:data/tiny-sdar", dtype="float32"))
    assert run(["shards", "sample", str(tmp_path / "set"), "-n", "1"]) == 0
    printed = capsys.readouterr().out
    assert "assistant" in printed and "₁" in printed
    assert run(["shards", "sample", str(tmp_path / "set"), "--tokenizer", str(tmp_path)]) == 2
    assert "no tokenizer" in capsys.readouterr().err


def test_the_leftmost_share_counts_left_to_right_steps() -> None:
    shares = [leftmost_share(one) for one in fake_trajectories()]
    for one, share in zip(fake_trajectories(), shares, strict=True):
        hits = 0
        for step in range(len(one)):
            open_slots = {int(slot) + int(one.block_start[step]) for slot in one.table(step).slots}
            hits += min(open_slots) in {commit.position for commit in one.step(step)}
        assert share == hits / len(one)
    assert stored(fake_trajectories()) and 0 < max(shares) <= 1
