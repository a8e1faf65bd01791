"""Generated code does no harm, and only tests that ran make a sample right: run as root and as a normal user alike."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from spot_infer.errors import SpotError
from spot_train.tasks import CodeExecutionNotAllowed
from spot_train.tasks.sandbox import Limits, guarantees, passes

QUICK = Limits(cpu_s=1, wall_s=2.0)
TEST = "assert f(1) == 2\nassert f(5) == 6"
RIGHT = "def f(x):\n    return x + 1\n"
SECRET = "spot-sandbox-was-here"

ENDLESS = {
    "loops": "def f(x):\n    while True: pass",
    "sleeps": "import time\ndef f(x):\n    time.sleep(60)",
    "prints without end": "def f(x):\n    while True: print('x' * 10**6)",
    "writes without end": "import os\ndef f(x):\n    while True: os.write(1, b'x' * 10**6)",
    "fills the verdict's pipe": """
import os
while True:
    for descriptor in range(3, 20):
        try: os.write(descriptor, b'x' * 10**6)
        except OSError: pass
""",
}
HARMFUL = {
    "fills memory": "def f(x):\n    kept = []\n    while True: kept.append(bytearray(2**26))",
    "one huge string": "def f(x):\n    return ' ' * 10**11",
    "forks": "import os\nwhile True: os.fork()",
    "forks and catches": """
import os
for _ in range(10**4):
    try: os.fork()
    except OSError: pass
raise SystemExit(1)
""",
    "starts a program": "import subprocess\nsubprocess.run(['true'], check=True)\n" + RIGHT,
    "starts a shell": "import os\nif os.system('exit 0'): raise RuntimeError\n" + RIGHT,
    "becomes a program": "import os\nos.execv('/bin/true', ['true'])",
    "starts a thread": "import threading\nthreading.Thread(target=print).start()\n" + RIGHT,
    "starts a daemon": """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: pass
""",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)\n" + RIGHT,
    "kills its group": "import os\nos.kill(0, 9)\n" + RIGHT,
    "signals everything": "import os\nos.kill(-1, 0)\n" + RIGHT,
    "writes where it is": "open('notes', 'w').write('x')\n" + RIGHT,
    "writes a lot": "with open('notes', 'wb') as file:\n    while True: file.write(bytes(2**20))",
    "opens a socket": "import socket\nsocket.socket()\n" + RIGHT,
    "lifts its limits": "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (-1, -1))\n" + RIGHT,
    "crashes": "import ctypes\nctypes.string_at(0)",
    "recurses": "def f(x):\n    return f(x)",
    "reads its input": "def f(x):\n    return int(input()) + x",
}
CHEATS = {
    "exits": "raise SystemExit(0)",
    "exits with sys": "import sys\nsys.exit(0)",
    "exits at once": "import os\nos._exit(0)",
    "exits in the test": "import os\ndef f(x):\n    os._exit(0)",
    "exits politely in the test": "def f(x):\n    raise SystemExit(0)",
    "exits when it ends": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x):\n    return 7",
    "prints": "print('passed')\nprint('all tests passed')\ndef f(x):\n    print('all tests passed')",
    "prints and exits": "import os\nprint('all tests passed', flush=True)\nos._exit(0)",
    "writes everywhere and exits": "import os\nfor d in range(64):\n    try: os.write(d, b'all tests passed')\n"
    "    except OSError: pass\nos._exit(0)",
    "overrides AssertionError": "AssertionError = ValueError\ndef f(x):\n    return 7",
    "AssertionError becomes nothing": "import builtins\nbuiltins.AssertionError = Exception\ndef f(x):\n    return 7",
    "shadows a builtin": "def abs(x): return 0\ndef f(x):\n    return 70",
    "changes a builtin": "import builtins\nbuiltins.abs = lambda x: 0\ndef f(x):\n    return 70",
    "changes exec": "import builtins\nbuiltins.exec = print\nbuiltins.compile = print\ndef f(x):\n    return 7",
    "exec does nothing": "import builtins\nbuiltins.exec = lambda *a, **k: None\ndef f(x):\n    return 7",
    "compiles nothing": "import builtins\nbuild = builtins.compile\nbuiltins.compile = lambda *a, **k: "
    "build('', 'x', 'exec')\ndef f(x):\n    return 7",
    "catches everything": """
try:
    def f(x):
        try: raise ValueError
        except BaseException: return 7
