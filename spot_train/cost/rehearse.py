"""Decoding without weights: a model of random weights forwards for real, and recorded trajectories say what it answers.

The decoder, its packing, the cache, the drafter and the head all do their work; only what is read off the logits of a
state that was recorded is replaced by what was. So drafts are accepted as in the recording, and the time is that of the
shape on the machine at hand. Knows nothing about how shapes are made.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from spot_infer.clock import Clock
from spot_infer.decode import decode
from spot_infer.errors import SpotError
from spot_infer.graph import Drafter
from spot_infer.packing import Packed
from spot_infer.requests import Boundary, DecodeSettings, Request
from spot_infer.table import StaleTable
from spot_infer.targets.protocol import PrefixCache, Target
from spot_infer.timed import TimedDrafter, TimedTarget
from spot_infer.transition import CommitRule, ranking_values
from spot_train.replay.replay import replayable
from spot_train.trajectory import Trajectory

Outcome = TypeVar("Outcome")
_DIGIT = 256
"""A row's number rides through the head's input as two digits, which every dtype down to bfloat16 holds exactly."""


class DictatedTarget:
    """A target that does all of its work and answers as the trajectory that it follows; dictation_s: what that took."""

    def __init__(self, target: TimedTarget, clock: Clock, rule: CommitRule) -> None:
        if rule.ranking != "probability":
            raise SpotError(f"rule.ranking is {rule.ranking!r}, whose values shards do not hold; use probability")
        self._target, self._clock, self._rule = target, clock, rule
        self.spec, self.tokenizer = target.spec, None
        self.dictation_s = 0.0
        self._step_of: dict[tuple[int, tuple[int, ...]], int] = {}
        self._rows = np.zeros(0, dtype=np.int64)

    @property
    def device(self) -> torch.device:
        return self._target.device

    def follow(self, trajectory: Trajectory) -> None:
        """Answer as `trajectory` from here on."""
        self._trajectory = trajectory
        starts, mask = trajectory.block_start.tolist(), self.spec.mask_id
        length = self.spec.block_length
        self._step_of = {}
        for step, start in enumerate(starts):
            tokens = trajectory.block_tokens[(start - starts[0]) // length].copy()
            tokens[trajectory.table(step).slots] = mask
            self._step_of[start, tuple(tokens.tolist())] = step

    def new_cache(self) -> PrefixCache:
        return self._target.new_cache()

    def prefill(self, cache: PrefixCache, rows: Sequence[int], prefixes: Sequence[Sequence[int]]) -> None:
        self._target.prefill(cache, rows, prefixes)

    def forward(self, packed: Packed, cache: PrefixCache) -> Tensor:
        """Hidden states [M, H + 2]: the two last say which they are."""
        hidden = self._target.forward(packed, cache)
        started = self._clock.now()
        self._rows = self._recorded(packed)
        number = torch.arange(len(hidden), device=hidden.device)
        digits = torch.stack([number // _DIGIT, number % _DIGIT], dim=1)
        marked = torch.cat([hidden, digits.to(hidden.dtype)], dim=1)
        self.dictation_s += self._clock.now() - started
        return marked

    def logits(self, hidden: Tensor) -> Tensor:
        return self._target.logits(hidden[:, :-2])

    def read(self, hidden: Tensor, read: Callable[[Tensor], Outcome]) -> Outcome:
        outcome: Any = self._target.read(hidden[:, :-2], read)
        started = self._clock.now()
        digits = hidden[:, -2:].double().cpu().numpy().astype(np.int64)
        rows = self._rows[digits[:, 0] * _DIGIT + digits[:, 1]]
        said = self._table(rows) if isinstance(outcome, StaleTable) else self._answers(rows, outcome)
        self.dictation_s += self._clock.now() - started
        return said

    def _recorded(self, packed: Packed) -> np.ndarray:
        """Row of the trajectory's tables, int64 [M], for every slot that is read; -1 at states that it never met."""
        ids, positions = packed.input_ids.cpu().numpy(), packed.position_ids.cpu().numpy()
        rows = np.full(packed.state_start[-1], -1, dtype=np.int64)
        for state, (sequence, offset) in enumerate(zip(packed.sequence_of, packed.offset_of, strict=True)):
            own = slice(packed.state_start[state], packed.state_start[state + 1])
            tokens = tuple(ids[sequence, offset : offset + self.spec.block_length].tolist())
            step = self._step_of.get((int(positions[sequence, offset]), tokens))
            if step is not None and own.stop > own.start:
                rows[own] = np.arange(self._trajectory.step_start[step], self._trajectory.step_start[step + 1])
        return rows

    def _table(self, rows: np.ndarray) -> Any:
        one = self._trajectory
        if (rows < 0).any():
            raise ValueError("a table was read at a state that the trajectory never met")
        return StaleTable(one.slot[rows], one.top_logprob[rows], one.top_token[rows], one.log_odds[rows])

    def _answers(self, rows: np.ndarray, outcome: Sequence[Tensor]) -> Any:
        """Ranking values, log-odds and likeliest tokens as recorded, where they were."""
        values, log_odds, best = (column.clone() for column in outcome[:3])
        known = torch.from_numpy(rows >= 0).to(log_odds.device)
        recorded = torch.from_numpy(self._trajectory.log_odds[rows[rows >= 0]]).to(log_odds)
        values[known], log_odds[known] = ranking_values(recorded, self._rule).to(values), recorded
        best[known] = torch.from_numpy(self._trajectory.top_token[rows[rows >= 0], 0]).to(best)
        return values, log_odds, best, best


