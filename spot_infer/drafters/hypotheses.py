"""Which tokens to draft at a slot, read from the stale table (paper section 4.2). Pure; knows nothing about order."""

from __future__ import annotations

import numpy as np

from spot_infer.graph import DraftContext

RUNNER_UP_BELOW = 0.6


def token_hypotheses(context: DraftContext, runner_up_below: float = RUNNER_UP_BELOW) -> list[list[tuple[int, float]]]:
    """For each slot of the stale table the (token, probability) pairs worth drafting, likeliest first.

    At temperature 0 the stale argmax, and the runner-up where the argmax is less probable than `runner_up_below`. At
    temperature > 0 the coupled stale draw alone, with its probability under the stale table.
    """
    table = context.tables[0]
    if context.temperature > 0:
        if table.drawn_token is None or table.drawn_logprob is None:
            raise ValueError("a stale table at temperature > 0 needs its drawn tokens")
        drawn = np.exp(table.drawn_logprob.astype(np.float64))
        return [[pair] for pair in zip(table.drawn_token.tolist(), drawn.tolist(), strict=True)]
    tokens = table.top_token[:, :2].tolist()
    probabilities = np.exp(table.top_logprob[:, :2].astype(np.float64)).tolist()
    hypotheses: list[list[tuple[int, float]]] = []
    for (first, second), (p_first, p_second) in zip(tokens, probabilities, strict=True):
        pairs = [(first, p_first)]
        if p_first < runner_up_below and second >= 0:
            pairs.append((second, p_second))
        hypotheses.append(pairs)
    return hypotheses
