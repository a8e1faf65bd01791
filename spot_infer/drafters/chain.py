"""The untrained baseline: one chain of nested states in stale-confidence order (SSD, arXiv 2510.04147).

The order is the commit rule's own ranking of the stale table, the tokens are the stale argmax, or the coupled stale
draw at temperature > 0. A rule that commits a quota of slots a step drafts as many a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spot_infer.blocks import Commit
from spot_infer.drafters.hypotheses import token_hypotheses
from spot_infer.features import stale_ranking
from spot_infer.graph import DraftContext, DraftGraph
from spot_infer.transition import CommitRule


def stale_order(context: DraftContext, rule: CommitRule) -> list[int]:
    """The root's masked slots as indices into its stale table, in the order that `rule` ranks the table."""
    table = context.tables[0]
    values = stale_ranking(table.top_logprob, table.log_odds, rule)
    masked = set(context.state.masked_slots)
    order = np.lexsort((table.slots, -values))
    return [int(index) for index in order if int(table.slots[index]) in masked]


def chain_graph(context: DraftContext, commits: Sequence[tuple[Commit, float]], per_step: int = 1) -> DraftGraph:
    """One chain through `commits` (with their probabilities), `per_step` a state, within budget and floor.

    Never drafts the finished block: the last masked slot is left to the target.
    """
    graph = DraftGraph()
    node, mass = 0, 1.0
    room = len(context.state.masked_slots) - 1
    for first in range(0, min(len(commits), room), per_step):
        chunk = commits[first : first + per_step]
        if first + len(chunk) > room or len(graph) >= context.budget:
            break
        for _, probability in chunk:
            mass *= probability
        if mass < context.floor:
            break
        node = graph.add(node, frozenset(commit for commit, _ in chunk), mass)
    return graph


class ChainDrafter:
    """Drafts the most confident slots first, at most `depth` states (None: as many as the budget allows)."""

    def __init__(self, rule: CommitRule | None = None, depth: int | None = None) -> None:
        self.rule = rule or CommitRule()
        self.depth = depth

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        return [self._chain(context) for context in contexts]

    def _chain(self, context: DraftContext) -> DraftGraph:
        slots = context.tables[0].slots.tolist()
        hypotheses = token_hypotheses(context)
        per_step = self.rule.quota if self.rule.selection == "quota" else 1
        order = stale_order(context, self.rule)
        if self.depth is not None:
            order = order[: self.depth * per_step]
        commits = [
            (Commit(context.state.start + slots[index], hypotheses[index][0][0]), hypotheses[index][0][1])
            for index in order
        ]
        return chain_graph(context, commits, per_step)
