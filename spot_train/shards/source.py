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

from spot_train.shards.copy import Place, copy_shards, read_manifest
from spot_train.shards.fetch import without_secrets
from spot_train.shards.files import StoredKey, read_keys
from spot_train.shards.store import check_readable, open_shards


@dataclass(frozen=True)
class Source:
    """The finished shards at `place` that `manifest` lists."""

    place: Place
    manifest: Mapping[str, Any]

    @property
    def name(self) -> str:
        return without_secrets(self.place.name)

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.manifest["attributes"]

    @property
    def names(self) -> tuple[str, ...]:
        """Folder names of the shards, in order."""
        return tuple(sorted(self.manifest["shards"]))

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
        drawn = bool(self.attributes["sampling"]["temperature"])
        for name in self.names:
            with self.shard(name) as path:
                yield read_keys(path, drawn)


def open_source(name: str) -> Source:
    """The set at `name`, a folder or a URL. A folder is verified as a whole first, what lies behind a URL as it is
    read. Raises SpotError where there is no set to read."""
    place = Place(name)
    if place.local is not None:
        return Source(place, open_shards(place.local).manifest)
    _, manifest = read_manifest(place)
    check_readable(without_secrets(name), manifest)
    return Source(place, manifest)
