"""A new set to fill, in a folder or behind a URL, by one job at a time. The manifest comes last: what was killed is no
set, and is begun again. Knows nothing about what is written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spot_infer.atomic import PARTIAL, BeforeRename, full_disk_named, remove_partials, sync_folder
from spot_infer.errors import SpotError
from spot_train.output_lock import LOCK, output_lock
from spot_train.provenance import PROVENANCE
from spot_train.shards.claim import Claim, new_mark
from spot_train.shards.copy import Place, copy_shards
from spot_train.shards.store import MANIFEST

UNFINISHED = "merge.unfinished"
"""Lies in a folder while shards are moved into it."""
Finished = Callable[[str, Mapping[str, Any]], None]
"""Told the name and attributes of each shard once it is written. Raises SpotError where another job took over."""


def refuse_existing(there: Place) -> None:
    """Raise SpotError where `there` is no place for a new set; what a killed job left in a folder does not count."""
    if there.read(MANIFEST) is not None if there.local is None else _taken(there.local):
        raise SpotError(f"--out {there.name} already exists; merge writes a new set, name another place")


@contextmanager
def new_set(there: Place, before_rename: BeforeRename | None, take_over: str | None) -> Iterator[tuple[Path, Finished]]:
    """A folder to fill with shards, provenance and manifest. When the block ends they are moved into the folder
    `there`; behind a URL each finished shard goes up at once. When it raises, a folder is left as it was.

    Raises SpotError naming the job that writes there, unless it is the one called `take_over`.
    """
    with _in_folder(there, before_rename, take_over) if there.local is not None else _behind(there, take_over) as made:
        yield made


@contextmanager
def _in_folder(
    there: Place, before_rename: BeforeRename | None, take_over: str | None
) -> Iterator[tuple[Path, Finished]]:
    assert there.local is not None
    folder = there.local
    with output_lock(folder, take_over=take_over) as lock, full_disk_named(folder):
        refuse_existing(there)
        _remove_unfinished(folder)
        with TemporaryDirectory(suffix=PARTIAL, dir=folder) as scratch:
            place = Path(scratch)
            yield place, lambda name, attributes: lock.check()
            if before_rename is not None:
                before_rename()
            lock.check()
            (folder / UNFINISHED).touch()
            for file in sorted(place.iterdir(), key=lambda path: path.name == MANIFEST):
                if file.name == MANIFEST:
                    sync_folder(folder)
                os.rename(file, folder / file.name)
            sync_folder(folder)
            (folder / UNFINISHED).unlink()


@contextmanager
def _behind(there: Place, take_over: str | None) -> Iterator[tuple[Path, Finished]]:
    claim = Claim(there, new_mark())
    claim.take(take_over)
    try:
        refuse_existing(there)
        with TemporaryDirectory(prefix="spot-merge-") as scratch:
            place = Path(scratch)

            def upload(name: str, attributes: Mapping[str, Any]) -> None:
                claim.check()
                copy_shards(Place(scratch), there, {name: attributes})
                shutil.rmtree(place / name)

            yield place, upload
            claim.check()
            for file in (PROVENANCE, MANIFEST):
                there.write(file, (place / file).read_bytes())
    finally:
        claim.release()


def _taken(folder: Path) -> bool:
    if not folder.is_dir():
        return folder.exists()
    if (folder / UNFINISHED).exists() and not (folder / MANIFEST).exists():
        return False
    return any(path.name != LOCK and path.suffix != PARTIAL for path in folder.iterdir())


def _remove_unfinished(folder: Path) -> None:
    """Delete what a killed job left, the note that it was at work last."""
    remove_partials(folder)
    for path in sorted(folder.iterdir(), key=lambda path: path.name == UNFINISHED):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()
