"""Who writes behind a URL: the object `writer` beside the manifest names it. Stores have no locks, so this keeps
mistakes out, not two jobs that mean to. Knows nothing about what is written.
"""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress

from spot_infer.errors import SpotError
from spot_train.shards.copy import Place, Unreachable

WRITER = "writer"


def new_mark() -> bytes:
    """A name that no other writer has."""
    return f"{socket.gethostname()}-{secrets.token_hex(4)}".encode()


class Claim:
    """The right of the writer called `mark` to write at `there`."""

    def __init__(self, there: Place, mark: bytes) -> None:
        self._there, self._mark = there, mark

    def take(self, take_over: str | None) -> None:
        """Become the writer. Raises SpotError naming another one, unless it is the one called `take_over`."""
        holder = self._there.read(WRITER)
        if holder not in (None, self._mark) and holder.decode() != take_over:
            raise SpotError(
                f"{self._there.name} is being written by {holder.decode()}; several jobs don't write one URL: give "
                f"each its own and merge the sets (--take-over {holder.decode()} breaks the claim of one that is gone)"
            )
        self._there.write(WRITER, self._mark)
        self.check()

    def check(self) -> None:
        """Raise SpotError where another job has taken over: nothing may be written any more."""
        if self._there.read(WRITER) != self._mark:
            raise SpotError(f"{self._there.name} was taken over from this job, and the job that took it goes on")

    def release(self) -> None:
        with suppress(Unreachable):
            if self._there.read(WRITER) == self._mark:
                self._there.remove(WRITER)
