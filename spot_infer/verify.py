"""Verification by state equality (paper section 4.3, propositions 1 and 2). Knows nothing of trees or chains."""

from __future__ import annotations

from collections.abc import Sequence

from spot_infer.blocks import Step
from spot_infer.graph import DraftGraph


def verify(graph: DraftGraph, transitions: Sequence[Step | None]) -> tuple[list[Step], list[int]]:
    """Walk from the root: take the target's own step at a node; where a drafted state equals the result, go on there.

    transitions[node] is the target's step at node's state, None where that state is a finished block. Returns the
    committed steps, accepted drafts first and the target's own last, and the nodes passed, the root first.
    """
    nodes = [0]
    steps: list[Step] = []
    while (step := transitions[nodes[-1]]) is not None:
        steps.append(step)
        child = graph.child(nodes[-1], step)
        if child is None:
            break
        nodes.append(child)
    return steps, nodes
