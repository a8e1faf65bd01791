"""Rounds -> trajectories: gathers what the decode loop yields, request by request. Knows nothing about files.

Every recorded round carries one table a step, computed at the state that the step was taken from, so row t of a
trajectory is the table at state t whether decoding was draft-free or drafted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from spot_infer.blocks import Step
from spot_infer.decode import decode
from spot_infer.graph import Drafter
from spot_infer.noise import prompt_hash
from spot_infer.requests import DecodeSettings, Request, Result, Round
from spot_infer.table import TOP_K, StaleTable
from spot_infer.targets.protocol import Target
from spot_train.trajectory import Trajectory


@dataclass
class _Recording:
    """What one request has done so far. blocks: final tokens [L] of each block by its start."""

    starts: list[int] = field(default_factory=list)
    tables: list[StaleTable] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    blocks: dict[int, list[int]] = field(default_factory=dict)

    def add(self, round_: Round) -> None:
        if len(round_.tables) != len(round_.steps):
            raise ValueError(f"a recorded round holds {len(round_.tables)} tables for {len(round_.steps)} steps")
        if not round_.steps:
            return
        state = round_.state
        self.blocks.setdefault(state.start, list(state.tokens))
        for step, table in zip(round_.steps, round_.tables, strict=True):
            if min(step).position >= state.start + len(state.tokens):
                state = state.following()
            block = self.blocks.setdefault(state.start, list(state.tokens))
            self.starts.append(state.start)
            self.tables.append(table)
            self.steps.append(step)
            for position, token in step:
                block[position - state.start] = token


def record_trajectories(
    requests: Sequence[Request], rounds: Iterable[Round], max_new_tokens: int, stop_ids: Sequence[int] = ()
) -> Iterator[tuple[int, Trajectory, Result]]:
    """(request index, trajectory, result) of every request as it finishes; `rounds` must have been decoded with
    `record=True`, this limit and these stop tokens."""
    recordings: dict[int, _Recording] = {}
    for round_ in rounds:
        recording = recordings.setdefault(round_.request, _Recording())
        recording.add(round_)
        if round_.result is not None:
            del recordings[round_.request]
            trajectory = _trajectory(requests[round_.request], recording, round_.result)
            trajectory = replace(trajectory, max_new_tokens=max_new_tokens, stop_ids=tuple(stop_ids))
            yield round_.request, trajectory, round_.result


def decoded_trajectories(
    target: Target, requests: Sequence[Request], settings: DecodeSettings, drafter: Drafter | None = None
) -> list[Trajectory]:
    """The trajectories of `requests`, in their order; draft-free without a drafter."""
    rounds = decode(target, requests, settings, drafter, record=True)
    done = record_trajectories(requests, rounds, settings.max_new_tokens, settings.stops(target.spec))
    return [trajectory for _, trajectory, _ in sorted(done, key=lambda one: one[0])]


def _trajectory(request: Request, recording: _Recording, result: Result) -> Trajectory:
    tables = recording.tables
    commits = [sorted(step) for step in recording.steps]
    flat = np.array([commit for step in commits for commit in step], dtype=np.int32).reshape(-1, 2)
    drawn = bool(tables) and tables[0].drawn_token is not None
    return Trajectory(
        prompt_hash=prompt_hash(request.prompt_ids),
        prompt_length=len(request.prompt_ids),
        seed=request.seed,
        finish_reason=result.finish_reason,
        returned_tokens=len(result.tokens),
        block_start=np.array(recording.starts, dtype=np.int32),
        step_start=_starts([len(table.slots) for table in tables]),
        slot=_joined([table.slots for table in tables], np.empty(0, np.uint8)),
        top_logprob=_joined([table.top_logprob for table in tables], np.empty((0, TOP_K), np.float16)),
        top_token=_joined([table.top_token for table in tables], np.empty((0, TOP_K), np.int32)),
        log_odds=_joined([table.log_odds for table in tables], np.empty(0, np.float32)),
        commit_start=_starts([len(step) for step in commits]),
        commit_position=np.ascontiguousarray(flat[:, 0]),
        commit_token=np.ascontiguousarray(flat[:, 1]),
        block_tokens=np.array([recording.blocks[start] for start in sorted(recording.blocks)], dtype=np.int32),
        drawn_token=_joined([t.drawn_token for t in tables], np.empty(0, np.int32)) if drawn else None,
        drawn_logprob=_joined([t.drawn_logprob for t in tables], np.empty(0, np.float16)) if drawn else None,
        writes=result.stats.boundaries > 0 or len(set(recording.starts)) < 2,
    )


def _starts(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def _joined(parts: Sequence[np.ndarray | None], empty: np.ndarray) -> np.ndarray:
    return np.concatenate([empty, *(part for part in parts if part is not None)])
