"""Workers on a Ray cluster, an actor each: on any of its machines, with a GPU each where it has some.

The set's folder must be one that every machine sees under the same path. An actor whose machine dies is started again
elsewhere, under its number. Knows nothing about collecting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spot_infer.errors import SpotError
from spot_train.collect.ranks import Rank
from spot_train.collect.workers import Job, work
from spot_train.output_lock import Interrupted

_RESTARTS = 3


def connected(address: str) -> Any:
    """The package, connected to a cluster: by its address, `auto` for the one of this machine, `local` for a new one.

    Raises SpotError where Ray is not installed or no cluster answers.
    """
    try:
        import ray
    except ImportError:
        raise SpotError('--ray needs the package ray; run `pip install "spot-dlm[ray]"`') from None
    try:
        ray.init(address=None if address == "local" else address, log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SpotError(f"--ray {address} gives no cluster ({reason}); give its address, or local") from None
    return ray


class RayCrew:
    """Workers as Ray actors. ray: the package, connected."""

    def __init__(self, ray: Any, job: Job, ranks: Sequence[Rank]) -> None:
        self._ray = ray
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        actor = ray.remote(num_gpus=gpus, num_cpus=1, max_restarts=_RESTARTS, max_task_retries=_RESTARTS)(_Worker)
        absolute = _absolute(job)
        self._actors = [actor.remote() for _ in ranks]
        self._waiting = [one.work.remote(absolute, rank) for one, rank in zip(self._actors, ranks, strict=True)]
        self._numbers = {reference: rank.number for reference, rank in zip(self._waiting, ranks, strict=True)}
        self._ended: list[str] = []

    @property
    def running(self) -> int:
        if not self._waiting:
            return 0
        done, self._waiting = self._ray.wait(self._waiting, num_returns=len(self._waiting), timeout=0)
        for reference in done:
            try:
                said = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                said = " ".join(str(error).split())[:300]
            if said:
                self._ended.append(f"worker {self._numbers[reference]}: {said}")
        return len(self._waiting)

    @property
    def ended(self) -> Sequence[str]:
        return self._ended

    def stop(self) -> None:
        self._waiting = []
        for actor in self._actors:
            self._ray.kill(actor)

    def close(self) -> None:
        self._ray.shutdown()


class _Worker:
    """What an actor does; all that it holds lives in `work`."""

    def work(self, job: Job, rank: Rank) -> str:
        """Collect; returns why it ended, if not because the set is complete."""
        try:
            work(job, rank)
        except (SpotError, Interrupted) as error:
            return str(error)
        return ""


def _absolute(job: Job) -> Job:
    """The job with an output that means the same in every working directory."""
    return replace(job, out=Path(job.out).absolute())
