"""The untrained drafters on tables made by hand, and the confidence tree against brute-force best-first search."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stale_contexts import START, context_of

from spot_infer.drafters import (
    CalibratedGraph,
    CalibratedGraphDrafter,
    ChainDrafter,
    ConfidenceTreeDrafter,
    TrajectoryTreeDrafter,
)
from spot_infer.drafters.stale import stale_confidence, stale_order
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, DraftGraph
from spot_infer.transition import CommitRule

BFLOAT16 = CommitRule(resolution="bfloat16")
QUOTA = CommitRule(selection="quota", quota=2)


def paths(graph: DraftGraph) -> list[list[tuple[int, int]]]:
    """Every drafted state as (slot, token) pairs, in the graph's order."""
    return [sorted((position - START, token) for position, token in one) for one in graph.commits[1:]]


def slot_sets(graph: DraftGraph) -> list[list[int]]:
    return [[slot for slot, _ in one] for one in paths(graph)]


def brute_force(context: DraftContext, merged: bool) -> dict[object, float]:
    """Best-first by the definition: m(z) = m(y) conf(s) / sum of conf over the masked of y * p(v), one state at a time.

    A merged state's mass is the sum over its kept parents, worked out again from the root after every state."""
    table = context.tables[0]
    confidence = {int(s): 1 / (1 + math.exp(-float(o))) for s, o in zip(table.slots, table.log_odds, strict=True)}
    masked = set(context.state.masked_slots)

    def children(path: tuple[tuple[int, int], ...]) -> list[tuple[tuple[int, int], float]]:
        left = masked - {slot for slot, _ in path}
        if len(left) < 2:
            return []
        total = sum(confidence[slot] for slot in left)
        found = []
        for slot in left:
            found.append(((slot, 10 + slot), confidence[slot] ** 2 / total))
            if math.exp(float(table.top_logprob[slot, 0])) < 0.6:
                second = math.exp(float(table.top_logprob[slot, 1]))
                found.append(((slot, 30 + slot), confidence[slot] / total * second))
        return found

    def grown(path: tuple[tuple[int, int], ...], commit: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        return tuple(sorted((*path, commit))) if merged else (*path, commit)

    kept: list[tuple[tuple[int, int], ...]] = [()]
    while True:
        mass: dict[tuple[tuple[int, int], ...], float] = {(): 1.0}
        for path in sorted(kept, key=len):
            for commit, weight in children(path):
                child = grown(path, commit)
                mass[child] = mass.get(child, 0.0) + mass[path] * weight
        reachable = [(mass[child], child) for child in mass if child not in kept]
        if len(kept) > context.budget or not reachable or max(reachable)[0] < context.floor:
            return {path: mass[path] for path in kept[1:]}
        kept.append(max(reachable)[1])


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 12), st.booleans(), st.sampled_from([0.0, 0.05]))
def test_the_confidence_tree_is_brute_force_best_first(
    seed: int, count: int, budget: int, merged: bool, floor: float
) -> None:
    random = np.random.default_rng(seed)
    log_odds = random.normal(0.5, 2.0, size=count + 1)
    context = context_of(log_odds, budget, filled=[int(random.integers(count + 1))], floor=floor)
    (graph,) = ConfidenceTreeDrafter(merged=merged).propose([context])
    expected = brute_force(context, merged)
    found = {}
    for key, mass in zip(graph.keys[1:], graph.masses[1:], strict=True):
        commits = sorted(key) if merged else [next(iter(step)) for step in key]  # type: ignore[arg-type, union-attr]
        found[tuple((position - START, token) for position, token in commits)] = mass
    assert found.keys() == expected.keys()
    for path, mass in expected.items():
        assert found[path] == pytest.approx(mass, rel=1e-6)


def test_near_certain_slots_weigh_the_same_and_keep_their_order() -> None:
    """Float16 probabilities would tie the first four, float64 ones the last two; the log-odds still order them."""
    context = context_of([18.0, 30.0, 21.0, 26.0, 50.0, 60.0, -20.0], budget=6)
    (graph,) = ConfidenceTreeDrafter(merged=False).propose([context])
    assert slot_sets(graph) == [[5], [4], [1], [3], [2], [0]]
    np.testing.assert_allclose(graph.masses[1:], 1 / 6, rtol=1e-6)


