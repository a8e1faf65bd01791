"""Sets of shards through an object store and back: bit for bit, resumable, and never half a set."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from collecting import folder_bytes
from test_shards import SHARED, make_set

from spot_infer.errors import SpotError
from spot_train.cli import run
from spot_train.shards.copy import Place, copy_set, read_manifest
from spot_train.shards.fetch import fetch
from spot_train.shards.shown import quoted, without_secrets
from spot_train.shards.store import MANIFEST, open_shards, verify_shards

pytestmark = pytest.mark.usefixtures("store")

STORE = "memory://bucket/set"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("copy") / "set")


def test_there_and_back(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert copy_set(str(shards), STORE).copied == 3
    assert copy_set(STORE, str(tmp_path / "store")).copied == 3
    assert run(["shards", "copy", str(tmp_path / "store"), str(tmp_path / "back")]) == 0
    assert "3 shards, 3 copied" in capsys.readouterr().out
    assert folder_bytes(tmp_path / "back") == folder_bytes(shards)
    assert len(list(open_shards(tmp_path / "back").trajectories())) == 9
    assert run(["shards", "copy", str(tmp_path / "store"), str(tmp_path / "back")]) == 0
    assert "0 copied (0 bytes), 3 there already" in capsys.readouterr().out


@pytest.mark.parametrize("writes", [0, 1, 7, 25, 60])
def test_a_copy_that_was_cut_short_is_no_set_and_goes_on(
    shards: Path, tmp_path: Path, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, whole = [writes], Place.write

    def write(self: Place, file: str, data: bytes) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        whole(self, file, data)

    for target in (STORE, str(tmp_path / "copy")):
        left[0] = writes
        with monkeypatch.context() as patch:
            patch.setattr(Place, "write", write)
            with pytest.raises(KeyboardInterrupt):
                copy_set(str(shards), target)
        with pytest.raises(SpotError, match=r"no manifest\.json"):
            copy_set(target, str(tmp_path / "early"))
        copy_set(str(shards), target)
    copy_set(STORE, str(tmp_path / "back"))
    assert folder_bytes(tmp_path / "back") == folder_bytes(shards) == folder_bytes(tmp_path / "copy")


def test_damage_on_the_way_is_named(shards: Path, tmp_path: Path, store: fsspec.AbstractFileSystem) -> None:
    copy_set(str(shards), STORE)
    damaged = next(path for path in store.find("/bucket/set/part-00001.zarr") if "log_odds/c" in path)
    data = store.cat_file(damaged)
    store.pipe_file(damaged, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(SpotError, match=r"part-00001\.zarr has a file log_odds/c.* that doesn't match its checksum"):
        copy_set(STORE, str(tmp_path / "back"))
    assert verify_shards(tmp_path / "back")
    store.rm(damaged)
    with pytest.raises(SpotError, match=r"has 0 bytes in log_odds"):
        copy_set(STORE, str(tmp_path / "back"))


def test_a_damaged_copy_is_made_whole(shards: Path, tmp_path: Path) -> None:
    copy_set(str(shards), f"file://{tmp_path / 'copy'}")
    gone = next(
        path
        for path in (tmp_path / "copy" / "part-00001.zarr").rglob("*")
        if path.is_file() and "log_odds" in str(path)
    )
    gone.unlink()
    assert copy_set(str(shards), str(tmp_path / "copy")).copied == 1
    assert folder_bytes(tmp_path / "copy") == folder_bytes(shards)


def test_a_manifest_with_a_torn_record_is_damaged_and_is_copied_again(
    shards: Path, tmp_path: Path, store: fsspec.AbstractFileSystem
) -> None:
    copy_set(str(shards), str(tmp_path / "copy"))
    manifest = json.loads((tmp_path / "copy" / MANIFEST).read_text())
    manifest["shards"]["part-00001.zarr"] = {}
    (tmp_path / "copy" / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(SpotError, match=r"manifest\.json is damaged; run `spot-train collect` again"):
        copy_set(str(tmp_path / "copy"), STORE)
    store.pipe_file("/bucket/set/manifest.json", (tmp_path / "copy" / MANIFEST).read_bytes())
    for read in (lambda: fetch(STORE, tmp_path / "cache"), lambda: copy_set(STORE, str(tmp_path / "back"))):
        with pytest.raises(SpotError, match=r"manifest\.json is damaged; delete it there and copy the set there again"):
            read()
    assert copy_set(str(shards), str(tmp_path / "copy")).copied == 0
    assert folder_bytes(tmp_path / "copy") == folder_bytes(shards)


def test_another_set_is_not_written_over(shards: Path, tmp_path: Path) -> None:
    other = make_set(tmp_path / "other", 1, table_top_k=SHARED.get("table_top_k", 32), noise_version="another")
    copy_set(str(other), STORE)
    with pytest.raises(SpotError, match="holds a set with another"):
        copy_set(str(shards), STORE)
    part = make_set(tmp_path / "part", 2)
    shutil.rmtree(tmp_path / "other")
    copy_set(str(part), str(tmp_path / "grows"))
    assert copy_set(str(shards), str(tmp_path / "grows")).copied == 1
    assert len(open_shards(tmp_path / "grows").names) == 3


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nowhere", "no manifest"),
        ("memory://bucket/none", "own memory"),
        ("warp://x", "can't be opened"),
        ("", "an empty name"),
    ],
)
def test_what_is_no_set_is_named(source: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shards", "copy", source, str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_place_that_can_not_be_copied_to_is_named(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for target in (f"{shards}/", f"file://{shards}", str(tmp_path / "file"), STORE):
        assert run(["shards", "copy", str(shards), target]) == 2
        said = capsys.readouterr().err
        assert target in said and "--out" not in said
    copy_set(str(shards), STORE)
    with pytest.raises(SpotError, match="the set itself"):
        copy_set(STORE, f"{STORE}/")


def test_a_set_behind_a_url_is_copied_once(
    shards: Path, tmp_path: Path, store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests, read = [0], Place.read

    def counted(self: Place, file: str) -> bytes | None:
        manifests[0] += self.local is None and file == MANIFEST
        return read(self, file)

    monkeypatch.setattr(Place, "read", counted)
    said: list[str] = []
    with pytest.raises(SpotError, match="no manifest"):
        fetch(STORE, tmp_path / "cache", said.append)
    assert not list(tmp_path.iterdir())
    copy_set(str(shards), STORE)
    with ThreadPoolExecutor(3) as threads:
        folders = set(threads.map(lambda _: fetch(STORE, tmp_path / "cache", said.append), range(3)))
    (folder,) = folders
    before = manifests[0]
    fetch(STORE, tmp_path / "fresh")
    assert manifests[0] == before + 1
    assert folder_bytes(folder) == folder_bytes(shards)
    assert said[0] == f"copying what {folder} lacks of {STORE}" and len(said) == 3
    assert fetch(str(shards), tmp_path / "none") == shards
    damaged = next(path for path in store.find("/bucket/set") if "log_odds/c" in path)
    store.pipe_file(damaged, b"")
    assert fetch(STORE, tmp_path / "cache") == folder
    with pytest.raises(SpotError, match="has 0 bytes"):
        fetch(STORE, tmp_path / "another")


def test_a_folder_with_colons_in_its_name_is_one_folder(shards: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "a::b")
    assert copy_set(str(shards), target).copied == 3
    assert copy_set(str(shards), target).copied == 0
    with pytest.raises(SpotError, match="lies in it"):
        copy_set(target, f"{target}/inner")


def test_what_is_written_down_of_a_url_holds_no_secret() -> None:
    assert without_secrets("https://user:word@host/set?token=1") == "https://host/set"
    assert without_secrets("s3://bucket/set") == "s3://bucket/set"
    assert without_secrets("set?2") == "set?2"
    assert without_secrets("ftp://user:wo@rd@host/set") == "ftp://host/set"
    url = "https://user:word@host/set?token=1"
    for said in (f"no {url}", "500, url='https://host/set?token=1/manifest.json'", "user:word@host says no"):
        assert "word" not in quoted(OSError(said), url) and "token" not in quoted(OSError(said), url)
    assert quoted(OSError("404 at s3://b/set"), "s3://b/set") == "404 at s3://b/set"
    place = Place("memory://user:word@host/set?token=1")
    with pytest.raises(SpotError) as refused:
        read_manifest(place)
    assert "memory://host/set" in str(refused.value) and "word" not in str(refused.value)
