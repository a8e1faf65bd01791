"""Verification by state equality (paper section 4.3, propositions 1 to 3), and what a configuration promises by it.

One walk serves every verifier, and knows nothing of trees or chains. Verifiers differ in how the target's step at a
drafted state is made, and in whether the drafter shares the noise of the target's draws:

- coupled: the target's draw under keyed noise, which the drafter applies to its stale table too;
- uncoupled: the same draw, but the drafter sees no noise and drafts likely tokens, as at temperature 0;
- greedy: the target's likeliest token where that is drafted, else its draw, which ends the round;
- rejection: the drafted token or its replacement (`rejection`); only a token that is kept equals a drafted state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from torch import Tensor

from spot_infer.answers import Answers, ReadState, steps_of_states
from spot_infer.blocks import Step
from spot_infer.graph import DraftGraph
from spot_infer.packing import Packed
from spot_infer.requests import DecodeSettings
from spot_infer.targets.protocol import Target, TargetSpec
from spot_infer.transition import Sampling


def verify(
    graph: DraftGraph, transitions: Sequence[Step | None], ends: Collection[int] = ()
) -> tuple[list[Step], list[int]]:
    """Walk from the root: take the target's own step at a node; where a drafted state equals the result, go on there.

    transitions[node] is the target's step at node's state, None where that state is a finished block; the walk ends
    with the step of a node in `ends` whatever is drafted. Returns the committed steps, accepted drafts first and the
    target's own last, and the nodes passed, the root first.
    """
    nodes = [0]
    steps: list[Step] = []
    while (step := transitions[nodes[-1]]) is not None:
        steps.append(step)
        child = None if nodes[-1] in ends else graph.child(nodes[-1], step)
        if child is None:
            break
        nodes.append(child)
    return steps, nodes


def shared_sampling(settings: DecodeSettings) -> Sampling:
    """The sampling whose draws the drafter may foresee, in its tables and its context; greedy where there is none."""
    return settings.sampling if settings.verifier_in_force == "coupled" else Sampling()


def target_steps(
    target: Target,
    packed: Packed,
    hidden: Tensor,
    answers: Mapping[int, Answers],
    settings: DecodeSettings,
    states: Sequence[ReadState],
    drafted: Mapping[int, tuple[DraftGraph, int]],
    committed: Mapping[int, int] | None = None,
) -> tuple[dict[int, Step], frozenset[int]]:
    """The target's step at each of `states`, as the verifier makes it, and the states that end a round.

    drafted: of the packed states that belong to a draft graph, the graph and their node in it. committed: as in
    `steps_of_states`.
    """
    steps_at = partial(steps_of_states, target, packed, hidden, answers, settings.rule, committed=committed)
    verifier = settings.verifier_in_force
    if verifier == "rejection":
        links = {state: graph.proposals[node] for state, (graph, node) in drafted.items() if node in graph.proposals}
        return steps_at(settings.sampling, states, proposals=links), frozenset()
    if verifier != "greedy":
        return steps_at(settings.sampling, states), frozenset()
    likeliest = steps_at(Sampling(), [state for state in states if state[0] in drafted])
    kept = {state: step for state, step in likeliest.items() if _drafts(drafted[state], step)}
    sampled = [state for state in states if state[0] not in kept]
    return steps_at(settings.sampling, sampled) | kept, frozenset(state for state, _, _ in sampled)


def _drafts(drafted: tuple[DraftGraph, int], step: Step) -> bool:
    graph, node = drafted
    return graph.child(node, step) is not None


def distribution_preserving(spec: TargetSpec, settings: DecodeSettings) -> tuple[bool, str]:
    """Whether decoding under `settings` follows the law of draft-free decoding, and the reason, a clause.

    A property of the whole configuration, up to rounding: no run has to be looked at. A budget of 0 is draft-free.
    """
    if not spec.exact_prefix_cache:
        return False, f"approximate {'dual' if spec.cache == 'dual' else 'prefix'} cache"
    if settings.budget == 0:
        return True, "nothing is drafted"
    if settings.verifier_in_force == "greedy":
        return False, "greedy match keeps drafts of the target's likeliest token where the target samples"
    if settings.verifier_in_force == "rejection":
        return True, "a draft is kept with probability min(1, pi/q) and else replaced from the normalised (pi - q)+"
    return True, "a draft is kept only where it equals the target's own step"


def verdict_line(preserving: bool, reason: str) -> str:
    """`distribution_preserving`'s answer as runs print it."""
    return f"distribution_preserving: {'yes' if preserving else 'no'}, {reason}"


def same_tokens(settings: DecodeSettings) -> bool:
    """Whether drafted decoding returns, given the seed, draft-free decoding's very tokens, not only their law."""
    return settings.verifier_in_force in ("coupled", "uncoupled")
