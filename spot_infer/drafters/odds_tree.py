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
from spot_infer.drafters.entrance import entrance
from spot_infer.drafters.hypotheses import RUNNER_UP_BELOW, rule_hypotheses
from spot_infer.drafters.odds_order import odds_scores, shares
from spot_infer.drafters.stale import slots_per_step, stale_order
from spot_infer.graph import DraftContext, DraftGraph
from spot_infer.responses import RESPONSE, bounded, check_response
from spot_infer.transition import CommitRule


class OddsTreeDrafter:
    """Drafts the states that a softmax over moved log-odds holds most probable.

    response: how far scores follow responses, 0 reads none (SpotError where it is no number from 0 to 100); merged: one
    node for all orders that reach a state; runner_up_below: the second token is drafted too where the first is less
    probable; chain: no branches; ahead: drafts run on into the next block where its table is at hand.
    """

    def __init__(
        self,
        rule: CommitRule | None = None,
        *,
        response: float = RESPONSE,
        merged: bool = True,
        runner_up_below: float = RUNNER_UP_BELOW,
        chain: bool = False,
        ahead: bool = True,
    ) -> None:
        check_response(response)
        self.rule = rule or CommitRule()
        self.response, self.merged, self.runner_up_below = response, merged, runner_up_below
        self.chain, self.looks_ahead = chain, ahead

    @property
    def reads_responses(self) -> bool:
        """Whether scores follow responses; under rankings other than by probability nothing says how."""
        return self.response > 0 and self.rule.ranking == "probability"

    def responding(self, response: float) -> OddsTreeDrafter:
        """The same search with another `response`."""
        return self._with(response=response)

    def looking(self, ahead: bool) -> OddsTreeDrafter:
        """The same search with another `ahead`."""
        return self._with(ahead=ahead)

    def as_tree(self) -> OddsTreeDrafter:
        """The same search with one node an order, the paper's form."""
        return self._with(merged=False)

    def as_chain(self) -> OddsTreeDrafter:
        """The same order drafted as chains, as rejection sampling needs."""
        return self._with(chain=True)

    def _with(self, **changes: float | bool) -> OddsTreeDrafter:
        own = ("response", "merged", "runner_up_below", "chain")
        kept = {name: getattr(self, name) for name in own} | {"ahead": self.looks_ahead}
        return OddsTreeDrafter(self.rule, **kept | changes)

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        """One graph a context. Nothing under a rule that commits several slots in every step: this tree drafts one."""
        if slots_per_step(self.rule) > 1:
            return [DraftGraph(merged=self.merged) for _ in contexts]
        entrances = [entrance(context, self.rule) if self.looks_ahead else None for context in contexts]
        every = [*contexts, *(one.context for one in entrances if one is not None)]
        hypotheses = [rule_hypotheses(context, self.rule, self.runner_up_below) for context in every]
        orders = [stale_order(context, self.rule) for context in every]
        width = 1 if self.chain else None
        return search(contexts, self._scorer(every), hypotheses, self.merged, orders, width, True, entrances)

    def _scorer(self, contexts: Sequence[DraftContext]) -> Score:
        read = [_Read(context, self.response if self.reads_responses else 0.0) for context in contexts]

        def score(queries: list[Query]) -> list[NDArray[np.float64]]:
            return [read[index].law(path, self.rule) for index, path, _ in queries]

        return score


class _Read:
    """What is read of one context."""

    def __init__(self, context: DraftContext, response: float) -> None:
        table = context.tables[0]
        self.slots, self.odds, self.top = table.slots.astype(np.int64), bounded(table.log_odds), table.top_logprob
        self.filled = ~np.isin(self.slots, context.state.masked_slots)
        changes = context.changes() if response else None
        none = np.zeros((len(self.slots), len(self.slots)), dtype=np.float32)
        self.changes = none if changes is None else np.float32(response) * changes

    def law(self, path: tuple[int, ...], rule: CommitRule) -> NDArray[np.float64]:
        """Probabilities [m] of the next slot in the state that fills the slots `path` after the root."""
        filled = self.filled | np.isin(self.slots, path)
        odds = self.odds + filled.astype(np.float32) @ self.changes
        scores = odds_scores(odds[None], filled[None], self.top, rule)
        return np.asarray(shares(scores)[0])
