"""A lease: an ordered list of prompts that is decoded on its own and becomes one shard.

Rows never mix across leases. Inside one, the next prompt takes the place of a row as soon as it finishes. Knows nothing
about files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spot_infer.decode import decode
from spot_infer.noise import request_seed
from spot_infer.requests import DecodeSettings, Request, Result, Round
from spot_infer.targets.protocol import Target
from spot_train.collect.recording import record_trajectories
from spot_train.compare.compare import Method, settings_of
from spot_train.prompts import Prompt, lease_hash
from spot_train.shards.files import StoredTrajectory


@dataclass
class Forwards:
    """What decoding took. nfe: forwards that rows took part in; draft_free_nfe: what it would have been draft-free,
    with cache writes of their own; calls: target forwards, each over up to batch_size rows; positions: token positions
    forwarded, padding included."""

    nfe: int = 0
    draft_free_nfe: int = 0
    calls: int = 0
    positions: int = 0

    def add(self, result: Result) -> None:
        """Count one finished prompt; its forwards are counted in `calls` elsewhere, since rows share them."""
        self.nfe += result.stats.nfe
        self.draft_free_nfe += result.stats.draft_free_nfe
        self.positions += result.stats.positions

    @property
    def reduction(self) -> float:
        """Draft-free forwards over those it took."""
        return self.draft_free_nfe / max(1, self.nfe)


def split_leases(prompts: Sequence[Prompt], lease_prompts: int) -> list[list[Prompt]]:
    """The prompts in order, `lease_prompts` a lease."""
    return [list(prompts[start : start + lease_prompts]) for start in range(0, len(prompts), lease_prompts)]


def lease_record(index: int, lease: Sequence[Prompt]) -> dict[str, Any]:
    """What tells a lease from every other."""
    return {"index": index, "prompts": len(lease), "sha256": lease_hash(lease)}


def lease_requests(lease: Sequence[Prompt], seed: int) -> list[Request]:
    """The lease's prompts, each with the seed of its noise."""
    return [Request(prompt.prompt_ids, request_seed(seed, prompt.prompt_ids)) for prompt in lease]


def decode_lease(
    target: Target,
    lease: Sequence[Prompt],
    settings: DecodeSettings,
    method: Method,
    seed: int,
    forwards: Forwards,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, StoredTrajectory, Result]]:
    """(place in the lease, trajectory, result) of each prompt as it finishes; ends early once `stopped` says so.

    `settings` are those of draft-free decoding; `method` says what is drafted. What it takes is added to `forwards`.
    """
    requests = lease_requests(lease, seed)
    rounds = decode(target, requests, settings_of(method, settings), method.drafter, record=True)
    counted = _counted(rounds, forwards, stopped)
    for index, trajectory, result in record_trajectories(
        requests, counted, settings.max_new_tokens, settings.stops(target.spec)
    ):
        forwards.add(result)
        yield index, StoredTrajectory(trajectory, lease[index].content_hash, lease[index].heldout), result


def _counted(rounds: Iterator[Round], forwards: Forwards, stopped: Callable[[], bool]) -> Iterator[Round]:
    before = forwards.calls
    for round_ in rounds:
        if stopped():
            return
        forwards.calls = before + round_.forward + 1
        yield round_