def test_slots_that_the_rule_ties_go_in_the_rules_order() -> None:
    context = context_of([8.0, 9.0, 8.5, 12.0, -3.0], budget=4)
    for drafter in (ConfidenceTreeDrafter(BFLOAT16, merged=False), TrajectoryTreeDrafter(BFLOAT16, width=4, depth=1)):
        (graph,) = drafter.propose([context])
        assert slot_sets(graph) == [[0], [1], [2], [3]]
    assert stale_confidence(context, BFLOAT16)[:4].tolist() == [1.0] * 4
    assert stale_order(context, CommitRule()) == [3, 1, 2, 0, 4]


@pytest.mark.parametrize("rule", [CommitRule("margin"), CommitRule("entropy"), CommitRule("entropy", "bfloat16")])
def test_confidence_under_any_ranking_is_a_weight_in_its_order(rule: CommitRule) -> None:
    context = context_of([3.0, 1.0, 8.0, -1.0])
    confidence = stale_confidence(context, rule)
    assert ((confidence > 0) & (confidence <= 1)).all()
    assert np.lexsort((np.arange(4), -confidence)).tolist() == stale_order(context, rule)
    (graph,) = ConfidenceTreeDrafter(rule).propose([context])
    assert slot_sets(graph)[0] == [2]


def test_noise_aware_drafters_rank_by_the_drawn_token() -> None:
    drawn = [(10, 0.9), (31, 0.02), (12, 0.95), (13, 0.5)]
    context = context_of([2.0, 9.0, 4.0, 1.0], budget=3, drawn=drawn)
    assert stale_order(context, CommitRule()) == [1, 2, 0, 3]
    assert stale_order(context, CommitRule(), drawn_confidence=True) == [2, 0, 3, 1]
    graph = CalibratedGraph((frozenset({(0, 0)}),), (0.5,), 4)
    for drafter in (
        ChainDrafter(drawn_confidence=True),
        ConfidenceTreeDrafter(drawn_confidence=True),
        TrajectoryTreeDrafter(drawn_confidence=True),
        CalibratedGraphDrafter(graph, drawn_confidence=True),
    ):
        assert paths(drafter.propose([context])[0])[0] == [(2, 12)]
    assert paths(ChainDrafter().propose([context])[0])[0] == [(1, 31)]


def test_the_chain_takes_the_token_of_its_rank_and_its_depth() -> None:
    context = context_of([1.0, 3.0, 2.0, 0.5])
    assert paths(ChainDrafter(rank=2).propose([context])[0])[1] == [(1, 31), (2, 32)]
    assert len(ChainDrafter(depth=2).propose([context])[0]) == 2
    assert len(ChainDrafter(rank=4).propose([context])[0]) == 0
    sampled = context_of([1.0, 3.0], drawn=[(40, 0.1), (31, 0.2)])
    first, second = (paths(ChainDrafter(rank=rank).propose([sampled])[0])[0] for rank in (1, 2))
    assert (first, second) == ([(1, 31)], [(1, 11)])


@pytest.mark.parametrize(
    ("width", "depth", "budget", "expected"),
    [
        (2, 2, 8, [[1], [2], [1, 2]]),
        (1, 3, 8, [[1], [1, 2], [0, 1, 2]]),
        (2, None, 8, [[1], [2], [1, 2], [0, 1, 2]]),
        (2, None, 3, [[1], [2], [1, 2]]),
        (3, 2, 8, [[1], [2], [0], [1, 2], [0, 1]]),
        (3, 2, 4, [[1], [2], [0], [1, 2]]),
        (9, 9, 99, [[1], [2], [0], [3], [1, 2], [0, 1], [1, 3], [0, 1, 2], [1, 2, 3]]),
    ],
)
def test_the_trajectory_tree_branches_at_the_root_only(
    width: int, depth: int | None, budget: int, expected: list[list[int]]
) -> None:
    context = context_of([1.0, 3.0, 2.0, 0.5], budget)
    assert slot_sets(TrajectoryTreeDrafter(width=width, depth=depth).propose([context])[0]) == expected


