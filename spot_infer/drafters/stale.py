"""What the untrained drafters read off the stale table: each slot's confidence and order under the commit rule.

Confidence comes from float32 log-odds, so it separates slots that a stored float16 probability can't. It is still a
probability: near-certain slots weigh nearly the same. `drawn_confidence` is the noise-aware form at temperature > 0: a
slot counts as much as its drawn token is probable, since a likely draw is one that a fresh forward draws again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spot_infer.features import stale_ranking
from spot_infer.graph import DraftContext
from spot_infer.transition import CommitRule

_LEAST_CONFIDENCE = 1e-12
_LEAST_LOG_ODDS = -30.0


def stale_order(context: DraftContext, rule: CommitRule, drawn_confidence: bool = False) -> list[int]:
    """The root's masked slots as indices into its stale table, in the order that `rule` ranks the table.

    With `drawn_confidence` at temperature > 0 they are sorted by the probability of the drawn token, and the rule
    breaks ties.
    """
    table = context.tables[0]
    values = stale_ranking(table.top_logprob, table.log_odds, rule)
    keys: list[NDArray[Any]] = [table.slots, -values]
    if drawn_confidence and table.drawn_logprob is not None:
        keys.append(-table.drawn_logprob.astype(np.float64))
    masked = set(context.state.masked_slots)
    return [int(index) for index in np.lexsort(keys) if int(table.slots[index]) in masked]


def stale_confidence(context: DraftContext, rule: CommitRule, drawn_confidence: bool = False) -> NDArray[np.float64]:
    """Confidence in (0, 1] of every slot of the stale table, [m], in the rule's own ranking and resolution.

    Probability rules: the largest probability, at the rule's resolution; margin: the margin; entropy: exp(-entropy).
    With `drawn_confidence` at temperature > 0: the probability of the drawn token.
    """
    table = context.tables[0]
    if drawn_confidence and table.drawn_logprob is not None:
        return np.exp(table.drawn_logprob.astype(np.float64))
    values = stale_ranking(table.top_logprob, table.log_odds, rule)
    if rule.ranking == "probability" and rule.resolution != "bfloat16":
        values = 1 / (1 + np.exp(-np.maximum(values, _LEAST_LOG_ODDS)))
    elif rule.ranking == "entropy":
        values = np.exp(values)
    return np.clip(values, _LEAST_CONFIDENCE, 1.0)


def slots_per_step(rule: CommitRule) -> int:
    """Slots that one step is expected to commit.

    Under a threshold rule every slot above the threshold was committed in the step that the stale table led to, so the
    table holds none, and the next step is expected to take the least that the rule allows.
    """
    return 1 if rule.selection == "one" else rule.quota_after(0)
