"""A set to read shard by shard, wherever it lies: in a folder as it is, behind a URL as a checked copy of one shard
at a time, which is gone again when the next one is asked for.

Knows nothing about who reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spot_train.shards import copy, store
from spot_train.shards.copy import ROOT, Place, copy_shards, damage_of
from spot_train.shards.files import Damaged, StoredKey, parse_attributes, read_keys
from spot_train.shards.store import Listed, check_readable, open_shards


@dataclass(frozen=True)
class Source(Listed):
    """The finished shards at `place` that `manifest` lists."""

    place: Place
    manifest: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def drawn(self) -> bool:
        """Whether tokens were drawn, so that trajectories of one prompt differ by their seeds."""
        return bool(self.attributes["sampling"]["temperature"])

    def root(self, name: str) -> tuple[int, dict[str, Any]]:
        """Bytes of a shard's root, and the attributes in it. Fetches nothing else; raises Damaged naming the shard."""
        data = self.place.read(f"{name}/{ROOT}")
        with damage_of(self.place):
            if data is None:
                raise Damaged(f"shard {name} has no {ROOT}")
            return len(data), parse_attributes(data, name)

    @contextmanager
    def shard(self, name: str) -> Iterator[Path]:
        """The folder of a shard, for as long as the block lasts."""
        if self.place.local is not None:
            yield self.place.local / name
            return
        with TemporaryDirectory(prefix="spot-shard-") as scratch:
            copy_shards(self.place, Place(scratch), {name: self.manifest["shards"][name]})
            yield Path(scratch) / name

    def stored_keys(self) -> Iterator[list[StoredKey]]:
        """The keys of each shard, in order."""
        for name in self.names:
            with self.shard(name) as path:
                yield read_keys(path, self.drawn)


def find_source(name: str) -> Source:
    """The set at `name`, a folder or a URL; reads its manifest alone. Raises SpotError where there is none."""
    place = Place(name)
    manifest = copy.read_manifest(place)[1] if place.local is None else store.read_manifest(place.local)
    return Source(place, manifest)


def open_source(name: str) -> Source:
    """The set at `name`, a folder or a URL. A folder is verified as a whole first, what lies behind a URL as it is
    read. Raises SpotError where there is no set to read."""
    place = Place(name)
    if place.local is not None:
        return Source(place, open_shards(place.local).manifest)
    source = find_source(name)
    check_readable(source.name, source.manifest)
    return source
