"""The child of `sandbox.py`: takes a job from stdin, gives up what it could harm with, runs the sample, then its tests.

Runs as a script in a fresh, isolated interpreter and imports the standard library only. Knows no task. It
writes "+" to stdout's pipe when it is ready and the job's nonce after the last test; the sample never has stdout.
"""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import platform
import resource
import struct
import sys
import types
from typing import Any

_CALLS = {
    "x86_64": (
        0xC000003E,
        257,  # openat
        72,  # fcntl
        302,  # prlimit64
        # read write close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
        # pread64 readv writev access select sched_yield mremap mincore madvise dup dup2 nanosleep getpid exit uname
        # getcwd readlink gettimeofday getrlimit getrusage sysinfo times getuid getgid geteuid getegid getppid getpgrp
        # sigaltstack statfs fstatfs arch_prctl gettid time futex sched_getaffinity getdents64 set_tid_address
        # restart_syscall clock_gettime clock_getres clock_nanosleep exit_group newfstatat readlinkat faccessat pselect6
        # ppoll set_robust_list getrandom membarrier statx rseq faccessat2
        (0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19, 20, 21, 23, 24, 25, 27, 28, 32, 33, 35, 39, 60, 63,
         79, 89, 96, 97, 98, 99, 100, 102, 104, 107, 108, 110, 111, 131, 137, 138, 158, 186, 201, 202, 204, 217, 218,
         219, 228, 229, 230, 231, 262, 267, 269, 270, 271, 273, 318, 324, 332, 334, 439),
    ),
    "aarch64": (
        0xC00000B7,
        56,
        25,
        261,
        # The same calls where the architecture has them.
        (17, 23, 43, 44, 48, 57, 61, 62, 63, 64, 65, 66, 67, 72, 73, 78, 79, 80, 93, 94, 96, 98, 99, 101, 113, 114, 115,
         123, 124, 128, 132, 134, 135, 139, 153, 160, 163, 165, 169, 172, 173, 174, 175, 176, 177, 178, 179, 214, 215,
         216, 222, 226, 232, 233, 278, 283, 291, 293, 439),
    ),
}  # fmt: skip
"""By architecture: its audit number, the three calls that are allowed with some arguments only, and those allowed."""

_LOAD, _EQUAL, _ABOVE, _BITS, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_FIRST_ARGUMENT = 16
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_SET_PARENT_DEATH, _SET_SECCOMP, _NO_NEW_PRIVILEGES = 1, 22, 38


def refuse_system_calls() -> bool:
    """From now on this process can compute, read files, and write to what it has open, and nothing else.

    It starts no process or thread, opens nothing for writing, makes no socket, sends no signal and changes no limit: a
    seccomp filter answers such calls with "not permitted". False where the platform has none.
    """
    known = _CALLS.get(platform.machine())
    if sys.platform != "linux" or known is None or sys.maxsize < 2**32:
        return False
    program = b"".join(struct.pack("=HBBI", *one) for one in _filter(*known))
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return False
    return libc.prctl(_SET_SECCOMP, 2, ctypes.addressof(header), 0, 0) == 0


def _filter(audit: int, openat: int, fcntl: int, prlimit: int, allowed: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The filter as (operation, jump if true, jump if false, value)."""
    rules: list[tuple[int, ...]] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for call in allowed:
        rules += [(_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ALLOW)]
    reading_only = [(_LOAD, 0, 0, _FIRST_ARGUMENT + 16), (_BITS, 1, 0, _WRITING), (_RETURN, 0, 0, _ALLOW)]
    flags_only = [(_LOAD, 0, 0, _FIRST_ARGUMENT + 8), (_ABOVE, 1, 0, 4), (_RETURN, 0, 0, _ALLOW)]
    asking_only = [
        (_LOAD, 0, 0, _FIRST_ARGUMENT + 16),
        (_EQUAL, 0, 3, 0),
        (_LOAD, 0, 0, _FIRST_ARGUMENT + 20),
        (_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for call, checks in ((openat, reading_only), (fcntl, flags_only), (prlimit, asking_only)):
        rules += [(_EQUAL, 0, len(checks) + 1, call), *checks, (_RETURN, 0, 0, _REFUSE)]
    return [*rules, (_RETURN, 0, 0, _REFUSE)]


def limit_resources(limits: dict[str, int]) -> None:
    """Caps that hold on every POSIX platform; `processes` does not bind root."""
    for name, key in (("CPU", "cpu_s"), ("AS", "memory_bytes"), ("FSIZE", "file_bytes"), ("NPROC", "processes")):
        wanted, (_, most) = limits[key], resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        value = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
        except (ValueError, OSError):
            continue
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def solves(code: str, tests: str, names: list[str]) -> bool:
    """Run the sample, then its tests on the side: with the interpreter's own builtins, whatever it did to them, and
    without a trace function that it may have left.

    Of the sample's globals the tests see all but those named as a builtin; `names` are seen in any case.
    """
    pristine = dict(vars(builtins))
    run, build, untrace = exec, compile, sys.settrace
    sample = types.ModuleType("sample")
    sys.modules["sample"] = sample
    try:
        run(build(code, "<sample>", "exec", dont_inherit=True), sample.__dict__)
        untrace(None)
        seen = {name: value for name, value in sample.__dict__.items() if name not in pristine or name in names}
        run(build(tests, "<tests>", "exec", dont_inherit=True), {**seen, "__builtins__": pristine})
    except BaseException:
        return False
    return True


def main() -> None:
    """Read the job, shut the doors, run it."""
    finish, write = os._exit, os.write
    job: dict[str, Any] = json.load(sys.stdin)
    verdict = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH, 9, 0, 0, 0)
    limit_resources(job["limits"])
    refuse_system_calls()
    write(verdict, b"+")
    solved = solves(job["code"], job["tests"], job["names"])
    if solved:
        write(verdict, job["nonce"].encode())
    finish(not solved)


if __name__ == "__main__":
    main()
