"""Verification by state equality (paper section 4.3, propositions 1 to 3), and what a configuration promises by it.

Knows nothing of trees or chains: verifiers differ in how the target's step at a state is made (`answers`), and in what
a drafter may know of the draw. The walk is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from spot_infer.blocks import Step
from spot_infer.graph import DraftGraph
from spot_infer.requests import DecodeSettings
from spot_infer.targets.protocol import TargetSpec


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


def distribution_preserving(spec: TargetSpec, settings: DecodeSettings) -> tuple[bool, str]:
    """Whether decoding under `settings` follows the law of draft-free decoding, and the reason, a clause.

    A property of the whole configuration, up to rounding: no run has to be looked at. A budget of 0 is draft-free.
    """
    if not spec.exact_prefix_cache:
        return False, f"approximate {'dual' if spec.cache == 'dual' else 'prefix'} cache"
    if settings.budget == 0:
        return True, "nothing is drafted"
    if settings.sampling.temperature == 0:
        return True, "at temperature 0 a draft is kept only where it equals the target's own step"
    return {
        "coupled": (True, "a draft is kept only where it equals the target's own draw"),
        "uncoupled": (True, "a draft is kept only where it equals the target's own draw"),
        "greedy": (False, "greedy match keeps drafts of the target's likeliest token where the target samples"),
        "rejection": (True, "accept with min(1, pi/q), else draw from the normalised (pi - q)+"),
    }[settings.verifier]


def same_tokens(settings: DecodeSettings) -> bool:
    """Whether drafted decoding returns, given the seed, draft-free decoding's very tokens, not only their law."""
    at_zero = settings.budget == 0 or settings.sampling.temperature == 0
    return at_zero or settings.verifier in ("coupled", "uncoupled")
