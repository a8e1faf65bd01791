"""Collection: what is recorded, what a shard's bits depend on, resuming, repairing, stopping and refusing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from collecting import (
    LEASE,
    PROMPTS,
    SignalAfter,
    collect_fake,
    fake_target,
    folder_bytes,
    small_recipe,
)
from small_target import save_small_target

from spot_infer.decode import decode
from spot_infer.errors import SpotError
from spot_infer.noise import request_seed
from spot_infer.requests import Request
from spot_infer.targets import load_target
from spot_train.collect.collect import collect, decode_settings
from spot_train.output_lock import Interrupted, output_lock
from spot_train.shards.store import open_shards, read_trajectories, shard_name, verify_shards

ALL_SHARDS = -(-PROMPTS // LEASE)


def test_every_prompt_is_recorded_as_the_decoder_decoded_it(prompts: Path, whole: Path) -> None:
    recipe, target = small_recipe(prompts), fake_target()
    rows = [json.loads(line)["prompt"] for line in prompts.read_text().splitlines()]
    requests = [Request(tuple(ids), request_seed(recipe.collect.seed, ids)) for ids in rows]
    rounds = list(decode(target, requests, decode_settings(recipe)))
    results = {round_.request: round_.result for round_ in rounds if round_.result is not None}
    recorded = list(read_trajectories(whole))
    assert len(recorded) == PROMPTS
    for index, trajectory in enumerate(recorded):
        steps = [step for round_ in rounds if round_.request == index for step in round_.steps]
        assert [trajectory.step(t) for t in range(len(trajectory))] == steps
        result = results[index]
        assert result is not None
        assert (trajectory.prompt_length, trajectory.seed) == (len(rows[index]), requests[index].seed)
        assert (trajectory.finish_reason, trajectory.returned_tokens) == (result.finish_reason, len(result.tokens))
        start = len(rows[index]) // 8 * 8
        canvas = np.concatenate([rows[index][:start], trajectory.block_tokens.reshape(-1)]).tolist()
        assert canvas[: len(rows[index])] == rows[index]
        assert tuple(canvas[len(rows[index]) :][: len(result.tokens)]) == result.tokens


def test_a_table_belongs_to_the_state_its_step_was_taken_from(whole: Path) -> None:
    for trajectory in read_trajectories(whole):
        for t in range(len(trajectory)):
            table = trajectory.table(t)
            slots = {commit.position - int(trajectory.block_start[t]) for commit in trajectory.step(t)}
            best = min(table.slots[table.log_odds == table.log_odds.max()].tolist())
            assert slots == {best}
            row = table.slots.tolist().index(best)
            assert {commit.token for commit in trajectory.step(t)} == {int(table.top_token[row, 0])}


def test_bits_depend_on_the_lease_alone(prompts: Path, whole: Path, tmp_path: Path) -> None:
    collect_fake(prompts, tmp_path / "again")
    assert folder_bytes(tmp_path / "again") == folder_bytes(whole)
    lines = prompts.read_text().splitlines(keepends=True)
    shorter = tmp_path / "prompts.jsonl"
    shorter.write_text("".join(lines[: 2 * LEASE]))
    collect_fake(shorter, tmp_path / "shorter")
    for index in range(2):
        arrays = [
            {name: data for name, data in folder_bytes(folder / shard_name(index)).items() if name != "zarr.json"}
            for folder in (whole, tmp_path / "shorter")
        ]
        assert arrays[0] == arrays[1]


def test_damage_is_repaired_to_the_same_bits(prompts: Path, whole: Path, tmp_path: Path) -> None:
    expected = folder_bytes(whole)
    damages = {
        "manifest deleted": lambda out: (out / "manifest.json").unlink(),
        "manifest cut": lambda out: (out / "manifest.json").write_text("{"),
        "shard deleted": lambda out: shutil.rmtree(out / shard_name(1)),
        "chunk deleted": lambda out: (out / shard_name(2) / "log_odds" / "c" / "0").unlink(),
        "chunk truncated": lambda out: os.truncate(out / shard_name(3) / "top_token" / "c" / "0" / "0", 100),
        "root deleted": lambda out: (out / shard_name(0) / "zarr.json").unlink(),
        "shards swapped": lambda out: (
            (out / shard_name(0)).rename(out / "x"),
            (out / shard_name(1)).rename(out / shard_name(0)),
            (out / "x").rename(out / shard_name(1)),
        ),
    }
    for name, damage in damages.items():
        out = tmp_path / name.replace(" ", "-")
        shutil.copytree(whole, out)
        damage(out)
        assert verify_shards(out), name
        with pytest.raises(SpotError):
            read_trajectories(out)
        summary = collect_fake(prompts, out)
        assert summary.plan.repaired, name
        assert summary.written == (0 if "manifest" in name else 2 if "swapped" in name else 1), name
        assert folder_bytes(out) == expected, name


def test_a_finished_collection_is_left_alone(prompts: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    target = fake_target()
    summary = collect(small_recipe(prompts), tmp_path / "out", target=target)
    assert (summary.written, target.forwards) == (0, 0)
    assert folder_bytes(tmp_path / "out") == folder_bytes(whole)


@pytest.mark.parametrize(
    ("number", "trajectories"),
    [(signal.SIGINT, 1), (signal.SIGINT, LEASE), (signal.SIGTERM, LEASE + 2)],
)
def test_a_signal_stops_between_shards(
    prompts: Path, whole: Path, tmp_path: Path, number: signal.Signals, trajectories: int
) -> None:
    handler = signal.getsignal(number)
    with pytest.raises(Interrupted, match="to resume") as caught:
        collect(small_recipe(prompts), tmp_path, fake_target(), SignalAfter(number, trajectories))
    assert caught.value.code == 128 + number
    assert signal.getsignal(number) is handler
    assert not list(tmp_path.glob("*.partial"))
    expected = folder_bytes(whole)
    left = folder_bytes(tmp_path)
    assert all(expected[name] == data for name, data in left.items() if name != "manifest.json")
    shards = json.loads((tmp_path / "manifest.json").read_text())["shards"]
    assert len(shards) == trajectories // LEASE
    collect_fake(prompts, tmp_path)
    assert folder_bytes(tmp_path) == expected


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"rule": {"resolution": "bfloat16"}}, "rule.resolution 'float32', this run has 'bfloat16'"),
        ({"sampling": {"temperature": 0.5}}, "sampling.temperature 0.0, this run has 0.5"),
        ({"collect": {"max_new_tokens": 21}}, "collect.max_new_tokens 20, this run has 21"),
        ({"collect": {"lease_prompts": 5}}, "collect.lease_prompts 4, this run has 5"),
        ({"prompts": {"heldout_fraction": 0.2}}, "prompts.heldout_fraction 0.3, this run has 0.2"),
    ],
)
def test_another_recipe_is_refused(
    prompts: Path, whole: Path, sections: dict[str, dict[str, object]], field: str
) -> None:
    before = folder_bytes(whole)
    with pytest.raises(SpotError, match=field.replace(".", r"\.")):
        collect_fake(prompts, whole, **sections)
    assert folder_bytes(whole) == before


def test_keys_that_only_say_where_to_run_may_change(prompts: Path, whole: Path) -> None:
    assert collect_fake(prompts, whole, target={"device": "cpu"}, fit={"epochs": 1}).written == 0


def test_another_target_or_pool_is_refused(prompts: Path, whole: Path, tmp_path: Path) -> None:
    other = fake_target()
    other.seed = 4
    other.__post_init__()
    with pytest.raises(SpotError, match=r"target\.name 'fake-3', this run has 'fake-4'"):
        collect(small_recipe(prompts), whole, target=other)
    changed = tmp_path / "prompts.jsonl"
    changed.write_text("".join(prompts.read_text().splitlines(keepends=True)[1:]))
    recipe = small_recipe(prompts)
    swapped = prompts.read_text()
    try:
        prompts.write_text(changed.read_text())
        with pytest.raises(SpotError, match=r"prompts\.sha256"):
            collect(recipe, whole, target=fake_target())
    finally:
        prompts.write_text(swapped)


def test_retrained_weights_are_another_target(prompts: Path, tmp_path: Path) -> None:
    recipe = small_recipe(prompts, prompts={"limit": 4}, collect={"max_new_tokens": 4})
    folders = [save_small_target(tmp_path / str(seed), seed) for seed in (0, 1)]
    targets = [load_target(folder, dtype="float32") for folder in folders]
    for target in targets:
        target.spec = replace(target.spec, name="same")
    collect(recipe, tmp_path / "out", target=targets[0])
    assert collect(recipe, tmp_path / "out", target=targets[0]).written == 0
    with pytest.raises(SpotError, match=r"target\.weights_hash"):
        collect(recipe, tmp_path / "out", target=targets[1])


def test_one_writer_a_folder(prompts: Path, tmp_path: Path) -> None:
    with output_lock(tmp_path), pytest.raises(SpotError, match=f"written by process {os.getpid()}"):
        collect_fake(prompts, tmp_path)
    assert collect_fake(prompts, tmp_path).written == ALL_SHARDS


def test_too_small_a_disk_is_refused_before_the_first_forward(prompts: Path, tmp_path: Path) -> None:
    target = fake_target()
    recipe = small_recipe(prompts, collect={"free_space_margin_bytes": 10**18})
    with pytest.raises(SpotError, match=r"1,000,0.* are needed .*free_space_margin_bytes"):
        collect(recipe, tmp_path, target=target)
    assert target.forwards == 0


def test_the_projected_size_bounds_what_is_written(prompts: Path, tmp_path: Path) -> None:
    recipe = small_recipe(prompts, collect={"ignore_stop": True, "max_new_tokens": 256}, prompts={"limit": 4})
    summary = collect(recipe, tmp_path, target=fake_target())
    assert not summary.plan.measured
    assert summary.tally.bytes / 4 < summary.plan.projected_bytes < summary.tally.bytes * 8


def test_a_full_disk_loses_nothing(prompts: Path, whole: Path, tmp_path: Path) -> None:
    renames = iter(range(100))

    def full() -> None:
        if next(renames) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(SpotError, match="the disk is full"):
        collect(small_recipe(prompts), tmp_path, fake_target(), before_rename=full)
    assert verify_shards(tmp_path) == ()
    assert not list(tmp_path.glob("*.partial"))
    assert len(open_shards(tmp_path).names) == 2
    collect_fake(prompts, tmp_path)
    assert folder_bytes(tmp_path) == folder_bytes(whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB, where this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs rights that this process lacks")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_fills_up_loses_nothing(prompts: Path, whole: Path, small_disk: Path) -> None:
    filler = small_disk / "filler"
    out = small_disk / "out"
    collect_fake(prompts, out, prompts={"limit": LEASE})
    shutil.rmtree(out)

    class Fill:
        def started(self, plan: object) -> None:
            """Leave room for a shard or two."""
            filler.write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 160 * 1024))

        def fitting(self, lease: int) -> None:
            """Nothing to do."""

        def advanced(self, tally: object) -> None:
            """Nothing to do."""

    with pytest.raises(SpotError, match="the disk is full"):
        collect(small_recipe(prompts), out, fake_target(), Fill())
    assert verify_shards(out) == () or not list(out.glob("part-*"))
    assert not list(out.glob("*.partial"))
    filler.unlink()
    expected = folder_bytes(whole)
    assert all(expected[name] == data for name, data in folder_bytes(out).items() if name != "manifest.json")
