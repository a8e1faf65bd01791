"""An untrained tree over log-odds and responses: nothing to train, nothing to calibrate, any target.

The paper's untrained tree shares a state's mass among its open slots by confidence, where near-certain slots weigh the
same. Here the shares are a softmax over log-odds, which tell those apart, moved by what rejected states told of every
slot filled since the stale table (`responses.py`), as finely as the commit rule looks and with its ties left to right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spot_infer.draft import Query, Score, search
from spot_infer.drafters.confidence_tree import rule_hypotheses
from spot_infer.drafters.hypotheses import RUNNER_UP_BELOW
from spot_infer.drafters.stale import slots_per_step, stale_order
from spot_infer.features import stale_ranking
from spot_infer.graph import DraftContext, DraftGraph
from spot_infer.responses import RESPONSE
from spot_infer.transition import CommitRule

SHARPNESS, RANK_STEP, TIE_STEP = 1.0, 0.5, 1.0
"""What a slot's score gains by log-odds, loses by every slot before it in the rule's order, and by every one of those
that the rule ties with it. Chosen on held-out prompts of two targets."""


class OddsTreeDrafter:
    """Drafts the states that a softmax over moved log-odds holds most probable.

    response: how far scores follow responses, 0 reads none; merged: one node for all orders that reach a state;
    runner_up_below: the second token is drafted too where the first is less probable; chain: no branches.
    """

    def __init__(
        self,
        rule: CommitRule | None = None,
        *,
        response: float = RESPONSE,
        merged: bool = True,
        runner_up_below: float = RUNNER_UP_BELOW,
        chain: bool = False,
    ) -> None:
        self.rule = rule or CommitRule()
        self.response, self.merged, self.runner_up_below, self.chain = response, merged, runner_up_below, chain

    @property
    def reads_responses(self) -> bool:
        """Whether scores follow responses; under rankings other than by probability nothing says how."""
        return self.response > 0 and self.rule.ranking == "probability"

    def responding(self, response: float) -> OddsTreeDrafter:
        """The same search with another `response`."""
        return self._with(response=response)

    def as_tree(self) -> OddsTreeDrafter:
        """The same search with one node an order, the paper's form."""
        return self._with(merged=False)

    def as_chain(self) -> OddsTreeDrafter:
        """The same order drafted as chains, as rejection sampling needs."""
        return self._with(chain=True)

    def _with(self, **changes: float | bool) -> OddsTreeDrafter:
        own = ("response", "merged", "runner_up_below", "chain")
        return OddsTreeDrafter(self.rule, **{name: getattr(self, name) for name in own} | changes)

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        """One graph a context. Nothing under a rule that commits several slots in every step: this tree drafts one."""
        if slots_per_step(self.rule) > 1:
            return [DraftGraph(merged=self.merged) for _ in contexts]
        hypotheses = [rule_hypotheses(context, self.rule, self.runner_up_below) for context in contexts]
        orders = [stale_order(context, self.rule) for context in contexts]
        width = 1 if self.chain else None
        return search(contexts, self._scorer(contexts), hypotheses, self.merged, orders, width)

    def _scorer(self, contexts: Sequence[DraftContext]) -> Score:
        tables = [_Table(context, self.rule, self.response if self.reads_responses else 0.0) for context in contexts]

        def score(queries: list[Query]) -> list[NDArray[np.float64]]:
            return [tables[index].law(path) for index, path, _ in queries]

        return score


class _Table:
    """What a law needs of one context's stale table."""

    def __init__(self, context: DraftContext, rule: CommitRule, response: float) -> None:
        self.rule, self.table = rule, context.tables[0]
        self.slots = self.table.slots.astype(np.int64)
        self.filled = ~np.isin(self.slots, context.state.masked_slots)
        self.most = np.inf if not rule.tie_width else np.log(1 / rule.tie_width - 1)
        changes = context.changes() if response else None
        self.changes = None if changes is None else response * changes

    def law(self, path: tuple[int, ...]) -> NDArray[np.float64]:
        """Probabilities [m] of the next slot in the state that fills the slots `path` after the root."""
        filled = self.filled | np.isin(self.slots, path)
        odds = self.table.log_odds
        if self.changes is not None:
            odds = odds + filled.astype(np.float32) @ self.changes
        values = np.where(filled, -np.inf, stale_ranking(self.table.top_logprob, odds, self.rule))
        order = np.lexsort((self.slots, -values))
        sorted_values = -values[order]
        scores = np.empty(len(order))
        before = np.arange(len(order))
        tied = before - np.searchsorted(sorted_values, sorted_values)
        scores[order] = -RANK_STEP * before - TIE_STEP * tied
        scores += SHARPNESS * np.minimum(odds, self.most)
        scores[filled] = -np.inf
        shares = np.exp(scores - scores.max())
        return np.asarray(shares / shares.sum())
