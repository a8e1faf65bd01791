"""Which tokens to draft at a slot, read from the stale table (paper section 4.2). Pure; knows nothing about order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from spot_infer.drafters.stale import stale_confidence
from spot_infer.graph import DraftContext
from spot_infer.transition import CommitRule
from spot_infer.votes import blended

RUNNER_UP_BELOW = 0.6


def token_hypotheses(context: DraftContext, runner_up_below: float = RUNNER_UP_BELOW) -> list[list[tuple[int, float]]]:
    """For each slot of the stale table the (token, probability) pairs worth drafting, likeliest first.

    At temperature 0 the stale argmax, and the runner-up where the argmax is less probable than `runner_up_below`. At
    temperature > 0 the coupled stale draw, with its probability under the stale table. Where states voted, each with
    what they say of it, and beside them other tokens that they name.
    """
    probability = np.exp(context.tables[0].top_logprob[:, 0].astype(np.float64))
    return _hypotheses(context, probability, runner_up_below)


def rule_hypotheses(context: DraftContext, rule: CommitRule, runner_up_below: float) -> list[list[tuple[int, float]]]:
    """Tokens to draft at every slot; at temperature 0 a slot's best token has the probability that its log-odds say, at
    the rule's resolution, since float16 would order slots that the rule ties."""
    return _hypotheses(context, stale_confidence(context, replace(rule, ranking="probability")), runner_up_below)


def _hypotheses(
    context: DraftContext, best: NDArray[np.float64], runner_up_below: float
) -> list[list[tuple[int, float]]]:
    """The same with the probabilities [m] of the tokens that the stale table holds best."""
    table = context.tables[0]
    if context.temperature > 0:
        hypotheses = [[pair] for pair in _drawn(context)]
    else:
        tokens = table.top_token[:, :2].tolist()
        runners_up = np.exp(table.top_logprob[:, 1].astype(np.float64)).tolist()
        hypotheses = [
            [(first, p_first), (second, p_second)] if p_first < runner_up_below and second >= 0 else [(first, p_first)]
            for (first, second), p_first, p_second in zip(tokens, best.tolist(), runners_up, strict=True)
        ]
    votes = context.votes or {}
    return [
        blended(pairs, votes[slot]) if slot in votes else pairs
        for slot, pairs in zip(table.slots.tolist(), hypotheses, strict=True)
    ]


def token_candidates(context: DraftContext, count: int) -> list[list[tuple[int, float]]]:
    """For each slot of the stale table its first `count` (token, probability) pairs; fewer where the table has fewer.

    At temperature 0 by stale probability. At temperature > 0 the coupled stale draw comes first, with its probability
    under the sampled law; the rest follow by stale probability.
    """
    table = context.tables[0]
    width = count if context.temperature == 0 else count + 1
    rows = zip(
        table.top_token[:, :width].tolist(), np.exp(table.top_logprob[:, :width].astype(float)).tolist(), strict=True
    )
    listed = [[(token, p) for token, p in zip(*row, strict=True) if token >= 0] for row in rows]
    if context.temperature == 0:
        return listed
    pairs = zip(_drawn(context), listed, strict=True)
    return [[drawn, *(pair for pair in rest if pair[0] != drawn[0])][:count] for drawn, rest in pairs]


def _drawn(context: DraftContext) -> list[tuple[int, float]]:
    table = context.tables[0]
    if table.drawn_token is None or table.drawn_logprob is None:
        raise ValueError("a stale table at temperature > 0 needs its drawn tokens")
    drawn = np.exp(table.drawn_logprob.astype(np.float64))
    return list(zip(table.drawn_token.tolist(), drawn.tolist(), strict=True))
