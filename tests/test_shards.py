"""Shards hold what they were given, bit for bit, and damage of any kind is named and never read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from fake_trajectories import fake_trajectories
from hypothesis import given, settings
from hypothesis import strategies as st

from spot_infer.errors import SpotError
from spot_infer.transition import CommitRule
from spot_train.shards.files import Damaged, StoredTrajectory, check_shard, read_shard, write_shard
from spot_train.shards.store import (
    common_attributes,
    differing_field,
    open_shards,
    read_trajectories,
    shard_name,
    verify_shards,
    write_manifest,
)
from spot_train.trajectory import Trajectory

SHARED = {
    "target": {"name": "fake", "mask_id": 39},
    "block_length": 8,
    "rule": CommitRule().to_dict(),
    "sampling": {"temperature": 0.0, "top_k": 0, "top_p": 1.0},
    "decoding": {"max_new_tokens": 30},
    "versions": {"zarr": zarr.__version__},
}


def stored(trajectories: tuple[Trajectory, ...]) -> list[StoredTrajectory]:
    digests = [hashlib.sha256(bytes([index])).hexdigest() for index in range(len(trajectories))]
    return [
        StoredTrajectory(trajectory, digest, index % 3 == 1)
        for index, (trajectory, digest) in enumerate(zip(trajectories, digests, strict=True))
    ]


def make_set(folder: Path, shards: int = 3, **changed: object) -> Path:
    """A set of `shards` shards of three trajectories each."""
    folder.mkdir(parents=True, exist_ok=True)
    common = {**SHARED, **changed}
    written = {}
    for index in range(shards):
        attributes = {**common, "lease": {"index": index}}
        name = shard_name(index)
        written[name] = write_shard(folder / name, stored(fake_trajectories(count=3, seed=index)), attributes)
    write_manifest(folder, common, {}, {}, shards, written)
    return folder


def assert_same(one: Trajectory, other: Trajectory) -> None:
    """But for the limit, which is the set's."""
    for field in dataclasses.fields(Trajectory):
        if field.name in ("max_new_tokens", "stop_ids"):
            continue
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
            np.testing.assert_array_equal(left, right, err_msg=field.name)
        else:
            assert left == right, field.name


@settings(max_examples=10)
@given(
    count=st.integers(1, 5),
    length=st.sampled_from([4, 8]),
    new_tokens=st.integers(1, 30),
    temperature=st.sampled_from([0.0, 1.0]),
    quota=st.integers(1, 3),
)
def test_a_shard_reads_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    length: int,
    new_tokens: int,
    temperature: float,
    quota: int,
) -> None:
    rule = CommitRule(selection="quota", quota=quota)
    items = stored(fake_trajectories(count, length, new_tokens, 1, temperature, rule))
    folder = tmp_path_factory.mktemp("shard")
    attributes = {**SHARED, "block_length": length}
    write_shard(folder / "one", items, attributes)
    back = list(read_shard(folder / "one"))
    assert [(item.content_hash, item.heldout) for item in back] == [(i.content_hash, i.heldout) for i in items]
    for item, read in zip(items, back, strict=True):
        assert_same(item.trajectory, read.trajectory)
    write_shard(folder / "two", items, attributes)
    for file in sorted((folder / "one").rglob("*")):
        if file.is_file():
            assert file.read_bytes() == (folder / "two" / file.relative_to(folder / "one")).read_bytes()


def test_a_shard_is_an_ordinary_zarr_group(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "set", 1)
    group = zarr.open_group(folder / shard_name(0), mode="r")
    assert group.metadata.zarr_format == 3
    assert group["top_logprob"].dtype == np.uint8
    assert group["log_odds"].dtype == np.float32
    assert group.attrs["rule"] == CommitRule().to_dict()
    assert "sharding_indexed" in (folder / shard_name(0) / "slot" / "zarr.json").read_text()


def test_splits_partition_the_set_in_order(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "set")
    everything = [item.prompt_hash for item in read_trajectories(folder)]
    train = [item.prompt_hash for item in read_trajectories(folder, "train")]
    heldout = [item.prompt_hash for item in read_trajectories(folder, "heldout")]
    assert len(everything) == 9
    assert len(heldout) == 3
    assert heldout == everything[1::3]
    assert train == [one for place, one in enumerate(everything) if place % 3 != 1]
    with pytest.raises(SpotError, match="split is 'test'"):
        read_trajectories(folder, "test")  # type: ignore[arg-type]


def test_no_damaged_file_is_ever_read(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "set", 1)
    shard = folder / shard_name(0)
    files = sorted(path.relative_to(shard) for path in shard.rglob("*") if path.is_file())
    assert len(files) > 30
    for file in files:
        whole = (shard / file).read_bytes()
        flipped = bytes([*whole[:-1], whole[-1] ^ 1])
        for damaged in (None, whole[:-1], flipped, b""):
            if damaged is None:
                (shard / file).unlink()
            else:
                (shard / file).write_bytes(damaged)
            with pytest.raises(Damaged, match=shard_name(0)) as caught:
                list(read_shard(shard))
            assert str(file) in str(caught.value) or "attributes" in str(caught.value)
            problems = verify_shards(folder)
            assert len(problems) == 1
            assert "spot-train collect" in problems[0]
            with pytest.raises(SpotError, match=shard_name(0)):
                read_trajectories(folder)
        (shard / file).write_bytes(whole)
    assert verify_shards(folder) == ()


