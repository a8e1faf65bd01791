"""A small collection on a fake target: its recipe, its prompts file, and a run that can be killed from outside."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from fake_dlm import FakeTarget

from spot_train.collect import workers
from spot_train.collect.collect import Summary, collect
from spot_train.collect.workers import Job, collect_with_workers
from spot_train.recipe.recipe import Recipe, parse_recipe

PROMPTS = 18
LEASE = 4


def fake_target() -> FakeTarget:
    return FakeTarget(seed=3, block_length=8, vocab_size=40, stop_rate=0.01)


def write_prompts(path: Path, count: int = PROMPTS) -> Path:
    """`count` different prompts of 1 to 11 token ids."""
    rows = [
        {"prompt": [2 + (7 * i + k * (i + 1)) % 30 for k in range(1 + i % 11)] + [2 + i % 30]} for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def small_recipe(pool: Path, **sections: Mapping[str, Any]) -> Recipe:
    """A recipe for the fake target; `sections` win over its values."""
    tree: dict[str, dict[str, Any]] = {
        "target": {"path_or_id": "fake"},
        "prompts": {"sources": [{"path_or_id": str(pool)}], "heldout_fraction": 0.3},
        "collect": {"max_new_tokens": 20, "batch_size": 3, "lease_prompts": LEASE, "free_space_margin_bytes": 0},
    }
    for name, values in sections.items():
        tree[name] = {**tree.get(name, {}), **values}
    return parse_recipe(tree)


def collect_fake(pool: Path, out: Path, **sections: Mapping[str, Any]) -> Summary:
    """Collect `pool` into `out` with the fake target."""
    return collect(small_recipe(pool, **sections), out, target=fake_target())


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """Every file of a set of shards by relative path, without the lock and the provenance of runs."""
    left_out = ("writer.lock", "provenance.json")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in left_out]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(files)}


@contextmanager
def child_server(*modules: str) -> Iterator[ForkServerContext]:
    """Starts children that have `modules` of the tests imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules, "datasets"])
    here = Path(__file__).resolve().parent
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", os.pathsep.join([str(here), str(here.parent)]))
        yield context


def killable_collect(prompts: str, out: str, marker: str, hang_at: int | None) -> None:
    """Runs in a child process; touches `marker` when decoding starts, or as it hangs before rename `hang_at`."""
    renames = 0

    def hang() -> None:
        nonlocal renames
        if renames == hang_at:
            Path(marker).touch()
            time.sleep(600)
        renames += 1

    class Started:
        def started(self, plan: object) -> None:
            if hang_at is None:
                Path(marker).touch()

        def fitting(self, lease: int) -> None:
            """Nothing to do."""

        def advanced(self, tally: object) -> None:
            time.sleep(0.002)

    collect(small_recipe(Path(prompts)), out, fake_target(), Started(), before_rename=hang)


def killable_job(prompts: str, out: str, traps: str, count: int) -> None:
    """Runs in a child process: a driver of workers. Each worker leaves its process id in `traps`; whoever is about to
    rename something while a file `armed` lies there makes it `caught-<its id>` and hangs."""
    folder = Path(traps)
    driver = os.getpid()

    def load(recipe: Recipe) -> FakeTarget:
        if os.getpid() != driver:
            (folder / f"worker-{os.getpid()}").touch()
        return fake_target()

    def hang() -> None:
        with suppress(FileNotFoundError):
            (folder / "armed").rename(folder / f"caught-{os.getpid()}")
            time.sleep(600)

    started_by_fork()
    collect_with_workers(Job(small_recipe(Path(prompts)), Path(out), load=load, before_rename=hang), count)


def started_by_fork() -> None:
    """Let this process, which has imported everything and decoded nothing, start its workers without importing anew."""
    workers.START = "fork"


class SignalAfter:
    """A progress that sends `number` to this process after `trajectories` have been decoded."""

    def __init__(self, number: signal.Signals, trajectories: int) -> None:
        self.number = number
        self.trajectories = trajectories
        self.sent = False

    def started(self, plan: object) -> None:
        """Nothing yet."""

    def fitting(self, lease: int) -> None:
        """Nothing to do."""

    def advanced(self, tally: Any) -> None:
        if tally.trajectories == self.trajectories and not self.sent:
            self.sent = True
            os.kill(os.getpid(), self.number)
