"""Files and folders that appear whole or not at all: written beside their final name, synced, renamed.

Knows nothing about what is written. `before_rename` runs between write and rename; tests put a delay there.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spot_infer.errors import SpotError

PARTIAL = ".partial"
REPLACED = ".replaced"
BeforeRename = Callable[[], None]


def write_file(path: Path, data: bytes, before_rename: BeforeRename | None = None) -> None:
    """Replace `path` by `data`. A full disk raises SpotError and leaves the old file."""
    partial = path.with_name(path.name + PARTIAL)
    with full_disk_named(path):
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if before_rename is not None:
                before_rename()
            os.replace(partial, path)
            sync_folder(path.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def check_place(path: Path) -> None:
    """Refuse, before any work, a place where `write_file` could not put a file. Leaves nothing there."""
    with full_disk_named(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        partial = path.with_name(path.name + PARTIAL)
        partial.open("wb").close()
        partial.unlink()


def write_json(path: Path, value: Any, before_rename: BeforeRename | None = None) -> None:
    """Replace `path` by `value` as sorted, indented JSON."""
    write_file(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode(), before_rename)


@contextmanager
def new_folder(path: Path, before_rename: BeforeRename | None = None, replace: bool = True) -> Iterator[Path]:
    """An empty folder to fill; it becomes `path` when the block ends and vanishes when the block raises.

    A folder that stood at `path` is replaced, and removed once the new one is in place. Without `replace` it stays and
    the new one vanishes: several processes may make the same folder at once, and the first one's is kept.
    """
    partial = path.with_name(path.name + ("" if replace else f".{secrets.token_hex(4)}") + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    with full_disk_named(path):
        try:
            partial.mkdir(parents=True)
            yield partial
            _sync_tree(partial)
            if before_rename is not None:
                before_rename()
            (_replace_folder if replace else _keep_first)(partial, path)
            sync_folder(path.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def remove_partials(folder: Path) -> None:
    """Delete what killed processes left half-written in `folder`; nobody may be writing there."""
    for leftover in folder.glob(f"*{PARTIAL}"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Turn "no space left", "quota exceeded" and a place that can't be written into one sentence; others pass."""
    try:
        yield
    except (IsADirectoryError, NotADirectoryError, FileNotFoundError, PermissionError) as error:
        raise SpotError(f"{path} can't be written ({error.strerror}); choose another place") from error
    except OSError as error:
        if error.errno in (errno.EROFS, errno.ENAMETOOLONG):
            raise SpotError(f"{path} can't be written ({error.strerror}); choose another place") from error
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise SpotError(
            f"the disk is full while writing {path}; nothing finished is lost, free space and resume"
        ) from (error)


def _replace_folder(partial: Path, path: Path) -> None:
    replaced = path.with_name(path.name + REPLACED)
    shutil.rmtree(replaced, ignore_errors=True)
    if path.exists():
        os.rename(path, replaced)
    os.rename(partial, path)
    sync_folder(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _keep_first(partial: Path, path: Path) -> None:
    try:
        os.rename(partial, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(partial)


def _sync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(parent, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(parent))
