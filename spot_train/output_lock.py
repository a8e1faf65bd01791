"""One job writes a folder, and signals that wait until a writer has tidied up. Knows nothing about what is written.

A job is one process, or several that share its name. The kernel drops the lock of a process that dies, so the next run
goes on; a lock that a lost machine left behind on a file server is taken over by name, and whoever held it finds out
before it writes again.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from spot_infer.atomic import full_disk_named
from spot_infer.errors import SpotError

LOCK = "writer.lock"
_POLL_S = 0.05
_GAP_S = 0.5
"""A job may be half-way into sharing its lock; another one is refused only after so long."""


class Interrupted(Exception):
    """SIGINT or SIGTERM arrived; everything finished is kept. `code` is the exit status that shells expect."""

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = 128 + number


@dataclass
class PendingSignal:
    """The first signal that arrived while signals were deferred."""

    number: int | None = None


def process_name() -> str:
    """This process among all that may write a folder: its number and its machine, as `4711@node3`."""
    return f"{os.getpid()}@{socket.gethostname()}"


@dataclass
class OutputLock:
    """The lock of `folder`, held for `job`. first: no other process of the job came before."""

    folder: Path
    job: str
    descriptor: int
    first: bool
    left: bool = False

    def share(self) -> None:
        """Let other processes of the job in; of no effect where they already are. Raises SpotError where another job
        came in between."""
        while self.first and not _locked(self.descriptor, fcntl.LOCK_SH):
            if (holder := _holder(self.descriptor)) != self.job:
                raise SpotError(_refusal(self.folder, holder, None))
            time.sleep(_POLL_S)

    def alone(self) -> bool:
        """Whether this process is the job's last; to be asked when it has done its part, since a no is for good."""
        self.left = self.left or not (self.ours() and _locked(self.descriptor, fcntl.LOCK_EX))
        return not self.left

    def ours(self) -> bool:
        """Whether nobody has taken the lock over."""
        return _same_file(self.descriptor, self.folder / LOCK)

    def check(self) -> None:
        """Raise SpotError where another job has taken the lock over: nothing may be written any more."""
        if not self.ours():
            raise SpotError(
                f"the lock of {self.folder} was taken over from {self.job}; what it had finished is kept, and the job "
                "that took it goes on"
            )


@contextmanager
def output_lock(folder: Path, job: str | None = None, take_over: str | None = None) -> Iterator[OutputLock]:
    """Be the only job that writes `folder`, which is made if need be, and removed again if nothing was put there.

    `job` is the name that several processes share; the first of them is alone until it calls `share`. `take_over`:
    whose lock to break. Raises SpotError naming the job that holds it.
    """
    name = process_name() if job is None else job
    descriptor, first, made = _acquire(folder, name, job is not None, take_over)
    lock = OutputLock(folder, name, descriptor, first)
    try:
        yield lock
    finally:
        if first and lock.alone() and [path.name for path in folder.iterdir()] == [LOCK]:
            (folder / LOCK).unlink()
            if made:
                folder.rmdir()
        os.close(descriptor)


@contextmanager
def only_one(file: Path, stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Wait until no other process is in here under the same file. Raises Interrupted once `stopped` says so."""
    descriptor = _open(file)
    try:
        while not _locked(descriptor, fcntl.LOCK_EX):
            if stopped():
                raise Interrupted(signal.SIGTERM, f"stopped while waiting for {file}")
            time.sleep(_POLL_S)
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


def _acquire(folder: Path, name: str, shared: bool, take_over: str | None) -> tuple[int, bool, bool]:
    """A descriptor that holds the lock, whether it is the job's first, and whether the folder had to be made."""
    file, made = folder / LOCK, False
    patience = time.monotonic() + _GAP_S
    while True:
        made = make_folder(folder) or made
        descriptor = _open(file)
        if _locked(descriptor, fcntl.LOCK_EX):
            if _same_file(descriptor, file):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{name}\n".encode(), 0)
                return descriptor, True, made
            os.close(descriptor)
            continue
        joining = shared and _holder(descriptor) == name
        if joining and _locked(descriptor, fcntl.LOCK_SH) and _holds(descriptor, file, name):
            return descriptor, False, made
        holder = _holder(descriptor)
        os.close(descriptor)
        if joining:
            patience = time.monotonic() + _GAP_S
        elif take_over == holder:
            file.unlink(missing_ok=True)
        elif time.monotonic() > patience:
            raise SpotError(_refusal(folder, holder, take_over))
        time.sleep(_POLL_S)


def make_folder(folder: Path) -> bool:
    """Make the folder; returns whether there was none. Raises SpotError where it can't be."""
    if folder.is_dir():
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpotError(f"{folder} can't be made a folder ({error.strerror}); choose another path") from None
    return True


def _refusal(folder: Path, holder: str, take_over: str | None) -> str:
    if take_over is not None:
        return f"--take-over names {take_over}, but {folder} is being written by process {holder}; give that name"
    return (
        f"{folder} is being written by process {holder}; wait for it to end or use another folder (--take-over "
        f"{holder} of `collect` and `shards merge` breaks the lock of one that is gone and whose machine never said so)"
    )


def _open(file: Path) -> int:
    with full_disk_named(file):
        return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    """The job that the lock file names."""
    return os.pread(descriptor, 1024, 0).decode(errors="replace").strip() or "unknown"


def _holds(descriptor: int, file: Path, name: str) -> bool:
    return _same_file(descriptor, file) and _holder(descriptor) == name


def _same_file(descriptor: int, file: Path) -> bool:
    """Whether `file` is still the one that `descriptor` opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False
