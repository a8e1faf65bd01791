"""Roots with hand-made or random stale tables, for tests of what drafters read off a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spot_infer.blocks import BlockState
from spot_infer.graph import DraftContext
from spot_infer.table import TOP_K, StaleTable

MASK = 99
START = 32


def context_of(
    log_odds: Sequence[float],
    budget: int = 8,
    runner_up: Sequence[float] | None = None,
    filled: Sequence[int] = (),
    drawn: Sequence[tuple[int, float]] | None = None,
    floor: float = 0.0,
) -> DraftContext:
    """A root whose table covers slots 0.. with these log-odds of tokens 10 + slot; tokens 30 + slot and 50 + slot come
    next. runner_up: probability of the second token; drawn: (token, probability) at temperature 1."""
    count = len(log_odds)
    best = 1 / (1 + np.exp(-np.asarray(log_odds, dtype=np.float64)))
    second = (1 - best) / 2 if runner_up is None else np.asarray(runner_up)
    logprob = np.full((count, TOP_K), -np.inf)
    token = np.full((count, TOP_K), -1)
    with np.errstate(divide="ignore"):
        logprob[:, :3] = np.log(np.stack([best, second, second / 4], axis=1))
    token[:, :3] = np.arange(count)[:, None] + np.array([10, 30, 50])
    table = StaleTable(
        np.arange(count, dtype=np.uint8),
        logprob.astype(np.float16),
        token.astype(np.int32),
        np.asarray(log_odds, dtype=np.float32),
        None if drawn is None else np.array([one for one, _ in drawn], np.int32),
        None if drawn is None else np.log([p for _, p in drawn]).astype(np.float16),
    )
    tokens = tuple(7 if slot in filled else MASK for slot in range(count))
    return DraftContext(0, BlockState(START, tokens, MASK), (table,), budget, floor, 0.0 if drawn is None else 1.0)