def test_zarr_alone_would_read_a_deleted_chunk_as_zeros(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "set", 1)
    (folder / shard_name(0) / "log_odds" / "c" / "0").unlink()
    assert not np.any(zarr.open_group(folder / shard_name(0), mode="r")["log_odds"][...])
    with pytest.raises(SpotError, match="lacks its file log_odds/c/0"):
        read_trajectories(folder)


def test_missing_pieces_are_named(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "set")
    manifest = (folder / "manifest.json").read_bytes()
    shutil.rmtree(folder / shard_name(1))
    assert [shard_name(1) in problem and "missing" in problem for problem in verify_shards(folder)] == [True]
    (folder / "manifest.json").unlink()
    with pytest.raises(SpotError, match=r"shards but no manifest\.json"):
        open_shards(folder)
    lacking = [manifest.replace(f'"{key}"'.encode(), b'"other"') for key in ("sampling", "target", "counts", "sha256")]
    for damaged in (manifest[:-20], *lacking, manifest.replace(b'"heldout": ', b'"heldout": "no", "x": ')):
        (folder / "manifest.json").write_bytes(damaged)
        with pytest.raises(SpotError, match=r"manifest\.json is damaged"):
            open_shards(folder)
    (folder / "manifest.json").write_bytes(manifest.replace(b'"format_version": 1', b'"format_version": 7'))
    with pytest.raises(SpotError, match="format version 7"):
        open_shards(folder)
    with pytest.raises(SpotError, match="is not a folder"):
        open_shards(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpotError, match=r"has no manifest\.json"):
        open_shards(tmp_path / "empty")


def test_sets_are_not_mixed(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "set")
    other = make_set(tmp_path / "other", rule=CommitRule(resolution="bfloat16").to_dict())
    shutil.copytree(other / shard_name(0), folder / "part-00009.zarr")
    with pytest.raises(SpotError, match=r"part-00009\.zarr has rule\.resolution 'bfloat16' .* 'float32'"):
        read_trajectories(folder)
    shutil.rmtree(folder / "part-00009.zarr")
    swapped = make_set(tmp_path / "swapped")
    shutil.rmtree(swapped / shard_name(0))
    shutil.copytree(swapped / shard_name(1), swapped / shard_name(0))
    assert any("not the one" in problem for problem in verify_shards(swapped))


def test_an_unlisted_shard_of_the_same_set_is_not_read(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "set")
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["shards"][shard_name(2)]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    shards = open_shards(folder)
    assert not shards.complete
    assert shards.names == (shard_name(0), shard_name(1))
    assert len(list(shards.trajectories())) == 6


def test_a_future_shard_is_refused_rather_than_repaired(tmp_path: Path) -> None:
    folder = make_set(tmp_path / "set", 1)
    file = folder / shard_name(0) / "zarr.json"
    file.write_text(file.read_text().replace('"format_version": 2', '"format_version": 3'))
    with pytest.raises(SpotError, match="format version 3") as caught:
        check_shard(folder / shard_name(0))
    assert not isinstance(caught.value, Damaged)


def test_the_differing_field_is_named() -> None:
    one = common_attributes({**SHARED, "lease": {"index": 1}, "sha256": "x"})
    assert differing_field(one, {**SHARED, "versions": {}}) is None
    assert differing_field(one, {**SHARED, "block_length": 16}) == ("block_length", 8, 16)
    assert differing_field(one, {**SHARED, "target": {"name": "fake", "mask_id": 1}}) == ("target.mask_id", 39, 1)
    assert differing_field(one, {**SHARED, "more": 1}) == ("more", None, 1)


def test_the_set_knows_what_it_was_decoded_with(tmp_path: Path) -> None:
    shards = open_shards(make_set(tmp_path / "set"))
    assert shards.complete
    assert (shards.block_length, shards.mask_id, shards.rule) == (8, 39, CommitRule())
    assert shards.sampling.temperature == 0
    assert shards.count("trajectories") == 9
    assert shards.count("heldout") == 3
    assert shards.count("commits") == sum(len(t.commit_token) for t in shards.trajectories())


def test_trajectories_of_full_attention_say_that_no_block_was_written(tmp_path: Path) -> None:
    exact = open_shards(make_set(tmp_path / "exact"))
    full = open_shards(make_set(tmp_path / "full", target={**SHARED["target"], "cache": "prefix"}))  # type: ignore[dict-item]
    assert [any(one.writes for one in shards.trajectories()) for shards in (exact, full)] == [True, False]
