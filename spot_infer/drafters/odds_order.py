"""How an order without training scores slots: by their log-odds and their place under the commit rule.

Log-odds tell near-certain slots apart, which probabilities don't; places are those of the state at hand, so that they
follow wherever responses moved the log-odds (`spot_infer/responses.py`). Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spot_infer.features import stale_ranking
from spot_infer.transition import CommitRule

SHARPNESS, RANK_STEP, TIE_STEP = 1.0, 1.0, 2.0
"""What a slot's score gains by log-odds, loses by every slot before it in the rule's order, and by every one of those
that the rule ties with it. Chosen on held-out prompts of two targets."""


def odds_scores(
    odds: NDArray[Any], filled: NDArray[np.bool_], top_logprob: NDArray[Any], rule: CommitRule
) -> NDArray[np.float64]:
    """Scores [Q, m] of the open slots in Q states, -inf at filled ones: log-odds [Q, m] as they are thought to be
    there, filled [Q, m]; top_logprob [m, 32] of the stale table, whose slots ascend, for rankings other than by
    probability.
    """
    values = np.where(filled, -np.inf, stale_ranking(top_logprob, odds, rule))
    order = np.argsort(-values, axis=-1, kind="stable")
    rows, before = np.arange(len(odds))[:, None], np.arange(odds.shape[-1])
    ordered = values[rows, order]
    new = np.ones(odds.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    tied = before - np.maximum.accumulate(np.where(new, before, 0), axis=-1)
    steps = np.empty(odds.shape)
    steps[rows, order] = RANK_STEP * before + TIE_STEP * tied
    return np.where(filled, -np.inf, SHARPNESS * np.minimum(odds, most_odds(rule)) - steps)


def most_odds(rule: CommitRule) -> np.float32:
    """Log-odds from which on `rule` ties all slots."""
    return np.float32(np.log(1 / rule.tie_width - 1) if rule.tie_width else np.inf)


def shares(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Softmax over the last axis."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
