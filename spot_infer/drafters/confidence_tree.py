"""The paper's untrained tree ("BlockSpec-style", section 5 and appendix D.4): best-first search over stale confidences.

m(z) = m(y) * conf(s) / sum of conf over the slots still masked in y * p(v). It is SPOT's own search with the stale
confidences in place of the order model, so a comparison of the two is about the order alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spot_infer.draft import Query, Score, search
from spot_infer.drafters.hypotheses import RUNNER_UP_BELOW, rule_hypotheses
from spot_infer.drafters.stale import slots_per_step, stale_confidence, stale_order
from spot_infer.graph import DraftContext, DraftGraph
from spot_infer.transition import CommitRule


class ConfidenceTreeDrafter:
    """Drafts the states that renormalised stale confidences hold most probable; equals go in the rule's own order.

    merged: one node for all orders that reach a state, false for the paper's tree; runner_up_below: the second token is
    drafted too where the first is less probable; drawn_confidence: see `stale_confidence`.
    """

    def __init__(
        self,
        rule: CommitRule | None = None,
        *,
        merged: bool = True,
        runner_up_below: float = RUNNER_UP_BELOW,
        drawn_confidence: bool = False,
    ) -> None:
        self.rule = rule or CommitRule()
        self.merged = merged
        self.runner_up_below = runner_up_below
        self.drawn_confidence = drawn_confidence

    def as_tree(self) -> ConfidenceTreeDrafter:
        """The same search with one node an order, the paper's form."""
        return ConfidenceTreeDrafter(
            self.rule, merged=False, runner_up_below=self.runner_up_below, drawn_confidence=self.drawn_confidence
        )

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        """One graph a context. Nothing under a rule that commits several slots in every step: this tree drafts one."""
        if slots_per_step(self.rule) > 1:
            return [DraftGraph(merged=self.merged) for _ in contexts]
        hypotheses = [rule_hypotheses(context, self.rule, self.runner_up_below) for context in contexts]
        orders = [stale_order(context, self.rule, self.drawn_confidence) for context in contexts]
        return search(contexts, self._scorer(contexts), hypotheses, self.merged, orders)

    def _scorer(self, contexts: Sequence[DraftContext]) -> Score:
        slots = [context.tables[0].slots for context in contexts]
        weights = []
        for context, own in zip(contexts, slots, strict=True):
            masked = np.isin(own, context.state.masked_slots)
            weights.append(np.where(masked, stale_confidence(context, self.rule, self.drawn_confidence), 0.0))

        def score(queries: list[Query]) -> list[NDArray[np.float64]]:
            answers = []
            for index, path, _ in queries:
                left = np.where(np.isin(slots[index], path), 0.0, weights[index])
                answers.append(left / left.sum())
            return answers

        return score
