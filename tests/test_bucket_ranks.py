"""Ranks of one job behind a URL: they fill one folder, one uploads, and whoever dies takes nothing along."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import fsspec
import pytest
from collecting import collect_fake, fake_target, folder_bytes, small_recipe
from test_bucket import URL, Silent, set_bytes

from spot_infer.errors import SpotError
from spot_train.collect.bucket import Bucket
from spot_train.collect.collect import collect
from spot_train.collect.ranks import Rank
from spot_train.output_lock import output_lock
from spot_train.shards.claim import WRITER
from spot_train.shards.copy import Place, copy_set

pytestmark = pytest.mark.usefixtures("store")

WORLD = 3


@pytest.fixture(scope="module")
def undisturbed(prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    collect_fake(prompts, folder)
    return folder


class Meets(Silent):
    """Begins when all ranks are there."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self._barrier = barrier

    def started(self, plan: object) -> None:
        self._barrier.wait(60)


class Dies(Meets):
    """Ends its process, as it were, at the first news of the run."""

    def advanced(self, tally: object) -> None:
        raise SystemExit


def collect_as(number: int, prompts: Path, cache: Path, progress: Silent | None = None) -> Path:
    """One rank's part, as the command wires it."""
    recipe, heard = small_recipe(prompts), progress or Silent()
    bucket = Bucket(URL, cache, heard, print, several=True)
    return collect(
        recipe,
        bucket.folder,
        fake_target(),
        heard if number else bucket,
        rank=Rank(number, WORLD, job="job"),
        image=partial(bucket.written, recipe, None),
    ).out


def together(prompts: Path, cache: Path, dead: int | None = None) -> Path:
    """All ranks at once, of which one may die; returns the folder that they filled."""
    barrier, ended = threading.Barrier(WORLD), []

    def rank(number: int) -> None:
        try:
            collect_as(number, prompts, cache, (Dies if number == dead else Meets)(barrier))
        except SystemExit:
            ended.append(number)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(WORLD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == ([] if dead is None else [dead])
    (folder,) = cache.glob("collected-*")
    return folder


def check_whole(undisturbed: Path, folder: Path, back: Path, store: fsspec.AbstractFileSystem) -> None:
    """The set is one process's, in the folder and behind the URL, which nobody claims any more."""
    copy_set(URL, str(back))
    assert set_bytes(folder) == folder_bytes(back) == folder_bytes(undisturbed)
    assert not store.exists(f"/bucket/collected/{WRITER}")


def test_ranks_write_behind_a_url_what_one_process_writes(
    prompts: Path, undisturbed: Path, tmp_path: Path, store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, uploaded = Place.write, []

    def noted(self: Place, file: str, data: bytes) -> None:
        uploaded.extend([] if self.local is not None or file in ("manifest.json", WRITER) else [file])
        write(self, file, data)

    monkeypatch.setattr(Place, "write", noted)
    folder = together(prompts, tmp_path)
    check_whole(undisturbed, folder, tmp_path / "back", store)
    assert len(uploaded) == len(set(uploaded))


@pytest.mark.parametrize("dead", range(WORLD))
def test_a_rank_that_dies_takes_nothing_along(
    dead: int, prompts: Path, undisturbed: Path, tmp_path: Path, store: fsspec.AbstractFileSystem
) -> None:
    folder = together(prompts, tmp_path, dead)
    check_whole(undisturbed, folder, tmp_path / "back", store)


def test_ranks_that_see_different_folders_are_refused(
    prompts: Path, undisturbed: Path, tmp_path: Path, store: fsspec.AbstractFileSystem
) -> None:
    class Interrupting(Silent):
        """Another rank comes, from another folder, once the run has begun."""

        said = ""

        def advanced(self, tally: object) -> None:
            if not self.said:
                with pytest.raises(SpotError) as refused:
                    collect_as(1, prompts, tmp_path / "two")
                self.said = str(refused.value)

    heard = Interrupting()
    folder = collect_as(0, prompts, tmp_path / "one", heard)
    assert heard.said.startswith(f"{URL} is being written by ")
    check_whole(undisturbed, folder, tmp_path / "back", store)


def test_a_rank_that_leaves_first_does_not_count_as_the_last_later(tmp_path: Path) -> None:
    """The others may leave while it is on its way out: only one sums up."""
    with output_lock(tmp_path, "job") as one:
        one.share()
        with output_lock(tmp_path, "job"):
            assert not one.alone()
        assert not one.alone()
