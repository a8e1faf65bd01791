"""The untrained odds tree: what it gives every next slot, and that it follows responses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stale_contexts import context_of

from spot_infer.drafters import OddsTreeDrafter
from spot_infer.drafters.odds_order import RANK_STEP, SHARPNESS, TIE_STEP
from spot_infer.graph import DraftContext, reads_responses
from spot_infer.responses import Responses
from spot_infer.transition import CommitRule

BFLOAT16 = CommitRule(resolution="bfloat16")
ODDS = [9.0, 7.0, 12.0, 1.0, 8.0, 0.5]


def first_steps(drafter: OddsTreeDrafter, context: DraftContext) -> dict[int, float]:
    """Mass by slot of the states one commit beyond the root; tokens are certain enough to weigh one."""
    (graph,) = drafter.propose([context])
    steps = [(commits, mass) for commits, mass in zip(graph.commits, graph.masses, strict=True) if len(commits) == 1]
    return {position - context.state.start: mass for commits, mass in steps for position, _ in commits}


def softmax(scores: dict[int, float]) -> dict[int, float]:
    weights = {slot: np.exp(score) for slot, score in scores.items()}
    return {slot: weight / sum(weights.values()) for slot, weight in weights.items()}


def expected(odds: dict[int, float], rule: CommitRule) -> dict[int, float]:
    """q of every open slot, by the definition."""
    most = np.log(2**9 - 1) if rule == BFLOAT16 else np.inf
    seen = {slot: min(value, most) for slot, value in odds.items()}
    scores = {}
    for slot, value in seen.items():
        before = [other for other in seen if (-seen[other], other) < (-value, slot)]
        tied = [other for other in before if seen[other] == value]
        scores[slot] = SHARPNESS * value - RANK_STEP * len(before) - TIE_STEP * len(tied)
    return softmax(scores)


@pytest.mark.parametrize("rule", [CommitRule(), BFLOAT16])
def test_slots_share_by_log_odds_as_finely_as_the_rule_looks_and_tie_left_to_right(rule: CommitRule) -> None:
    context = replace(context_of(ODDS, budget=60, filled=(3,)), completes=True)
    found = first_steps(OddsTreeDrafter(rule), context)
    law = expected({slot: odds for slot, odds in enumerate(ODDS) if slot != 3}, rule)
    assert found == pytest.approx({slot: share / (1 + np.exp(-ODDS[slot])) for slot, share in law.items()}, rel=0.01)
    assert max(found, key=lambda slot: found[slot]) == (2 if rule == CommitRule() else 0)


def test_a_response_moves_the_slots_that_it_was_measured_at() -> None:
    context = context_of(ODDS, budget=8, filled=(3,))
    change = np.zeros((6, 6), dtype=np.float32)
    change[3, 4] = 9.0
    token = np.array([-1, -1, -1, context.state.tokens[3], -1, -1])
    told = replace(context, responses=Responses(token, change))
    drafter = OddsTreeDrafter()
    before, after = first_steps(drafter, context), first_steps(drafter, told)
    assert max(before, key=lambda slot: before[slot]) == 2 and max(after, key=lambda slot: after[slot]) == 4
    assert first_steps(drafter.responding(0.0), told) == first_steps(drafter.responding(0.0), context) == before
    assert reads_responses(drafter) and not reads_responses(drafter.responding(0.0))
    assert not reads_responses(OddsTreeDrafter(CommitRule(ranking="entropy")))


def test_its_chain_has_no_branches_and_its_tree_no_merged_states() -> None:
    context = context_of(ODDS, budget=5)
    (chain,) = OddsTreeDrafter().as_chain().propose([context])
    assert [len(commits) for commits in chain.commits] == [0, 1, 2, 3, 4, 5]
    (tree,) = OddsTreeDrafter().as_tree().propose([context])
    assert not tree.merged
    (nothing,) = OddsTreeDrafter(CommitRule(selection="quota", quota=2)).propose([context])
    assert len(nothing) == 0
