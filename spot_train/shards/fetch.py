"""A recorded set at hand: a folder as it is, a set behind a URL as a verified copy in a cache folder.

Knows nothing about who reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from spot_train.output_lock import only_one
from spot_train.shards.copy import Place, copy_set, read_manifest

LOCK = "fetch.lock"


def fetch(data: str, cache: Path, say: Callable[[str], None] = lambda sentence: None) -> Path:
    """The folder with the set `data`: itself, or where `data` is a URL a folder in `cache`.

    A set is copied once and checked as `copy_set` does; shards that were added since follow. Of several processes that
    ask at once one copies and the others wait. `say` is told what is being copied. Raises SpotError where there is no
    set, it can't be read, or the one in the cache has since become another.
    """
    place = Place(data)
    if place.local is not None:
        return place.local
    read_manifest(place)
    digest = hashlib.sha256(data.encode()).hexdigest()[:8]
    folder = cache / f"{place.root.rsplit('/', 1)[-1]}-{digest}"
    cache.mkdir(parents=True, exist_ok=True)
    with only_one(cache / LOCK):
        say(f"copying what {folder} lacks of {data}")
        copy_set(data, str(folder))
    return folder
