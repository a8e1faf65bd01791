"""Several processes that collect one set: who they are, and which lease each takes next.

A rank first takes the leases that its number says, then whatever is still missing, so a slow or dead rank's leases go
to the others with nobody handing them out. Knows nothing about shards or decoding.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from spot_infer.errors import SpotError
from spot_train.recipe.recipe import Recipe

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
_HERE = ("localhost", "127.0.0.1", "::1", "")


@dataclass(frozen=True)
class Rank:
    """Process `number` of `world`, `local` among the `neighbours` on its machine; `job` is the name they share, None
    for a process on its own."""

    number: int = 0
    world: int = 1
    local: int = 0
    neighbours: int = 1
    job: str | None = None

    def owns(self, lease: int) -> bool:
        """Whether the lease is this rank's by number."""
        return lease % self.world == self.number

    def next_lease(self, missing: Sequence[int]) -> int | None:
        """Of the missing leases, ascending, the one to decode next: the first of its own, else one of the others', each
        rank from another place; None where nothing is missing."""
        own = next(filter(self.owns, missing), None)
        if own is not None or not missing:
            return own
        return missing[self.number * len(missing) // self.world]


def rank_of_environment(environment: Mapping[str, str] = os.environ) -> Rank:
    """What torchrun or SLURM made this process; a process on its own without either. Raises SpotError where their
    variables are no numbers."""
    for names, job in ((_TORCHRUN, _torchrun_job), (_SLURM, _slurm_job)):
        if all(name in environment for name in names[:2]):
            number, world = (_number(environment, name) for name in names[:2])
            if world < 2:
                return Rank()
            local = _number(environment, names[2], number)
            return Rank(number, world, local, _number(environment, names[3], 1), job(environment))
    return Rank()


def first_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is the first of those that torchrun, SLURM or Lightning started together, or alone."""
    return all(environment.get(name, "0") == "0" for name in ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK"))


def decodable(missing: Sequence[int], milestones: Sequence[int]) -> list[int]:
    """Of the missing leases, ascending, those that need no drafter of a milestone that missing ones lie before."""
    limit = min((milestone for milestone in milestones if missing and milestone > missing[0]), default=None)
    return [lease for lease in missing if limit is None or lease < limit]


def on_device(recipe: Recipe, rank: Rank) -> Recipe:
    """The recipe with a GPU of its own for every rank of a machine, where the recipe leaves the device open. Raises
    SpotError where the target is itself spread over processes or devices."""
    section = recipe.target
    if rank.world > 1 and (section.tp_plan or section.device_map):
        key = "tp_plan" if section.tp_plan else "device_map"
        raise SpotError(
            f"target.{key} is {getattr(section, key)!r}, which spreads one target, but {rank.world} processes collect "
            "with a target each; set it to null or collect with one process"
        )
    if rank.world == 1 or section.device != "auto" or not torch.cuda.is_available():
        return recipe
    device = f"cuda:{rank.local % torch.cuda.device_count()}"
    return recipe.model_copy(update={"target": section.model_copy(update={"device": device})})


@contextmanager
def on_its_own() -> Iterator[None]:
    """Hide from libraries that this process is one of several."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if _launched(name)}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _launched(name: str) -> bool:
    return name in _TORCHRUN or name.startswith(("SLURM_", "TORCHELASTIC_")) or name == "GROUP_RANK"


def _torchrun_job(environment: Mapping[str, str]) -> str:
    master = environment.get("MASTER_ADDR", "")
    master = socket.gethostname() if master in _HERE else master
    return f"torchrun-{environment.get('TORCHELASTIC_RUN_ID', 'none')}@{master}:{environment.get('MASTER_PORT', '')}"


def _slurm_job(environment: Mapping[str, str]) -> str:
    return f"slurm-{environment.get('SLURM_JOB_ID', '')}.{environment.get('SLURM_STEP_ID', '')}"


def _number(environment: Mapping[str, str], name: str, default: int = 0) -> int:
    value = environment.get(name, "")
    if not value:
        return default
    try:
        return int(value)
    except ValueError:
        raise SpotError(f"the environment's {name} is {value!r}; expected a number, unset it or set it right") from None
