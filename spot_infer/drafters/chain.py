"""The untrained baseline: one chain of nested states in stale-confidence order (SSD, arXiv 2510.04147).

The order is the commit rule's own ranking of the stale table, the tokens are the stale argmax, or the coupled stale
draw at temperature > 0. A rule that commits a quota of slots a step drafts as many a step.

With `cross_block` the window runs on into the next block: our reading of FreeDave's eager mode (arXiv 2510.00294). The
next block's order and tokens come from a table of that block, all masked, behind this one as a stale table filled it
(`spot_infer/ahead.py`). Shards do not record such tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spot_infer.blocks import Commit
from spot_infer.drafters.hypotheses import token_candidates
from spot_infer.drafters.stale import slots_per_step, stale_order
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, DraftGraph
from spot_infer.transition import CommitRule


def chain_graph(context: DraftContext, commits: Sequence[tuple[Commit, float]], per_step: int = 1) -> DraftGraph:
    """One chain through `commits` (with their probabilities), `per_step` a state, within budget and floor.

    Drafts the finished block only where the context completes; else the last masked slot is left to the target.
    """
    graph = DraftGraph()
    extend_chain(graph, 0, context, commits, per_step)
    return graph


def extend_chain(
    graph: DraftGraph, node: int, context: DraftContext, commits: Sequence[tuple[Commit, float]], per_step: int
) -> int:
    """Draft a chain through `commits` under `node`, see `chain_graph`; returns its last state's node."""
    mass = graph.masses[node]
    room = context.room - sum(commit.position >= context.state.start for commit in graph.commits[node])
    for first in range(0, len(commits), per_step):
        chunk = commits[first : first + per_step]
        if first + len(chunk) > room or len(graph) >= context.budget:
            break
        for _, probability in chunk:
            mass *= probability
        if mass < context.floor:
            break
        node = graph.add(node, frozenset(commit for commit, _ in chunk), mass)
    return node


class ChainDrafter:
    """Drafts the most confident slots first.

    depth: most states, None for as many as the budget allows (the paper ran 4). rank: which candidate token of a slot
    is drafted, 1 for the likeliest, as the paper counts. drawn_confidence: see `stale_order`. cross_block: run on into
    the next block once this one is drafted to its end.
    """

    def __init__(
        self,
        rule: CommitRule | None = None,
        depth: int | None = None,
        *,
        rank: int = 1,
        drawn_confidence: bool = False,
        cross_block: bool = False,
    ) -> None:
        if depth is not None and depth < 1:
            raise SpotError(f"chain.depth is {depth}; use at least 1, or none for as deep as the budget allows")
        if rank < 1:
            raise SpotError(f"chain.rank is {rank}; use 1 for the likeliest token, 2 for the next, and so on")
        self.rule = rule or CommitRule()
        self.depth = depth
        self.rank = rank
        self.drawn_confidence = drawn_confidence
        self.looks_ahead = self.crosses_blocks = cross_block

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        return [self._chain(context) for context in contexts]

    def _chain(self, context: DraftContext) -> DraftGraph:
        graph = DraftGraph()
        node = self._extend(graph, 0, context)
        if context.next_table is not None and len(graph.commits[node]) == len(context.state.masked_slots):
            following = replace(
                context,
                state=context.state.following(),
                tables=(context.next_table,),
                completes=False,
                next_table=None,
            )
            self._extend(graph, node, following)
        return graph

    def _extend(self, graph: DraftGraph, node: int, context: DraftContext) -> int:
        """Draft the rest of the context's block under `node`; returns the last state's node."""
        slots = context.tables[0].slots.tolist()
        per_step = slots_per_step(self.rule)
        order = stale_order(context, self.rule, self.drawn_confidence)
        if self.depth is not None:
            order = order[: (self.depth - len(graph)) * per_step]
        candidates = token_candidates(context, self.rank)
        commits: list[tuple[Commit, float]] = []
        for index in order:
            if len(candidates[index]) < self.rank:
                break
            token, probability = candidates[index][self.rank - 1]
            commits.append((Commit(context.state.start + slots[index], token), probability))
        return extend_chain(graph, node, context, commits, per_step)
