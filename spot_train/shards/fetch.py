"""A recorded set at hand: a folder as it is, a set behind a URL as a verified copy in a cache folder.

Knows nothing about who reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from spot_train.output_lock import make_folder, only_one
from spot_train.shards.copy import Place, copy_read, read_manifest
from spot_train.shards.store import MANIFEST

LOCK = "fetch.lock"


def fetch(data: str, cache: Path, say: Callable[[str], None] = lambda sentence: None) -> Path:
    """The folder with the set `data`: itself, or where `data` is a URL a folder in `cache`.

    A set is copied once, checked as `copy_set` does, and then stays as it is, since what was trained on it does: delete
    the copy, or name another cache, to take on shards that were added. Of several processes that ask at once one copies
    and the others wait. `say` is told what is being copied. Raises SpotError where there is no set, it can't be read,
    or the cache is no folder.
    """
    place = Place(data)
    if place.local is not None:
        return place.local
    folder = folder_of(place, cache)
    if not (folder / MANIFEST).exists():
        manifest = read_manifest(place)
        make_folder(cache)
        with only_one(cache / LOCK):
            if not (folder / MANIFEST).exists():
                say(f"copying what {folder} lacks of {place.name}")
                there = Place(str(folder))
                with there.alone():
                    copy_read(place, there, *manifest)
                return folder
    say(f"reading {folder}, a copy made earlier")
    return folder


def folder_of(place: Place, cache: Path) -> Path:
    """Where in `cache` the set behind a URL has its copy."""
    digest = hashlib.sha256(place.url.encode()).hexdigest()[:8]
    return cache / f"{place.name.rstrip('/').rsplit('/', 1)[-1]}-{digest}"
