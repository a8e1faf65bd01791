"""One writer a folder, and signals that wait until the writer has tidied up. Knows nothing about what is written."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from spot_infer.atomic import full_disk_named
from spot_infer.errors import SpotError

LOCK = "writer.lock"


class Interrupted(Exception):
    """SIGINT or SIGTERM arrived; everything finished is kept. `code` is the exit status that shells expect."""

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = 128 + number


@dataclass
class PendingSignal:
    """The first signal that arrived while signals were deferred."""

    number: int | None = None


@contextmanager
def output_lock(folder: Path) -> Iterator[None]:
    """Be the only writer of `folder`. The kernel drops the lock of a process that dies, so the next run takes over.

    Raises SpotError naming the process that holds it.
    """
    file = folder / LOCK
    with full_disk_named(file):
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode().strip() or "unknown"
            raise SpotError(
                f"{folder} is being written by process {holder}; wait for it to end or use another --out"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def deferred_signals() -> Iterator[PendingSignal]:
    """Note SIGINT and SIGTERM instead of dying of them; a second one acts at once. Main thread only, else no effect."""
    pending = PendingSignal()
    if threading.current_thread() is not threading.main_thread():
        yield pending
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        pending.number = number
        restore()

    for number in numbers:
        signal.signal(number, note)
    try:
        yield pending
    finally:
        restore()
