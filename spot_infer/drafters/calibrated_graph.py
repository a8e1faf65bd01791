"""The calibrated draft graph (Spiffy, Agrawal et al., arXiv 2509.18085): a fixed graph of ranks, filled from the table.

A node is a set of (position rank i, token rank j): the i-th slot of the root in stale order, filled with its j-th
candidate token, both from 0. Which sets are worth a draft was counted offline (`spot-train calibrate graph`); nothing
in it knows a prompt. Ranks are taken against the STALE table: against a fresh one {(0, 0)} is right by definition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spot_infer.blocks import Commit
from spot_infer.drafters.hypotheses import token_candidates
from spot_infer.drafters.stale import slots_per_step, stale_order
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, DraftGraph
from spot_infer.transition import CommitRule

RankSet = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class CalibratedGraph:
    """Nodes in the order they were selected, so that any first D of them are a graph under one root.

    masses: share of the calibration's roots whose trajectory passed through each node; facts: target, data, command
    and versions, as the file has them.
    """

    nodes: tuple[RankSet, ...]
    masses: tuple[float, ...]
    block_length: int
    rule: CommitRule = CommitRule()
    facts: Mapping[str, Any] = field(default_factory=dict)


class CalibratedGraphDrafter:
    """Fills the first `budget` nodes that a root's stale table can fill.

    prune_below: nodes whose tokens' stale probabilities have a smaller geometric mean are left out, with what hangs
    under them alone; 0 keeps all. (The published pruning is described in words only; this is our reading of it.)
    drawn_confidence: see `stale_order`.
    """

    def __init__(
        self,
        graph: CalibratedGraph,
        rule: CommitRule | None = None,
        *,
        prune_below: float = 0.0,
        drawn_confidence: bool = False,
    ) -> None:
        if not 0 <= prune_below < 1:
            raise SpotError(f"calibrated_graph.prune_below is {prune_below}; use a probability, 0 to keep every node")
        self.graph = graph
        self.rule = rule or graph.rule
        self.prune_below = prune_below
        self.drawn_confidence = drawn_confidence
        self.tokens = 1 + max((token for node in graph.nodes for _, token in node), default=0)

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        """One graph a context. Raises SpotError where the target's block length is not the calibrated one."""
        return [self._filled(context) for context in contexts]

    def _filled(self, context: DraftContext) -> DraftGraph:
        own = len(context.state.tokens)
        if own != self.graph.block_length:
            raise SpotError(
                f"the draft graph was calibrated for block length {self.graph.block_length}, the target decodes blocks "
                f"of {own}; calibrate one for this block length"
            )
        start, slots = context.state.start, context.tables[0].slots.tolist()
        order = stale_order(context, self.rule, self.drawn_confidence)
        candidates = token_candidates(context, self.tokens)
        graph = DraftGraph()
        kept: dict[RankSet, int] = {frozenset(): 0}
        for node, mass in zip(self.graph.nodes, self.graph.masses, strict=True):
            if len(graph) >= context.budget:
                break
            fits = len(node) <= context.room and all(i < len(order) and j < len(candidates[order[i]]) for i, j in node)
            parent = next((one for one in kept if leads_to(one, node, self.rule)), None)
            if not fits or parent is None or mass < context.floor:
                continue
            filled = {pair: candidates[order[pair[0]]][pair[1]] for pair in node}
            if geometric_mean([probability for _, probability in filled.values()]) < self.prune_below:
                continue
            step = frozenset(Commit(start + slots[order[pair[0]]], filled[pair][0]) for pair in node - parent)
            kept[node] = graph.add(kept[parent], step, mass)
        return graph


def leads_to(parent: RankSet, node: RankSet, rule: CommitRule) -> bool:
    """Whether one step under `rule` can lead from `parent` to `node`; a threshold rule may commit any number."""
    return parent < node and (rule.selection == "threshold" or len(node) - len(parent) == slots_per_step(rule))


def geometric_mean(probabilities: Sequence[float]) -> float:
    """Zero where one of them is."""
    return math.exp(sum(map(math.log, probabilities)) / len(probabilities)) if min(probabilities) > 0 else 0.0
