"""A set of shards from one place to another: folders and whatever fsspec has a URL for (s3://, gs://, memory://).

Every file is compared with its checksum on the way; a shard that is there already, all files of their size, stays. A
shard's zarr.json is written after its arrays and the manifest after all shards, so a copy that was cut short is no set,
and the next one goes on with it. Decodes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from spot_infer.atomic import write_file
from spot_infer.errors import SpotError
from spot_train.output_lock import output_lock
from spot_train.shards.files import Damaged, check_file, parse_attributes
from spot_train.shards.shown import quoted, without_secrets
from spot_train.shards.store import MANIFEST, differing_field, parse_manifest

ROOT = "zarr.json"
COPY_AGAIN = "delete it there and copy the set there again from where it is whole"


class Unreachable(SpotError):
    """A place that did not take or give a file: the way to it may be there again later."""


@dataclass(frozen=True)
class Copied:
    """What `copy_set` did. copied: shards that were not there yet; size: their bytes."""

    target: str
    shards: int
    copied: int
    size: int

    def sentence(self) -> str:
        kept = self.shards - self.copied
        return f"{self.target}: {self.shards} shards, {self.copied} copied ({self.size:,} bytes), {kept} there already"


class Place:
    """A folder or a URL, and files by their name in it. name: the URL as it may be shown, without its secrets."""

    def __init__(self, name: str) -> None:
        if not name:
            raise SpotError("a place to copy from or to has an empty name; give a folder or a URL")
        self.url, self.name = name, without_secrets(name)
        path = name.removeprefix("file://")
        self.local = None if "://" in path else Path(path).expanduser()
        if self.local is not None:
            self.files, self.root = LocalFileSystem(), str(self.local.absolute())
            return
        try:
            self.files, root = fsspec.core.url_to_fs(name)
        except Exception as error:  # whatever its protocol's library raises
            raise SpotError(
                f"{self.name} can't be opened ({quoted(error, name)}); install what its protocol needs or use another"
            ) from None
        self.root = str(root).rstrip("/")

    def read(self, file: str) -> bytes | None:
        """A file's content; None where there is none."""
        try:
            return bytes(self.files.cat_file(f"{self.root}/{file}"))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except Exception as error:  # whatever its protocol's library raises
            raise self._unreachable(file, "read", error) from error

    def size(self, file: str) -> int | None:
        """A file's bytes; None where there is none."""
        try:
            return int(self.files.size(f"{self.root}/{file}"))
        except Exception:  # whatever its protocol's library raises
            return None

    def files_in(self, folder: str) -> list[str]:
        """The files in a folder of the place and below it, as `read` takes them, in order; none where there is none."""
        try:
            found = self.files.find(f"{self.root}/{folder}")
        except FileNotFoundError:
            return []
        except Exception as error:  # whatever its protocol's library raises
            raise self._unreachable(folder, "listed", error) from error
        return sorted(str(path).removeprefix(f"{self.root}/") for path in found)

    def write(self, file: str, data: bytes) -> None:
        """Write a file; on a disk it appears by rename, object stores show whole objects only."""
        if self.local is not None:
            path = self.local / file
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, data)
            return
        try:
            self.files.pipe_file(f"{self.root}/{file}", data)
        except Exception as error:  # whatever its protocol's library raises
            raise self._unreachable(file, "written", error) from error

    def remove(self, file: str) -> None:
        """Remove a file that is there."""
        try:
            self.files.rm_file(f"{self.root}/{file}")
        except Exception as error:  # whatever its protocol's library raises
            raise self._unreachable(file, "removed", error) from error

    def _unreachable(self, file: str, done: str, error: Exception) -> Unreachable:
        said = quoted(error, self.url)
        return Unreachable(f"{self.name}/{file} can't be {done} ({said}); check the place and your access")

    def alone(self) -> AbstractContextManager[Any]:
        """The folder's lock; stores have none."""
        return nullcontext() if self.local is None else output_lock(self.local)

    def holds(self, other: Place) -> bool:
        """Whether `other` is this place, under whatever name, or lies in it."""
        if self.local is not None and other.local is not None:
            return other.local.resolve().is_relative_to(self.local.resolve())
        return self.files == other.files and f"{other.root}/".startswith(f"{self.root}/")


