"""Collecting behind a URL: shards go up whole, another machine goes on, one job writes."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import fsspec
import pytest
from collecting import LEASE, fake_target, folder_bytes, small_recipe, write_prompts

from spot_infer.errors import SpotError
from spot_train.cli import run
from spot_train.collect.bucket import Bucket
from spot_train.collect.collect import Summary, Tally, collect
from spot_train.output_lock import output_lock
from spot_train.recipe.recipe import Recipe
from spot_train.shards.claim import WRITER
from spot_train.shards.copy import Place, Unreachable, copy_set
from spot_train.shards.store import MANIFEST, shard_name, verify_shards

pytestmark = pytest.mark.usefixtures("store")

URL = "memory://bucket/collected"


class Silent:
    def started(self, plan: object) -> None:
        """Nothing to do."""

    fitting = advanced = started


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    pool = write_prompts(tmp_path_factory.mktemp("bucket") / "pool.jsonl", LEASE + 1)
    return small_recipe(pool, collect={"max_new_tokens": 6})


@pytest.fixture(scope="module")
def undisturbed(recipe: Recipe) -> Path:
    folder = Path(recipe.prompts.sources[0].path_or_id).with_name("undisturbed")
    collect(recipe, folder, fake_target())
    return folder


def collect_there(recipe: Recipe, cache: Path, take_over: str | None = None) -> tuple[Bucket, Summary]:
    bucket = Bucket(URL, cache, Silent(), print)
    image = partial(bucket.written, recipe, take_over)
    return bucket, collect(recipe, bucket.folder, fake_target(), bucket, image=image)


def set_bytes(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in folder_bytes(folder).items() if name != WRITER}


def test_a_killed_upload_leaves_whole_shards_and_another_machine_goes_on(
    recipe: Recipe,
    undisturbed: Path,
    tmp_path: Path,
    store: fsspec.AbstractFileSystem,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left, whole, read = [60], Place.write, Place.read

    def write(self: Place, file: str, data: bytes) -> None:
        if self.local is None:
            left[0] -= 1
            dead()
        whole(self, file, data)

    def dead() -> None:
        if left[0] < 0:
            raise KeyboardInterrupt

    def read_alive(self: Place, file: str) -> bytes | None:
        dead()
        return read(self, file)

    with monkeypatch.context() as patch:
        patch.setattr(Place, "write", write)
        patch.setattr(Place, "read", read_alive)
        with pytest.raises(KeyboardInterrupt):
            collect_there(recipe, tmp_path / "one")
    uploaded = [name for name in store.find("/bucket") if shard_name(1) in name]
    assert 0 < len(uploaded) < 30, "the kill was not in the middle of the second shard"
    copy_set(URL, str(tmp_path / "seen"))
    assert verify_shards(tmp_path / "seen") == ()
    assert [path.name for path in (tmp_path / "seen").glob("part-*")] == [shard_name(0)]

    with pytest.raises(SpotError, match="is being written by") as refused:
        collect_there(recipe, tmp_path / "two")
    assert not (tmp_path / "two" / MANIFEST).exists()
    holder = str(refused.value).split("--take-over ")[1].split()[0]
    bucket, summary = collect_there(recipe, tmp_path / "two", take_over=holder)
    assert (summary.plan.kept, summary.written) == (1, 1)
    assert bucket.sentence() == f"{URL}: 2 shards"
    assert not store.exists(f"/bucket/collected/{WRITER}")

    copy_set(URL, str(tmp_path / "back"))
    assert set_bytes(tmp_path / "back") == set_bytes(bucket.folder) == folder_bytes(undisturbed)


def test_a_store_that_fails_for_a_while_and_a_job_that_lost_its_claim(
    recipe: Recipe,
    undisturbed: Path,
    tmp_path: Path,
    store: fsspec.AbstractFileSystem,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, said = Place.write, []

    def write(self: Place, file: str, data: bytes) -> None:
        if file == f"{shard_name(0)}/zarr.json" and self.local is None and not said:
            raise Unreachable("no way there")
        whole(self, file, data)

    monkeypatch.setattr(Place, "write", write)
    bucket = Bucket(URL, tmp_path / "one", Silent(), said.append)
    with output_lock(bucket.folder) as lock, bucket.written(recipe, None, lock):
        shutil.copytree(undisturbed, bucket.folder, dirs_exist_ok=True)
        for _ in range(2):
            bucket.advanced(Tally())
        assert said == ["no way there; uploading again with the next shard"]
        assert not store.exists("/bucket/collected/manifest.json")
    copy_set(URL, str(tmp_path / "back"))
    assert folder_bytes(tmp_path / "back") == folder_bytes(undisturbed)

    before = store.cat("/bucket/collected/manifest.json")
    with output_lock(bucket.folder) as lock, bucket.written(recipe, None, lock):
        store.pipe_file(f"/bucket/collected/{WRITER}", b"another")
        with pytest.raises(SpotError, match="was taken over"):
            bucket.upload()
        store.pipe_file(f"/bucket/collected/{WRITER}", (bucket.folder / WRITER).read_bytes())
    assert not store.exists(f"/bucket/collected/{WRITER}")
    assert store.cat("/bucket/collected/manifest.json") == before


def test_what_can_not_be_collected_behind_a_url_is_named(
    recipe: Recipe,
    undisturbed: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy_set(str(undisturbed), URL)
    other = recipe.model_copy(update={"collect": recipe.collect.model_copy(update={"seed": 1})})
    with pytest.raises(SpotError, match=rf"^{URL} was collected with collect\.seed 0, this run has 1"):
        collect_there(other, tmp_path / "two")
    assert not any((tmp_path / "two").glob("*/part-*"))
    tiny = "builtin:recipes/tiny.yaml"
    assert run(["collect", tiny, "--out", "local:///here/set"]) == 2
    assert "add --cache" in capsys.readouterr().err
    assert run(["collect", tiny, "--out", URL, "--cache", str(tmp_path)]) == 2
    assert "own memory" in capsys.readouterr().err
