"""Sets of format version 1 hold float16 logs: everything reads them as the same tables and mixes them with new ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from collecting import LEASE, collect_fake, folder_bytes, write_prompts
from format_1 import as_version_1
from rich.console import Console
from test_shards import assert_same

from spot_infer.drafters import OrderDrafter
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_train.shards.copy import copy_set
from spot_train.shards.files import read_array, read_attributes
from spot_train.shards.merge import merge
from spot_train.shards.probability_study import EIGHT_BITS, FLOAT16, study
from spot_train.shards.report import describe, verify
from spot_train.shards.store import open_shards, shard_name
from spot_train.shards.view import print_study

PROMPTS = LEASE + 1


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("formats")
    collect_fake(write_prompts(place / "pool.jsonl", PROMPTS), place / "new")
    return place / "new"


@pytest.fixture(scope="module")
def old(new: Path) -> Path:
    folder = new.with_name("old")
    shutil.copytree(new, folder)
    as_version_1(folder, *open_shards(folder).names)
    return folder


def test_a_set_of_version_1_reads_as_live_tables(new: Path, old: Path, tmp_path: Path) -> None:
    first = open_shards(new).names[0]
    stored, fresh = (read_array(folder / first, "top_logprob") for folder in (old, new))
    assert (stored.dtype, fresh.dtype) == (np.float16, np.uint8)
    ones, others = (list(open_shards(folder).trajectories()) for folder in (old, new))
    assert len(ones) == PROMPTS
    assert not np.array_equal(stored[: len(ones[0].slot)], ones[0].top_logprob), "the old set holds nothing to round"
    for one, other in zip(ones, others, strict=True):
        assert_same(one, other)
    assert verify([old]).problems == ()
    copy_set(str(old), str(tmp_path / "copy"))
    assert verify([tmp_path / "copy", new]).repeated == PROMPTS


def test_merging_writes_the_new_format(new: Path, old: Path, tmp_path: Path) -> None:
    merged = merge([old, new], tmp_path / "merged")
    assert (merged.trajectories, merged.dropped) == (PROMPTS, PROMPTS)
    out, names = Path(merged.out), open_shards(merged.out).names
    assert {read_attributes(out / name)["format_version"] for name in names} == {2}
    for name in names:
        np.testing.assert_array_equal(read_array(out / name, "top_logprob"), read_array(new / name, "top_logprob"))


def test_collection_goes_on_with_a_set_of_version_1(new: Path, old: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    shutil.copytree(old, folder)
    shutil.rmtree(folder / shard_name(1))
    summary = collect_fake(new.with_name("pool.jsonl"), folder)
    assert summary.written == 1
    assert folder_bytes(folder / shard_name(1)) == folder_bytes(new / shard_name(1))
    assert folder_bytes(folder / shard_name(0)) == folder_bytes(old / shard_name(0))
    assert verify([folder]).problems == ()
    for one, other in zip(open_shards(folder).trajectories(), open_shards(new).trajectories(), strict=True):
        assert_same(one, other)
    assert describe(folder)["arrays"]["top_logprob"]["dtype"] == "float16 or uint8"


def test_a_study_compares_with_what_the_set_holds(new: Path, old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafter = OrderDrafter(OrderModel(OrderModelConfig(8, d_model=16, heads=2, layers=1)))
    exact, rounded = (study(open_shards(folder), drafter, (4,), limit=1) for folder in (old, new))
    assert [row["encoding"] for row in exact] == [one.name for one in FLOAT16]
    assert [row["encoding"] for row in rounded] == [one.name for one in EIGHT_BITS]
    assert exact[0]["largest_error"] == rounded[0]["largest_error"] == 0 < exact[3]["largest_error"] < 0.01
    sizes = [row["bytes_a_commit"] for row in (exact[3], rounded[0])]
    assert sizes[0]["probabilities"] == sizes[1]["probabilities"]
    assert exact[0]["bytes_a_commit"]["probabilities"] > 1.5 * sizes[0]["probabilities"]
    print_study(Console(), exact)
    printed = capsys.readouterr().out
    assert "float16 raw" in printed and "nan" not in printed and "±" not in printed