def copy_set(source: str, target: str) -> Copied:
    """Copy every shard that the manifest at `source` lists, then the manifest. What `target` has of the set stays.

    One file at a time is in memory. Raises SpotError where there is no set, a file differs from its checksum, or
    `target` is the set itself, lies in it or holds another.
    """
    here, there = Place(source), Place(target)
    if here.holds(there):
        raise SpotError(f"{there.name} is the set itself or lies in it; give another place for the copy")
    manifest = read_manifest(here)
    with there.alone():
        return copy_read(here, there, *manifest)


def copy_read(here: Place, there: Place, data: bytes, manifest: dict[str, Any]) -> Copied:
    """`copy_set` of what `read_manifest` read, with the lock of `there` held."""
    _refuse_another(there, manifest)
    copied = copy_shards(here, there, manifest["shards"])
    there.write(MANIFEST, data)
    return copied


def copy_shards(here: Place, there: Place, shards: Mapping[str, Mapping[str, Any]]) -> Copied:
    """Copy shards, given by their records in the manifest of `here`; each one's root last."""
    copied = size = 0
    for name, record in sorted(shards.items()):
        with damage_of(here):
            moved = _copy_shard(here, there, name, record["sha256"])
        copied += moved is not None
        size += moved or 0
    return Copied(there.name, len(shards), copied, size)


def lasting(name: str) -> str:
    """The name of a place that a command may be given. Raises SpotError for one that ends with the command."""
    if name.startswith("memory://"):
        raise SpotError(
            f"{without_secrets(name)} lies in this command's own memory, which ends with it; give a folder or a "
            "store's URL"
        )
    return name


def read_manifest(here: Place) -> tuple[bytes, dict[str, Any]]:
    """A set's manifest, as bytes and parsed. Raises SpotError where there is none."""
    found = find_manifest(here)
    if found is None:
        raise SpotError(f"{here.name} has no {MANIFEST}; give the --out of a `spot-train collect` run, or a copy of it")
    return found


def find_manifest(here: Place) -> tuple[bytes, dict[str, Any]] | None:
    """`read_manifest`; None where there is none."""
    data = here.read(MANIFEST)
    with damage_of(here):
        return None if data is None else (data, parse_manifest(data, f"{here.name}/{MANIFEST}"))


@contextmanager
def damage_of(place: Place) -> Iterator[None]:
    """Damage names the set; of one behind a URL it is repaired by copying it there again."""
    try:
        yield
    except Damaged as error:
        what = error.what if error.what.startswith(place.name) else f"{place.name}: {error.what}"
        raise Damaged(what, error.repair if place.local is not None else COPY_AGAIN) from None


def _refuse_another(there: Place, manifest: dict[str, Any]) -> None:
    data = there.read(MANIFEST)
    if data is None:
        return
    try:
        known = parse_manifest(data, f"{there.name}/{MANIFEST}")
    except Damaged:
        return
    found = differing_field(manifest["attributes"], known["attributes"])
    theirs = {name: record["sha256"] for name, record in known["shards"].items()}
    changed = [name for name, digest in theirs.items() if manifest["shards"].get(name, {}).get("sha256") != digest]
    if found is not None or changed:
        what = f"another {found[0]}" if found is not None else f"another {changed[0]}"
        raise SpotError(f"{there.name} holds a set with {what}; copy to another place")


def _copy_shard(here: Place, there: Place, name: str, digest: str) -> int | None:
    """The bytes copied; None where the shard was there."""
    root = here.read(f"{name}/{ROOT}")
    if root is None:
        raise SpotError(f"{here.name} lacks the shard {name} that its manifest lists; verify it where it was collected")
    attributes = parse_attributes(root, name)
    if attributes["sha256"] != digest:
        raise SpotError(f"shard {name} of {here.name} is not the one that its manifest lists; copy it again")
    sizes = {file: size for file, (size, _) in attributes["files"].items()}
    if there.read(f"{name}/{ROOT}") == root and all(there.size(f"{name}/{file}") == sizes[file] for file in sizes):
        return None
    for file, (size, checksum) in attributes["files"].items():
        data = here.read(f"{name}/{file}")
        check_file(b"" if data is None else data, name, file, size, checksum)
        there.write(f"{name}/{file}", data or b"")
    there.write(f"{name}/{ROOT}", root)
    return len(root) + sum(sizes.values())
