"""How far two runs of the same prompts recorded the same: identical ones, first divergences with their gaps, and how
far tables moved before them. Knows nothing about what made the runs differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spot_infer.divergence import Divergence, first_divergence
from spot_infer.logprob_levels import ABSENT, from_levels, to_levels
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets.protocol import Target
from spot_train.trajectory import Trajectory

TABLE_TOLERANCE = {"float64": 1e-5, "float32": 1e-3}
"""Most that log-odds and log probabilities of one state may move between two ways of decoding, by the target's dtype:
in float64 what the shards' float32 log-odds round, in float32 what another packing does."""
_COARSE_TOLERANCE = 0.5


@dataclass(frozen=True)
class Agreement:
    """identical: of `prompts`, how many committed the same steps in the same order; steps: compared, up to each first
    divergence, that state included; flips: (prompt, first divergence) of each other one; log_odds_shift and
    logprob_shift: largest changes over the compared states' tables, the latter beyond one level of their rounding;
    draws_moved: slots of those tables at which another token is drawn (temperature > 0)."""

    prompts: int
    identical: int
    steps: int
    flips: tuple[tuple[int, Divergence], ...]
    log_odds_shift: float
    logprob_shift: float
    draws_moved: int

    @property
    def table_shift(self) -> float:
        return max(self.log_odds_shift, self.logprob_shift)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, a flip's commits left out."""
        flips = [{"prompt": at, "step": flip.step, "kind": flip.kind, "gap": flip.gap} for at, flip in self.flips]
        return {**vars(self), "flips": flips}


def table_tolerance(dtype: str) -> float:
    """What `Agreement.table_shift` is held against for a target of `dtype`."""
    return TABLE_TOLERANCE.get(dtype, _COARSE_TOLERANCE)


def agreement(
    target: Target,
    requests: Sequence[Request],
    control: Sequence[Trajectory],
    other: Sequence[Trajectory],
    settings: DecodeSettings,
) -> Agreement:
    """Compare two runs of `requests`, in their order. `settings`: the control's."""
    flips: list[tuple[int, Divergence]] = []
    steps = draws = 0
    log_odds = logprob = 0.0
    for index, (request, one, two) in enumerate(zip(requests, control, other, strict=True)):
        runs = [[run.step(t) for t in range(len(run))] for run in (one, two)]
        flip = first_divergence(
            target, request, runs[0], runs[1], settings.rule, settings.sampling, settings.max_new_tokens
        )
        compared = len(one) if flip is None else min(flip.step + 1, len(one), len(two))
        steps += compared
        rows = int(one.step_start[compared])
        log_odds = max(log_odds, float(np.abs(one.log_odds[:rows] - two.log_odds[:rows]).max(initial=0.0)))
        logprob = max(logprob, _logprob_shift(one, two, rows))
        if one.drawn_token is not None and two.drawn_token is not None:
            draws += int((one.drawn_token[:rows] != two.drawn_token[:rows]).sum())
        if flip is not None:
            flips.append((index, flip))
    identical = len(requests) - len(flips)
    return Agreement(len(requests), identical, steps, tuple(flips), log_odds, logprob, draws)


def _logprob_shift(one: Trajectory, two: Trajectory, rows: int) -> float:
    """Largest change of the tables' log probabilities less one level, absent tokens left out."""
    levels = np.stack([to_levels(run.top_logprob[:rows]) for run in (one, two)])
    nearer, farther = np.sort(levels[:, (levels != ABSENT).all(axis=0)].astype(np.int64), axis=0)
    shift = from_levels(nearer).astype(np.float64) - from_levels(np.maximum(nearer, farther - 1))
    return float(shift.max(initial=0.0))
