"""`shards info`, `verify` and `sample` of sets behind URLs: what a folder says, one shard at a time, faults named."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from test_shards import make_set

from spot_train.cli import run
from spot_train.shards.copy import Place, copy_set
from spot_train.shards.report import describe, verify
from spot_train.shards.sample import headline, sample
from spot_train.shards.source import open_source
from spot_train.shards.store import shard_name

pytestmark = pytest.mark.usefixtures("store", "scratch")

URL = "memory://bucket/set"


class Gone(MemoryFileSystem):
    """A store that nothing answers for."""

    protocol = "gone"

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **given: object) -> bytes:
        raise ConnectionError("no route to host")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = make_set(tmp_path / "set")
    copy_set(str(made), URL)
    return made


@pytest.fixture
def fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that were read behind URLs, in order."""
    read, names = Place.read, []

    def noted(self: Place, file: str) -> bytes | None:
        names.extend([file] if self.local is None else [])
        return read(self, file)

    monkeypatch.setattr(Place, "read", noted)
    return names


def test_info_fetches_roots_alone(folder: Path, fetched: list[str]) -> None:
    assert describe(URL) == {**describe(folder), "path": URL}
    assert fetched == ["manifest.json", *(f"{shard_name(index)}/zarr.json" for index in range(3))]


def test_verify_names_damaged_shards_one_at_a_time(
    folder: Path, store: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, most = Place.write, [0]

    def counted(self: Place, file: str, data: bytes) -> None:
        most[0] = max(most[0], len(list((tmp_path / "scratch").iterdir())))
        write(self, file, data)

    monkeypatch.setattr(Place, "write", counted)
    sound = verify([URL])
    assert (sound.problems, most[0]) == ((), 1)
    assert sound == verify([folder])
    both = verify([folder, URL])
    assert (both.problems, both.repeated) == ((), sound.trajectories)

    slots = next(file for file in store.find(f"/bucket/set/{shard_name(0)}") if "/slot/c" in file)
    store.pipe_file(slots, b"")
    store.rm(f"/bucket/set/{shard_name(2)}/zarr.json")
    first, second = verify([URL]).problems
    assert first.startswith(f"{URL}: shard {shard_name(0)} has 0 bytes in slot/c")
    assert first.endswith("copy the set there again from where it is whole")
    assert second.startswith(f"{URL} lacks the shard {shard_name(2)}")


def test_samples_come_from_the_shards_they_lie_in(folder: Path, fetched: list[str]) -> None:
    shown = [headline(*one) for one in sample(open_source(URL), 2)]
    assert shown == [headline(*one) for one in sample(open_source(str(folder)), 2)]
    assert {file.split("/")[0] for file in fetched} == {"manifest.json", shard_name(0), shard_name(2)}


def test_the_commands_take_urls(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"local://{folder}"
    assert run(["shards", "info", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == url
    assert run(["shards", "verify", url]) == 0
    assert capsys.readouterr().out.startswith(f"{url}: 3 of 3 shards sound, 9 trajectories")
    assert run(["shards", "sample", url, "-n", "1"]) == 0
    assert shard_name(0) in capsys.readouterr().out


@pytest.mark.parametrize("command", ["info", "verify", "sample"])
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("local:///nowhere/set", "has no manifest.json"),
        ("gone://bucket/set", "can't be read (no route to host)"),
        ("warp://bucket/set", "can't be opened"),
        (URL, "own memory"),
    ],
)
def test_what_is_no_set_is_refused_in_one_sentence(
    command: str, url: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fsspec.register_implementation("gone", Gone, clobber=True)
    assert run(["shards", command, url]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: {url}")
    assert said in printed.err and printed.err.count("\n") == 1 and not printed.out


def test_a_way_that_is_lost_is_no_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cat = fsspec.implementations.local.LocalFileSystem.cat_file

    def lost(self: fsspec.AbstractFileSystem, path: str, **given: object) -> bytes:
        if shard_name(1) in path:
            raise ConnectionError("no route to host")
        return bytes(cat(self, path, **given))

    monkeypatch.setattr(fsspec.implementations.local.LocalFileSystem, "cat_file", lost)
    assert run(["shards", "verify", f"local://{folder}"]) == 2
    assert "no route to host); check the place" in (said := capsys.readouterr()).err
    assert "damaged" not in said.err and not said.out