def test_under_a_quota_a_drafted_state_is_a_whole_step() -> None:
    context = context_of([1.0, 3.0, 2.0, 0.5, 0.2], budget=8)
    assert slot_sets(ChainDrafter(QUOTA).propose([context])[0]) == [[1, 2], [0, 1, 2, 3]]
    assert slot_sets(TrajectoryTreeDrafter(QUOTA).propose([context])[0]) == [[1, 2], [0, 1], [0, 1, 2, 3]]
    at_least_two = CommitRule(selection="threshold", quota=2)
    assert slot_sets(ChainDrafter(at_least_two).propose([context])[0]) == [[1, 2], [0, 1, 2, 3]]
    assert len(ConfidenceTreeDrafter(QUOTA).propose([context])[0]) == 0


def graph_of(*nodes: set[tuple[int, int]], length: int = 5) -> CalibratedGraph:
    masses = tuple(1 / (1 + index) for index in range(len(nodes)))
    return CalibratedGraph(tuple(frozenset(node) for node in nodes), masses, length)


def test_a_calibrated_graph_is_filled_by_rank_and_cut_to_the_budget_in_its_order() -> None:
    graph = graph_of({(0, 0)}, {(0, 0), (1, 0)}, {(1, 0)}, {(0, 1)}, {(0, 0), (1, 0), (3, 0)}, {(2, 0), (3, 0)})
    context = context_of([1.0, 3.0, 2.0, 0.5, 9.0], filled=[4])
    drafted = paths(CalibratedGraphDrafter(graph).propose([context])[0])
    assert drafted == [[(1, 11)], [(1, 11), (2, 12)], [(2, 12)], [(1, 31)], [(1, 11), (2, 12), (3, 13)]]
    short = context_of([1.0, 3.0, 2.0, 0.5, 9.0], budget=2, filled=[4])
    assert paths(CalibratedGraphDrafter(graph).propose([short])[0]) == drafted[:2]
    late = context_of([1.0, 3.0, 2.0, 0.5, 9.0], filled=[2, 3, 4])
    assert slot_sets(CalibratedGraphDrafter(graph).propose([late])[0]) == [[1], [0], [1]]
    floored = context_of([1.0, 3.0, 2.0, 0.5, 9.0], filled=[4], floor=0.3)
    assert len(CalibratedGraphDrafter(graph).propose([floored])[0]) == 3


def test_pruning_takes_away_unlikely_tokens_and_what_hangs_under_them_alone() -> None:
    graph = graph_of({(0, 1)}, {(0, 1), (1, 0)}, {(0, 0)}, {(0, 0), (1, 0)})
    context = context_of([1.0, 3.0, 2.0, 0.5, 9.0], filled=[4])
    pruned = CalibratedGraphDrafter(graph, prune_below=0.2)
    assert paths(pruned.propose([context])[0]) == [[(1, 11)], [(1, 11), (2, 12)]]
    with pytest.raises(SpotError, match="prune_below"):
        CalibratedGraphDrafter(graph, prune_below=1.0)


def test_a_graph_of_another_block_length_is_named() -> None:
    with pytest.raises(SpotError, match="block length 8"):
        CalibratedGraphDrafter(graph_of({(0, 0)}, length=8)).propose([context_of([1.0, 2.0])])


@pytest.mark.parametrize("bad", [{"depth": 0}, {"rank": 0}])
def test_impossible_chains_are_named(bad: dict[str, int]) -> None:
    with pytest.raises(SpotError, match=f"chain.{next(iter(bad))}"):
        ChainDrafter(**bad)  # type: ignore[arg-type]
    with pytest.raises(SpotError, match="width 0"):
        TrajectoryTreeDrafter(width=0)
