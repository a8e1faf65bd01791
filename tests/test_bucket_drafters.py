"""Bootstrapped collection behind a URL: drafters go up whole, and whoever goes on fits only what is not there."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import fsspec
import pytest
from collecting import fake_target
from test_bootstrap import bootstrap_fake, bootstrap_recipe
from test_bucket import URL, Silent, set_bytes

from spot_train.collect.bucket import Bucket
from spot_train.collect.collect import collect
from spot_train.collect.drafters import DRAFTERS, drafter_folder
from spot_train.shards.copy import Place
from spot_train.shards.store import MANIFEST, shard_name

pytestmark = pytest.mark.usefixtures("store")

FILES = ["README.md", "config.json", "golden.safetensors", "model.safetensors"]


class Fits(Silent):
    """Notes the milestones before which a drafter is fitted, and dies at one of them."""

    def __init__(self, last: int | None = None) -> None:
        self.noted: list[int] = []
        self._last = last

    def fitting(self, lease: object) -> None:
        assert isinstance(lease, int)
        self.noted.append(lease)
        if lease == self._last:
            raise KeyboardInterrupt


def collect_there(prompts: Path, cache: Path, fits: Fits) -> Path:
    recipe, bucket = bootstrap_recipe(prompts), Bucket(URL, cache, fits, print)
    image = partial(bucket.written, recipe, None)
    collect(recipe, bucket.folder, fake_target(), bucket, bootstrap=True, image=image)
    return bucket.folder


def test_another_machine_takes_the_drafters_that_are_there(
    prompts: Path, tmp_path: Path, store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = Fits(last=3), Fits(), Fits()
    with pytest.raises(KeyboardInterrupt):
        collect_there(prompts, tmp_path / "one", one)
    there = sorted(path.removeprefix("/bucket/collected/") for path in store.find(f"/bucket/collected/{DRAFTERS}"))
    assert there == [f"{drafter_folder(2)}/{name}" for name in FILES]

    write, order = Place.write, []

    def dying(self: Place, file: str, data: bytes) -> None:
        if self.local is None:
            order.append(file)
            if file == f"{drafter_folder(3)}/config.json":
                raise KeyboardInterrupt
        write(self, file, data)

    with monkeypatch.context() as patch:
        patch.setattr(Place, "write", dying)
        with pytest.raises(KeyboardInterrupt):
            collect_there(prompts, tmp_path / "two", two)
    assert not any(shard_name(3) in file or file == MANIFEST for file in order)
    assert store.exists(f"/bucket/collected/{drafter_folder(3)}/model.safetensors")

    folder = collect_there(prompts, tmp_path / "three", three)
    assert (one.noted, two.noted, three.noted) == ([2, 3], [3], [3])
    bootstrap_fake(prompts, tmp_path / "undisturbed")
    assert set_bytes(folder) == set_bytes(tmp_path / "undisturbed")
    for file in (f"{drafter_folder(milestone)}/{name}" for milestone in (2, 3) for name in FILES):
        assert store.cat_file(f"/bucket/collected/{file}") == (folder / file).read_bytes()
