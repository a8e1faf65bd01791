"""`shards merge` from and to URLs: the set that folders give, one writer at a time, no set where it was killed."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
from collecting import folder_bytes
from test_shards import make_set

from spot_infer.errors import SpotError
from spot_train.cli import run
from spot_train.shards.claim import WRITER, Claim
from spot_train.shards.copy import Place, copy_set
from spot_train.shards.merge import merge
from spot_train.shards.report import verify
from spot_train.shards.store import MANIFEST, shard_name

pytestmark = pytest.mark.usefixtures("store", "scratch")

ONE, TWO, OUT = (f"memory://bucket/{name}" for name in ("one", "two", "out"))


@pytest.fixture
def sets(tmp_path: Path) -> list[Path]:
    """Two sets in folders and behind URLs; the first holds a part of the second."""
    folders = [make_set(tmp_path / "one", 2), make_set(tmp_path / "two", 3)]
    for folder, url in zip(folders, (ONE, TWO), strict=True):
        copy_set(str(folder), url)
    return folders


def set_bytes(folder: Path) -> dict[str, bytes]:
    """Without what names the sources."""
    return {name: data for name, data in folder_bytes(folder).items() if name != "provenance.json"}


def test_urls_and_folders_merge_to_the_same_set(
    sets: list[Path], tmp_path: Path, store: fsspec.AbstractFileSystem
) -> None:
    expected = merge(sets, tmp_path / "expected")
    assert expected.dropped > 0
    for sources in ((ONE, TWO), (sets[0], TWO)):
        merged = merge(sources, OUT)
        assert merged.sentence() == expected.sentence().replace(expected.out, OUT)
        assert not store.exists(f"/bucket/out/{WRITER}")
        copy_set(OUT, str(tmp_path / "back"))
        assert set_bytes(tmp_path / "back") == set_bytes(tmp_path / "expected")
        with pytest.raises(SpotError, match=rf"^--out {OUT} already exists"):
            merge(sources, OUT)
        store.rm("/bucket/out", recursive=True)
    merge((ONE, TWO), tmp_path / "folder")
    assert set_bytes(tmp_path / "folder") == set_bytes(tmp_path / "expected")
    assert verify([tmp_path / "folder"]).problems == ()


def test_a_merge_that_was_killed_leaves_no_set_and_is_done_again(
    sets: list[Path], tmp_path: Path, store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, left = Place.write, [60]

    def write(self: Place, file: str, data: bytes) -> None:
        left[0] -= self.name == OUT
        if left[0] < 0:
            raise KeyboardInterrupt
        whole(self, file, data)

    with monkeypatch.context() as patch:
        patch.setattr(Place, "write", write)
        patch.setattr(Place, "remove", lambda self, file: None)
        with pytest.raises(KeyboardInterrupt):
            merge((ONE, TWO), OUT)
    assert store.exists(f"/bucket/out/{shard_name(1)}") and not store.exists(f"/bucket/out/{MANIFEST}")
    with pytest.raises(SpotError, match=f"{OUT} is being written by") as refused:
        merge((ONE, TWO), OUT)
    holder = str(refused.value).split("--take-over ")[1].split()[0]
    merge((ONE, TWO), OUT, take_over=holder)
    copy_set(OUT, str(tmp_path / "back"))
    merge(sets, tmp_path / "expected")
    assert set_bytes(tmp_path / "back") == set_bytes(tmp_path / "expected")


def test_a_merge_that_lost_its_claim_writes_no_manifest(
    sets: list[Path], store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Place.write

    def write(self: Place, file: str, data: bytes) -> None:
        whole(self, file, data)
        if self.name == OUT and file == f"{shard_name(0)}/zarr.json":
            store.pipe_file(f"/bucket/out/{WRITER}", b"another")

    monkeypatch.setattr(Place, "write", write)
    with pytest.raises(SpotError, match="was taken over"):
        merge((ONE, TWO), OUT)
    assert store.cat(f"/bucket/out/{WRITER}") == b"another"
    assert not store.exists(f"/bucket/out/{MANIFEST}")


def test_a_set_that_another_merge_finished_meanwhile_stays(
    sets: list[Path], store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Claim.take

    def take(self: Claim, take_over: str | None) -> None:
        monkeypatch.setattr(Claim, "take", whole)
        merge((ONE,), OUT)
        self.take(take_over)

    monkeypatch.setattr(Claim, "take", take)
    with pytest.raises(SpotError, match="already exists"):
        merge((ONE, TWO), OUT)
    assert not store.exists(f"/bucket/out/{WRITER}")
    monkeypatch.undo()
    assert verify([OUT]).problems == ()


def test_damage_behind_a_url_is_named_and_nothing_is_merged(
    sets: list[Path], tmp_path: Path, store: fsspec.AbstractFileSystem
) -> None:
    damaged = next(path for path in store.find("/bucket/two/part-00001.zarr") if "log_odds/c" in path)
    store.pipe_file(damaged, store.cat_file(damaged)[:-1])
    for out in (OUT, tmp_path / "folder"):
        with pytest.raises(SpotError, match=r"part-00001\.zarr has .* copy the set there again"):
            merge((ONE, TWO), out)
    assert not store.exists(f"/bucket/out/{MANIFEST}") and not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("source", "out", "said"),
    [
        (ONE, "folder", "own memory"),
        ("{set}", OUT, "own memory"),
        ("warp://x", "folder", "can't be opened"),
        ("file:///nowhere", "folder", "is not a folder"),
    ],
)
def test_what_can_not_be_merged_is_named(
    sets: list[Path], tmp_path: Path, source: str, out: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = out if out == OUT else str(tmp_path / out)
    assert run(["shards", "merge", source.replace("{set}", str(sets[0])), "--out", out]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "folder").exists()