except BaseException: pass
""",
    "hooks exceptions": "import sys, os\nsys.excepthook = lambda *a: os._exit(0)\ndef f(x):\n    raise ValueError",
    "closes everything": "import os\nos.closerange(0, 64)\n" + "def f(x):\n    return 7",
    "defines the tests away": "def check(*a): pass\ndef f(x):\n    return 7",
    "nothing": "",
    "does not parse": "def f(x)\n    return x + 1",
    "not text": "def f(x):\n    return '\ud800'",
    "a zero byte": "\0" + RIGHT,
    "prose": "Here is the function you asked for.",
    "one test right": "def f(x):\n    return 2",
    "the wrong name": "def g(x):\n    return x + 1",
}


def run(code: str, tests: str = TEST, names: tuple[str, ...] = (), limits: Limits = QUICK) -> bool:
    return passes(code, tests, names, allow_code_execution=True, limits=limits)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> object:
    """Fails a test that leaves a child or a folder behind; what an earlier test in this process left is not its own."""
    folder = Path(tempfile.gettempdir())
    before, children = set(folder.iterdir()), _children()
    yield
    assert _children() <= children
    assert not [path for path in set(folder.iterdir()) - before if (path / "notes").exists()]


def _children() -> set[str]:
    """Process ids whose parent is this process, the ended ones that nobody waited for among them."""
    return {path.name for path in Path("/proc").glob("[0-9]*") if _parent(path) == str(os.getpid())}


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def _parent(process: Path) -> str:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return ""


def test_it_runs_what_is_right() -> None:
    assert run(RIGHT)
    assert run("print('chatter')\n" + RIGHT)
    assert run("def sum(a, b):\n    return a + b", "assert sum(1, 2) == 3", ("sum",))
    assert run("import math\n" + RIGHT, "assert math.isclose(f(1), 2)")
    assert run("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'\ndef f(x): return P(x).x + 1")
    assert run("import collections, itertools, re, heapq, random, datetime, string, hashlib, functools, copy\n" + RIGHT)
    assert run("if __name__ == '__main__':\n    input()\n" + RIGHT)


def test_a_trace_function_that_the_sample_left_does_not_see_the_tests() -> None:
    tests = "before = f(1)\nassert before == 2\nafter = f(2)"
    assert not run(
        "import sys\n"
        "def trace(frame, event, arg):\n"
        "    if event == 'line' and frame.f_code.co_filename == '<tests>' and frame.f_lineno == 2:\n"
        "        frame.f_lineno = 3\n"
        "    return trace\n"
        "sys.settrace(trace)\n"
        "def f(x):\n    return 7",
        tests,
    )
    assert run(RIGHT, tests)


def test_it_is_quick() -> None:
    def children_s() -> float:
        times = os.times()
        return times.children_user + times.children_system

    before = children_s()
    for _ in range(5):
        assert run(RIGHT)
    assert (children_s() - before) / 5 < 0.2


@pytest.mark.parametrize("code", ENDLESS.values(), ids=ENDLESS)
def test_what_never_ends_is_ended(code: str) -> None:
    started = time.monotonic()
    assert not run(code, limits=Limits(cpu_s=1, wall_s=1.0))
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("code", HARMFUL.values(), ids=HARMFUL)
def test_harm_is_wrong(code: str) -> None:
    if not all(guarantees().values()):
        pytest.skip("this platform has no filter of system calls, and the sample would do what it tries")
    assert not run(code)


@pytest.mark.parametrize("code", CHEATS.values(), ids=CHEATS)
def test_cheating_is_wrong(code: str) -> None:
    assert not run(code, "assert abs(f(1) - 2) < 0.5\nassert abs(f(5) - 6) < 0.5")


def test_nothing_outside_is_written_or_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text(SECRET)
    for attempt in (
        f"open({str(kept)!r}, 'w')",
        f"open({str(kept)!r}, 'a').write('x')",
        f"open({str(kept)!r}, 'r+').write('x')",
        f"import os\nos.remove({str(kept)!r})",
        f"import os\nos.rename({str(kept)!r}, {str(kept)!r} + '2')",
        f"import os\nos.truncate({str(kept)!r}, 0)",
        f"import os\nos.open({str(kept)!r}, os.O_RDONLY | os.O_TRUNC)",
        f"import os\nos.chmod({str(kept)!r}, 0)",
        f"import os\nos.link({str(kept)!r}, {str(kept)!r} + '2')",
        f"import os\nos.mkdir({str(tmp_path / 'new')!r})",
        f"import shutil\nshutil.rmtree({str(tmp_path)!r})",
    ):
        assert not run(attempt + "\n" + RIGHT), attempt
        assert kept.read_text() == SECRET and [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_sample_sees_an_empty_folder_no_environment_and_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOT_TEST_TOKEN", SECRET)
    (tmp_path / "open").write_text(SECRET)
    with (tmp_path / "open").open() as file:
        os.set_inheritable(file.fileno(), True)
        look = """
import os
assert os.listdir('.') == [] and 'SPOT_TEST_TOKEN' not in os.environ
def is_open(descriptor):
    try: return bool(os.fstat(descriptor))
    except OSError: return False
assert sum(map(is_open, range(3, 256))) <= 1
"""
        assert run(look + RIGHT)


def test_the_parent_lives_and_its_death_ends_the_sample(tmp_path: Path) -> None:
    script = (
        "from spot_train.tasks.sandbox import passes\n"
        "passes('import time\\ntime.sleep(30)', '', allow_code_execution=True)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parent.parent)
    child = None
    for _ in range(600):
        found = [p for p in Path("/proc").glob("[0-9]*") if _parent(p) == str(parent.pid)]
        child = next((p for p in found if b"jail.py" in _command(p)), None)
        if child is not None and b"S" in (child / "stat").read_bytes().split()[2:3]:
            break
        time.sleep(0.05)
    assert child is not None
    time.sleep(1)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(100):
        if not _command(child):
            return
        time.sleep(0.05)
    pytest.fail("the sample outlived its parent")


def test_permission_comes_first() -> None:
    with pytest.raises(CodeExecutionNotAllowed, match="--allow-code-execution"):
        passes(RIGHT, TEST, allow_code_execution=False)


@pytest.mark.skipif(sys.platform != "linux", reason="the filter of system calls is Linux's")
def test_this_machine_gives_every_guarantee() -> None:
    assert guarantees() == dict.fromkeys(("network_cut", "no_processes", "no_signals", "files_unwritable"), True)


def test_a_sandbox_that_does_not_start_is_not_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(SpotError, match="did not start"):
        run(RIGHT)
