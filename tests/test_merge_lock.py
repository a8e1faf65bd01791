"""`shards merge` into a folder: one job at a time, never into one of its sets, nothing left of one that was killed."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest
from collecting import folder_bytes
from test_shards import make_set

from spot_infer.errors import SpotError
from spot_train.cli import run
from spot_train.output_lock import LOCK, output_lock, process_name
from spot_train.shards.merge import merge
from spot_train.shards.report import verify
from spot_train.shards.store import MANIFEST


@pytest.fixture
def sets(tmp_path: Path) -> list[Path]:
    return [make_set(tmp_path / "one", 1), make_set(tmp_path / "two", 2)]


def test_a_second_merge_into_a_folder_is_refused_with_the_first_ones_name(sets: list[Path], tmp_path: Path) -> None:
    out, refused = tmp_path / "out", []

    def second() -> None:
        with pytest.raises(SpotError) as error:
            merge(sets[:1], out)
        refused.append(str(error.value))

    merge(sets, out, before_rename=second)
    assert refused[0].startswith(f"{out} is being written by process {process_name()}; wait for it to end")
    assert f"--take-over {process_name()}" in refused[0]
    assert verify([out]).problems == ()
    merge(sets, tmp_path / "alone")
    assert folder_bytes(out) == folder_bytes(tmp_path / "alone")


def test_a_merge_whose_lock_was_broken_writes_nothing_more(sets: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"

    def taken() -> None:
        merge(sets[:1], out, take_over=process_name())

    with pytest.raises(SpotError, match=r"the lock of .*out was taken over"):
        merge(sets, out, before_rename=taken)
    merge(sets[:1], tmp_path / "alone")
    assert folder_bytes(out) == folder_bytes(tmp_path / "alone")


def test_what_a_killed_merge_left_is_no_set(sets: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_set(out / "x.partial", 1)
    (out / LOCK).write_text("1@elsewhere\n")
    merge(sets, out)
    assert not list(out.glob("*.partial"))
    merge(sets, tmp_path / "alone")
    assert folder_bytes(out) == folder_bytes(tmp_path / "alone")


@pytest.mark.parametrize("moved", range(5))
def test_a_merge_killed_while_it_moves_its_shards_is_begun_again(sets: list[Path], tmp_path: Path, moved: int) -> None:
    """`moved`: of three shards, provenance and manifest."""
    out, left, rename = tmp_path / "out", [moved], os.rename

    def killed(source: Path, target: Path) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        rename(source, target)

    with patch("spot_train.shards.new_set.os.rename", killed), pytest.raises(KeyboardInterrupt):
        merge(sets, out)
    assert not (out / MANIFEST).exists()
    merge(sets, out)
    merge(sets, tmp_path / "alone")
    assert folder_bytes(out) == folder_bytes(tmp_path / "alone")


def test_shards_without_a_manifest_are_kept_where_no_merge_left_them(sets: list[Path], tmp_path: Path) -> None:
    (sets[0] / MANIFEST).unlink()
    before = folder_bytes(sets[0])
    with pytest.raises(SpotError, match="already exists"):
        merge(sets[1:], sets[0])
    assert folder_bytes(sets[0]) == before


def test_a_folder_that_another_command_writes_is_refused(sets: list[Path], tmp_path: Path) -> None:
    with output_lock(tmp_path / "out"), pytest.raises(SpotError, match="is being written by process"):
        merge(sets, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", ["{set}", "{set}/merged", "file://{set}/merged", "local://{set}/merged"])
def test_a_set_is_not_merged_into_itself(sets: list[Path], out: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder_bytes(sets[1])
    place = out.format(set=sets[1])
    source = f"local://{sets[1]}" if out.startswith("local") else str(sets[1])
    assert run(["shards", "merge", str(sets[0]), source, "--out", place]) == 2
    said = capsys.readouterr().err
    assert f"--out {place} is the set {source} itself or lies in it" in said and said.count("\n") == 1
    assert folder_bytes(sets[1]) == before
