"""Collection by several processes that one command starts: on this machine, or wherever a crew runs them.

The driver opens the set and shuts it, and watches shards appear in between; every worker is a rank of the same job,
which needs no word from the driver. Knows nothing about decoding.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from spot_infer.atomic import full_disk_named
from spot_infer.errors import SpotError
from spot_infer.targets.protocol import Target
from spot_train.collect.collect import (
    Image,
    MethodMaker,
    Progress,
    Summary,
    Tally,
    close_run,
    collect,
    load_recipe_target,
    no_image,
    open_run,
)
from spot_train.collect.methods import DRAFT_FREE
from spot_train.collect.plan import Plan
from spot_train.collect.ranks import Rank, on_device
from spot_train.collect.run import Run
from spot_train.compare.compare import Method
from spot_train.output_lock import Interrupted, PendingSignal, deferred_signals, output_lock, process_name
from spot_train.recipe.recipe import Recipe

START = "forkserver"
"""How processes are started: from one that has imported everything and holds no device."""
_POLL_S = 0.2
_PATIENCE_S = 60
"""How long workers have to stop after a signal before they are killed."""


@dataclass(frozen=True)
class Job:
    """What every worker of a collection is told; picklable. load: makes the recipe's target in a worker."""

    recipe: Recipe
    out: Path
    method: Method | MethodMaker = DRAFT_FREE
    bootstrap: bool = False
    load: Callable[[Recipe], Target] = load_recipe_target
    before_rename: Callable[[], None] | None = None


class Crew(Protocol):
    """Workers, running from the start."""

    @property
    def running(self) -> int:
        """How many have not ended."""

    @property
    def ended(self) -> Sequence[str]:
        """A sentence for each that ended before the set was complete."""

    def stop(self) -> None:
        """Ask those that run to finish nothing more."""

    def close(self) -> None:
        """End those that still run, at once."""


def collect_with_workers(
    job: Job,
    workers: int,
    ray: str | None = None,
    progress: Progress | None = None,
    take_over: str | None = None,
    image: Image = no_image,
) -> Summary:
    """`collect` by `workers` processes on this machine, or on the Ray cluster `ray`, into the same bits as by one.

    Raises what `collect` raises, before any worker starts where it can; SpotError where no worker is left.
    """
    crew_of = LocalCrew if ray is None else _ray_crew(ray)
    name = f"{process_name()}-{secrets.token_hex(4)}"
    ranks = [Rank(number, workers, number, workers, name) for number in range(workers)]
    with output_lock(job.out, name, take_over) as lock, full_disk_named(job.out), image(lock):
        target = job.load(on_device(job.recipe, ranks[0]))
        watcher = Rank(0, 1, 0, workers if ray is None else 1, name)
        run, plan = open_run(job.recipe, lock, watcher, target, job.method, job.bootstrap, job.before_rename)[:2]
        del target
        torch.cuda.empty_cache()
        lock.share()
        if progress is not None:
            progress.started(plan)
        with (
            deferred_signals() as pending,
            _started(crew_of, dataclasses.replace(job, recipe=run.recipe), ranks) as crew,
        ):
            tally = _watch(run, plan, crew, progress, pending)
        if run.missing() and pending.number is None:
            raise SpotError(
                f"{len(run.finished)} of {plan.leases} shards are in {job.out} and no worker is left: "
                f"{'; '.join(crew.ended)}. Run again to resume"
            )
        return close_run(run, plan, tally, pending, crew.ended)


def work(job: Job, rank: Rank) -> None:
    """One worker's part: all that `collect` does, until no lease is missing."""
    target = job.load(on_device(job.recipe, rank))
    collect(
        job.recipe,
        job.out,
        target,
        method=job.method,
        bootstrap=job.bootstrap,
        rank=rank,
        before_rename=job.before_rename,
    )


class LocalCrew:
    """Workers as processes of this machine, which end with the process that started them."""

    def __init__(self, job: Job, ranks: Sequence[Rank]) -> None:
        context: Any = multiprocessing.get_context(START)
        if START == "forkserver":
            context.set_forkserver_preload(["spot_train.collect.workers", "datasets"])
        self._workers: list[tuple[BaseProcess, Connection]] = []
        for rank in ranks:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_work_here, args=(job, rank, sender), name=f"collect-{rank.number}")
            process.start()
            sender.close()
            self._workers.append((process, receiver))
        self._said = [""] * len(ranks)

    @property
    def running(self) -> int:
        return sum(process.is_alive() for process, _ in self._workers)

    @property
    def ended(self) -> Sequence[str]:
        for number, (process, receiver) in enumerate(self._workers):
            if process.exitcode and not self._said[number]:
                self._said[number] = f"worker {number}: {_last_words(receiver) or _how_it_ended(process.exitcode)}"
        return [sentence for sentence in self._said if sentence]

    def stop(self) -> None:
        for process, _ in self._workers:
            process.terminate()

    def close(self) -> None:
        for process, _ in self._workers:
            process.kill()
            process.join()


@contextmanager
def _started(crew_of: Callable[[Job, Sequence[Rank]], Crew], job: Job, ranks: Sequence[Rank]) -> Iterator[Crew]:
    crew = crew_of(job, ranks)
    try:
        yield crew
    finally:
        crew.close()


def _watch(run: Run, plan: Plan, crew: Crew, progress: Progress | None, pending: PendingSignal) -> Tally:
    """Report what appears in the folder until all workers have ended."""
    started = time.monotonic()
    tally = Tally(plan.kept_trajectories)
    kept = dict(run.finished)
    deadline: float | None = None
    while crew.running:
        time.sleep(_POLL_S)
        if pending.number is not None and deadline is None:
            deadline = time.monotonic() + _PATIENCE_S
            crew.stop()
        if deadline is not None and time.monotonic() > deadline:
            break
        run.refresh()
        new = [attributes for name, attributes in run.finished.items() if name not in kept]
        tally.count(run.finished)
        tally.commits = sum(attributes["counts"]["commits"] for attributes in new)
        for name in ("nfe", "draft_free_nfe", "calls", "positions"):
            setattr(tally.forwards, name, sum(attributes["lease"][name] for attributes in new))
        tally.seconds = time.monotonic() - started
        if progress is not None:
            progress.advanced(tally)
    run.refresh()
    tally.count(run.finished)
    return tally


def _work_here(job: Job, rank: Rank, sender: Connection) -> None:
    """A worker process: ends at once when its driver is gone, leaves signals of the terminal to the driver. It has one
    thread, unless the environment says more: the bits of a matrix product depend on how many share it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        work(job, rank)
    except Interrupted as interrupted:
        sys.exit(interrupted.code)
    except SpotError as error:
        sender.send(str(error))
        sys.exit(2)


def end_with_parent() -> None:
    """Wait, in a thread, for the process that started this one, and end with it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _last_words(receiver: Connection) -> str:
    try:
        return str(receiver.recv()) if receiver.poll() else ""
    except EOFError:
        return ""


def _how_it_ended(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _ray_crew(address: str) -> Callable[[Job, Sequence[Rank]], Crew]:
    """Of a cluster that answers; refused before anything is opened otherwise."""
    from spot_train.collect.ray_workers import RayCrew

    return RayCrew(address).start
