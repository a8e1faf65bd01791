"""Workers on a Ray cluster, an actor each: on any of its machines, with a GPU each where it has some.

The set's folder must be one that every machine sees under the same path. An actor whose machine dies is started again
elsewhere, under its number. A process of its own holds the actors: Ray tries an address that does not answer for
minutes and ends, without a word, a process whose cluster is gone. Knows nothing about collecting.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from spot_infer.errors import SpotError
from spot_train.collect.ranks import Rank
from spot_train.collect.workers import Job, end_with_parent, work
from spot_train.output_lock import Interrupted

CONNECTS_WITHIN_S = 90
_RESTARTS = 3


class RayCrew:
    """Workers as Ray actors of a cluster: by its address, `auto` for the one of this machine, `local` for a new one.

    Making one connects; raises SpotError where Ray is not installed or no cluster answers in `CONNECTS_WITHIN_S`.
    """

    def __init__(self, address: str) -> None:
        if find_spec("ray") is None:
            raise SpotError('--ray needs the package ray; run `pip install "spot-dlm[ray]"`')
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._holder = context.Process(target=_hold, args=(address, theirs), name="collect-ray", daemon=True)
        self._holder.start()
        theirs.close()
        self._ranks = 0
        self._said: dict[int, str] = {}
        reason = f"no answer within {CONNECTS_WITHIN_S} s"
        if self._pipe.poll(CONNECTS_WITHIN_S):
            try:
                reason = self._pipe.recv()
            except EOFError:
                reason = "Ray ended the process that asked"
        if reason:
            self.close()
            raise SpotError(f"--ray {address} gives no cluster ({reason}); give its address, or local")

    def start(self, job: Job, ranks: Sequence[Rank]) -> RayCrew:
        """Start one actor a rank."""
        self._ranks = len(ranks)
        self._pipe.send((_absolute(job), tuple(ranks)))
        return self

    @property
    def running(self) -> int:
        alive = self._holder.is_alive()
        try:
            while self._pipe.poll():
                number, sentence = self._pipe.recv()
                self._said[number] = sentence and f"worker {number}: {sentence}"
        except EOFError:
            alive = False
        return self._ranks - len(self._said) if alive else 0

    @property
    def ended(self) -> Sequence[str]:
        sentences = [sentence for sentence in self._said.values() if sentence]
        if len(self._said) < self._ranks and not self._holder.is_alive():
            sentences.append("the Ray cluster is gone")
        return sentences

    def stop(self) -> None:
        self._holder.terminate()

    def close(self) -> None:
        self._holder.kill()
        self._holder.join()


class _Worker:
    """What an actor does; all that it holds lives in `work`."""

    def work(self, job: Job, rank: Rank) -> str:
        """Collect; returns why it ended, if not because the set is complete."""
        try:
            work(job, rank)
        except (SpotError, Interrupted) as error:
            return str(error)
        return ""


def _hold(address: str, pipe: Connection) -> None:
    """The process of the actors, which end with it. Says why there is no cluster, if so, then waits for the job and
    says of every worker that has ended its number and why."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()
    _silence()
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as error:
        pipe.send(_one_line(error))
        return
    pipe.send("")
    try:
        job, ranks = pipe.recv()
    except EOFError:  # the run was refused
        return
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    actor = ray.remote(num_gpus=gpus, num_cpus=1, max_restarts=_RESTARTS, max_task_retries=_RESTARTS)(_Worker)
    actors = [actor.remote() for _ in ranks]
    numbers = {one.work.remote(job, rank): rank.number for one, rank in zip(actors, ranks, strict=True)}
    while numbers:
        for reference in ray.wait(list(numbers))[0]:
            try:
                said = ray.get(reference)
            except ray.exceptions.RayError as error:
                said = _one_line(error)
            pipe.send((numbers.pop(reference), said))
    ray.shutdown()


def _silence() -> None:
    """Keep what Ray's own threads print off the terminal; Python's errors stay on it."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)


def _one_line(error: Any) -> str:
    return " ".join(str(error).split())[:300]


def _absolute(job: Job) -> Job:
    """The job with an output that means the same in every working directory."""
    return replace(job, out=Path(job.out).absolute())