@dataclass(frozen=True)
class Rehearsed:
    """One way to decode: `drafter` None is draft-free; it drafts from stale tables alone, since random
    weights answer at no other state."""

    name: str
    budget: int = 0
    drafter: Drafter | None = None
    boundary: Boundary = "separate"


@dataclass
class Rehearsal:
    """What one way took, summed over trajectories: seconds in the target (forwards, prompts, answers), in the drafter
    and in all; identical: outputs equal to the recording."""

    method: Rehearsed
    count: int = 0
    nfe: int = 0
    accepted: int = 0
    identical: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"target": 0.0, "drafter": 0.0, "rest": 0.0})

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


def rehearse(
    target: Target,
    trajectories: Sequence[Trajectory],
    methods: Sequence[Rehearsed],
    rule: CommitRule,
    clock: Clock,
    limit_s: float,
) -> list[Rehearsal]:
    """Decode trajectories one at a time with every method in turn, until the next one would pass `limit_s`.

    `target` has the recording's mask and block length. The first trajectory is decoded once beforehand and not counted.
    Raises SpotError where none is left, or they were recorded at temperature > 0.
    """
    if not trajectories or any(one.drawn_token is not None for one in trajectories):
        raise SpotError("a rehearsal needs recorded trajectories at temperature 0; give other shards, or another split")
    runs = [Rehearsal(method) for method in methods]
    began = time.monotonic()
    for method in methods:
        _decode(target, trajectories[0], Rehearsal(method), rule, clock)
    for number, trajectory in enumerate(trajectories):
        if number and (time.monotonic() - began) * (number + 2) / (number + 1) > limit_s:
            break
        turn = number % len(runs)
        for run in [*runs[turn:], *runs[:turn]]:
            _decode(target, trajectory, run, rule, clock)
    return runs


def _decode(target: Target, trajectory: Trajectory, run: Rehearsal, rule: CommitRule, clock: Clock) -> None:
    timed = TimedTarget(target, clock)
    dictated = DictatedTarget(timed, clock, rule)
    dictated.follow(trajectory)
    settings = DecodeSettings(
        max_new_tokens=trajectory.max_new_tokens or trajectory.returned_tokens,
        rule=rule,
        budget=run.method.budget,
        batch_size=1,
        ignore_stop=not trajectory.stop_ids,
        boundary=run.method.boundary,
    )
    drafter = None if run.method.drafter is None else TimedDrafter(replayable(run.method.drafter), clock)
    started = clock.now()
    rounds = list(decode(dictated, [_request(trajectory, dictated)], settings, drafter))
    total = clock.now() - started - dictated.dictation_s
    busy = timed.busy_s + timed.prefill_s + timed.answers_s
    drafting = sum(seconds for *_, seconds in drafter.samples) if drafter else 0.0
    for name, seconds in {"target": busy, "drafter": drafting, "rest": total - busy - drafting}.items():
        run.seconds[name] += seconds
    result = rounds[-1].result
    assert result is not None
    first = trajectory.prompt_length - int(trajectory.block_start[0])
    recorded = trajectory.block_tokens.flatten()[first : first + trajectory.returned_tokens]
    run.count += 1
    run.nfe += result.stats.nfe
    run.accepted += result.stats.accepted
    run.identical += result.tokens == tuple(recorded.tolist())


def _request(trajectory: Trajectory, target: DictatedTarget) -> Request:
    """A prompt of the recorded length that ends in the recorded block's first tokens; shards hold no more of it."""
    spec, start = target.spec, int(trajectory.block_start[0])
    draws = random.Random(trajectory.seed)
    whole = [draws.randrange(spec.vocab_size - 1) for _ in range(start)]
    tail = trajectory.block_tokens[0, : trajectory.prompt_length - start].tolist()
    return Request((*(token + (token >= spec.mask_id) for token in whole), *tail), trajectory.seed)


def rehearsal_row(run: Rehearsal, control: Rehearsal) -> dict[str, Any]:
    """One row of the table: forwards a prompt, ratios to the draft-free control, and where the time went."""
    return {
        "method": run.method.name,
        "budget": run.method.budget,
        "n": run.count,
        "nfe": run.nfe / run.count,
        "reduction": control.nfe / run.nfe,
        "throughput_ratio": control.total_s / run.total_s,
        "seconds": run.total_s / run.count,
        "shares": {name: seconds / run.total_s for name, seconds in run.seconds.items()},
        "identical": run.identical,
    }
