"""How a block's slots respond to a commit: log-odds that the target itself gave at states which were not reached.

A packed forward answers at every drafted state, and its request goes on from one of them. What the others say is not
lost: two states that differ by one commit tell what that commit does to every open slot, and it does about the same at
the states that are drafted next. A near-certain slot's turn hangs on tenths of log-odds, which no stale table foresees.
Pure; knows nothing about forwards, and never touches what is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spot_infer.blocks import BlockState
from spot_infer.errors import SpotError

RESPONSE = 1.0
"""How far a drafter's scores follow them: as measured; on held-out prompts 0.75 to 1.5 are worth about the same."""
MOST_RESPONSE = 100.0
MOST_ODDS = 64.0
"""Log-odds beyond it are as certain: a slot whose other tokens are forbidden has infinite ones."""


def check_response(share: object) -> None:
    """Raise SpotError unless `share` is a number between 0 and `MOST_RESPONSE`."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= MOST_RESPONSE:
        raise SpotError(f"draft.response is {share!r}; expected a number from 0 to {MOST_RESPONSE:g}")


def bounded(log_odds: NDArray[Any]) -> NDArray[np.float32]:
    """Log-odds within ±`MOST_ODDS`."""
    return np.nan_to_num(np.clip(log_odds, -MOST_ODDS, MOST_ODDS)).astype(np.float32)


@dataclass(frozen=True)
class Responses:
    """Of one block of L slots. token int64 [L]: what filled the slot where that was measured, else -1; change float32
    [L, L]: change[j, i] is what filling slot j did to the log-odds at slot i, 0 where slot i was filled."""

    token: NDArray[np.int64]
    change: NDArray[np.float32]

    def between(self, slots: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """What filling each of m slots with its token does to the others, [m, m]; 0 where that was not measured."""
        known = self.token[slots] == tokens
        return np.where(known[:, None], self.change[np.ix_(slots, slots)], np.float32(0))


def measured(
    known: Responses | None, states: Sequence[tuple[BlockState, Sequence[float]]], at: BlockState
) -> Responses | None:
    """What `states` of one block tell, with the log-odds [m] at their masked slots, and what was `known` of slots that
    they tell nothing about.

    A slot that several pairs of states tell about gets their mean, weighed by how near they are to the state `at`:
    1 / (1 + d) ** 2 where the pair's earlier state and `at` differ at d slots.
    """
    odds = np.full((len(states), len(at.tokens)), np.nan, dtype=np.float32)
    number = {state.tokens: row for row, (state, _) in enumerate(states)}
    for values, (state, log_odds) in zip(odds, states, strict=True):
        values[list(state.masked_slots)] = log_odds
    odds.clip(-MOST_ODDS, MOST_ODDS, out=odds)
    open_slots = {row: set(states[row][0].masked_slots) for row in number.values()}
    found: dict[tuple[int, int], list[tuple[float, NDArray[np.float32]]]] = {}
    for tokens, row in number.items():
        for slot in at.masked_slots:
            if tokens[slot] == at.mask_id:
                continue
            before = number.get((*tokens[:slot], at.mask_id, *tokens[slot + 1 :]))
            if before is not None:
                apart = len(open_slots[before].symmetric_difference(at.masked_slots))
                found.setdefault((slot, tokens[slot]), []).append((1 / (1 + apart) ** 2, odds[row] - odds[before]))
    if not found:
        return known
    token = np.full(len(at.tokens), -1, dtype=np.int64) if known is None else known.token.copy()
    change = np.zeros((len(token), len(token)), dtype=np.float32) if known is None else known.change.copy()
    for (slot, filler), measures in found.items():
        changes = np.stack([one for _, one in measures])
        weights = np.array([weight for weight, _ in measures], dtype=np.float32)[:, None] * np.isfinite(changes)
        token[slot] = filler
        change[slot] = (weights * np.nan_to_num(changes)).sum(axis=0) / np.maximum(weights.sum(axis=0), 1e-9)
    return Responses(token, change)
