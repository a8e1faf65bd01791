"""Folders that appear whole or not at all: written beside their place, flushed to disk, then renamed."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path


def replace_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary folder beside `path`, then rename it to `path`; what stood there is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, replaced = _beside(path), _beside(path)
    partial.mkdir()
    try:
        write(partial)
        for file in partial.rglob("*"):
            _flush(file)
        _flush(partial)
        if path.exists():
            os.rename(path, replaced)
        os.rename(partial, path)
        _flush(path.parent)
    finally:
        for leftover in (partial, replaced):
            shutil.rmtree(leftover, ignore_errors=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial-{uuid.uuid4().hex[:8]}")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
