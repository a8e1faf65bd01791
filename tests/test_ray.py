"""Workers on a Ray cluster: the bytes of one process, an address that does not answer, a head that dies.

They skip where Ray is not installed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from collecting import LEASE, PROMPTS, collect_fake, fake_target, folder_bytes, small_recipe
from fake_dlm import FakeTarget

from spot_infer.errors import SpotError
from spot_train.collect import ray_workers
from spot_train.collect.workers import Job, collect_with_workers
from spot_train.recipe.recipe import Recipe

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent
LEASES = -(-PROMPTS // LEASE)
_PATIENCE_S = 240


def fake_of(recipe: Recipe) -> FakeTarget:
    return fake_target()


def slow_of(recipe: Recipe) -> FakeTarget:
    """A target that leaves time to kill something."""
    target = fake_target()
    forward = target.forward

    def late(packed: object, cache: object) -> object:
        time.sleep(0.1)
        return forward(packed, cache)  # type: ignore[arg-type]

    target.forward = late  # type: ignore[assignment, method-assign]
    return target


@pytest.fixture(autouse=True)
def ray_here(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent), *sys.path]))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A cluster of this machine in a session of its own: its address, and the process that leads the session."""
    port = free_port()
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus", "2"]
    command += ["--port", str(port), "--include-dashboard", "false", "--disable-usage-stats"]
    with (folder / "head.log").open("wb") as said:
        head = subprocess.Popen(command, start_new_session=True, stdout=said, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while "runtime started" not in (folder / "head.log").read_text():
            assert head.poll() is None and time.monotonic() < deadline, (folder / "head.log").read_text()
            time.sleep(0.2)
        yield f"127.0.0.1:{port}", head
    finally:
        kill_session(head)


def kill_session(leader: subprocess.Popen[bytes]) -> None:
    """SIGKILL of all of a cluster's processes, each of which leads a group of its own."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(int(entry.name)) == leader.pid:
                os.kill(int(entry.name), signal.SIGKILL)
    leader.wait()


def test_actors_write_what_one_process_writes(prompts: Path, whole: Path, tmp_path: Path) -> None:
    summary = collect_with_workers(Job(small_recipe(prompts), tmp_path / "out", load=fake_of), 2, ray="local")
    assert (summary.written, summary.ended) == (LEASES, ())
    assert folder_bytes(tmp_path / "out") == folder_bytes(whole)


def test_an_address_that_does_not_answer_is_one_sentence(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_workers, "CONNECTS_WITHIN_S", 20)
    started = time.monotonic()
    with pytest.raises(SpotError, match=r"--ray 127\.0\.0\.1:\d+ gives no cluster \(.+\); give its address, or local$"):
        collect_with_workers(
            Job(small_recipe(prompts), tmp_path / "out", load=fake_of), 2, ray=f"127.0.0.1:{free_port()}"
        )
    assert time.monotonic() - started < 30
    assert not (tmp_path / "out").exists()


def test_a_head_that_dies_loses_nothing_that_was_written(prompts: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with cluster(tmp_path) as (address, head):

        class KillsTheHead:
            def started(self, plan: object) -> None:
                """Nothing yet."""

            def fitting(self, lease: int) -> None:
                """Nothing to do."""

            def advanced(self, tally: object) -> None:
                if list(out.glob("part-*.zarr")) and head.poll() is None:
                    kill_session(head)

        with pytest.raises(SpotError, match=rf"of {LEASES} shards are in .*no worker is left: .*Run again to resume$"):
            collect_with_workers(Job(small_recipe(prompts), out, load=slow_of), 2, address, KillsTheHead())
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*.zarr")}
    assert 0 < len(kept) < LEASES
    collect_fake(prompts, out)
    assert folder_bytes(out) == folder_bytes(whole)
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
