"""Runs a generated program and its tests in a child process that can do no harm, and says whether the tests passed.

Every sample has a fresh interpreter, an empty working directory that is removed afterwards, no inherited environment or
file descriptors, a session of its own that is killed whole, and limits on processor time, wall time, memory, file size
and processes. On Linux (x86-64, ARM64) a seccomp filter moreover refuses it every system call beyond computing and
reading files, for root too: new processes and threads, files opened for writing, sockets, signals, changed limits.
`guarantees` tries what holds on this machine.

What it stops: accidents and tricks. Samples that loop, fork, fill memory, write or delete files, reach for the network,
kill their parent, exit early, print what success looks like, or redefine builtins score wrong and change nothing.
What it does not stop: reading files that the user may read (nothing of them can leave), and a sample that is written
against this scorer and looks for its own nonce, or returns objects that claim to equal everything. Where `guarantees`
says no, a process that leaves its session outlives the sample.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from spot_infer.errors import SpotError

_JAIL = Path(__file__).with_name("jail.py")
STARTED = b"+"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class CodeExecutionNotAllowed(SpotError):
    """An answer was to be scored by running it, without permission."""


@dataclass(frozen=True)
class Limits:
    """Of one sample: processor and wall seconds, bytes of address space, bytes a file, processes of its user."""

    cpu_s: int = 10
    wall_s: float = 30.0
    memory_bytes: int = 512 * 1024 * 1024
    file_bytes: int = 1024 * 1024
    processes: int = 1


def require_permission(allow_code_execution: bool) -> None:
    """Raise CodeExecutionNotAllowed unless generated code may run."""
    if not allow_code_execution:
        raise CodeExecutionNotAllowed(
            "the answers of this task are scored by running them: pass --allow-code-execution "
            "(allow_code_execution=True)"
        )


def passes(
    code: str, tests: str, names: Sequence[str] = (), *, allow_code_execution: bool, limits: Limits = Limits()
) -> bool:
    """Whether `tests`, statements that raise where something is wrong, run through after `code`.

    names: functions that the tests call although a builtin has the same name. Raises CodeExecutionNotAllowed, and
    SpotError where the child does not start, so that a broken machine is never a wrong answer.
    """
    require_permission(allow_code_execution)
    nonce = secrets.token_hex(16)
    job = {"code": code, "tests": tests, "names": list(names), "nonce": nonce, "limits": asdict(limits)}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, tempfile.TemporaryFile() as sent:
        sent.write(json.dumps(job).encode())
        sent.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-I", str(_JAIL)],
            cwd=folder,
            env=_ONE_THREAD,
            stdin=sent,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert child.stdout is not None
        try:
            said = _read(child.stdout.fileno(), len(STARTED) + len(nonce), limits.wall_s)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.stdout.close()
            child.wait()
    if not said.startswith(STARTED):
        raise SpotError(
            f"the sandbox of generated code did not start within {limits.wall_s:g} s; check that it can here"
        )
    return said == STARTED + nonce.encode()


def _read(descriptor: int, most: int, wall_s: float) -> bytes:
    """What comes until the pipe closes, `wall_s` is over or there is more than `most` bytes."""
    data, end = b"", time.monotonic() + wall_s
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while len(data) <= most and selector.select(max(0.0, end - time.monotonic())):
            if not (chunk := os.read(descriptor, most + 1 - len(data))):
                break
            data += chunk
    return data


_PROBES = {
    "network_cut": "import socket\nsocket.socket()",
    "no_processes": "import os\nif os.fork() == 0: os._exit(0)",
    "no_signals": "import os\nos.kill(os.getppid(), 0)",
    "files_unwritable": "import os\nos.close(os.open('probe', os.O_CREAT | os.O_WRONLY))",
}


@cache
def guarantees() -> dict[str, bool]:
    """What this machine refuses to samples, found by samples that try it: `network_cut`, `no_processes`, `no_signals`,
    `files_unwritable`. Recorded with results that ran code."""
    return {name: not passes(probe, "", allow_code_execution=True) for name, probe in _PROBES.items()}
