"""The published trajectory tree (BlockSpec, Pan et al. 2025): several first commits, one continuation of each.

`width` branches leave the root, the k-th with the k-th most confident slot; below that every branch goes on with the
most confident slot it has not filled, down to `depth` states. Two branches that reach one state share it. The published
shape is 2 by 2; its joint trees over two blocks are not drafted here.
"""

from __future__ import annotations

from collections.abc import Sequence

from spot_infer.blocks import Commit
from spot_infer.drafters.hypotheses import token_candidates
from spot_infer.drafters.stale import slots_per_step, stale_order
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, DraftGraph
from spot_infer.transition import CommitRule


class TrajectoryTreeDrafter:
    """Drafts `width` branches of `depth` states (None: to the block's end), level by level while the budget lasts.

    A state's mass is the product of its tokens' stale probabilities: the published rule gives orders none. Under a
    rule that commits q slots a step, branch k begins with the q - 1 most confident slots and the (q - 1 + k)-th.
    drawn_confidence: see `stale_order`.
    """

    def __init__(
        self,
        rule: CommitRule | None = None,
        width: int = 2,
        depth: int | None = None,
        *,
        drawn_confidence: bool = False,
    ) -> None:
        if width < 1 or (depth is not None and depth < 1):
            raise SpotError(f"trajectory_tree has width {width} and depth {depth}; use at least 1 of each")
        self.rule = rule or CommitRule()
        self.width = width
        self.depth = depth
        self.drawn_confidence = drawn_confidence

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        return [self._tree(context) for context in contexts]

    def _tree(self, context: DraftContext) -> DraftGraph:
        slots = context.tables[0].slots.tolist()
        candidates = token_candidates(context, 1)
        commits = [
            (Commit(context.state.start + slots[index], candidates[index][0][0]), candidates[index][0][1])
            for index in stale_order(context, self.rule, self.drawn_confidence)
        ]
        per_step = slots_per_step(self.rule)
        graph = DraftGraph()
        branches = [(0, branch) for branch in self._branches(commits, per_step)]
        deepest = -(-len(commits) // per_step)
        for level in range(deepest if self.depth is None else min(self.depth, deepest)):
            if min((level + 1) * per_step, len(commits)) > context.room:
                break
            grown: list[tuple[int, list[tuple[Commit, float]]]] = []
            for node, branch in branches:
                step = branch[level * per_step : (level + 1) * per_step]
                mass = graph.masses[node]
                for _, probability in step:
                    mass *= probability
                child = graph.child(node, frozenset(commit for commit, _ in step))
                if child is None and (len(graph) >= context.budget or mass < context.floor):
                    continue
                grown.append((graph.add(node, frozenset(commit for commit, _ in step), mass), branch))
            branches = grown
        return graph

    def _branches(self, commits: list[tuple[Commit, float]], per_step: int) -> list[list[tuple[Commit, float]]]:
        """All commits in each branch's order."""
        kept, rest = commits[: per_step - 1], commits[per_step - 1 :]
        return [[*kept, rest[first], *rest[:first], *rest[first + 1 :]] for first in range(min(self.width, len(rest)))]
