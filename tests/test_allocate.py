"""Allocation: the chosen states maximise the request's rate, parents first; distrust, rest and probes are bounded."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stale_contexts import context_of

from spot_infer.allocate import (
    MOST_STATES,
    Experience,
    Pace,
    Passed,
    allocate,
    price,
    settle,
    spent,
    writes_apart,
)
from spot_infer.blocks import BlockState, Commit
from spot_infer.cost import NAMED_CURVES, CostCurve, DrafterCost, load_curve
from spot_infer.graph import DraftContext, DraftGraph

L, MASK = 8, 99


def context(masked: int = L, completes: bool = False) -> DraftContext:
    tokens = (1,) * (L - masked) + (MASK,) * masked
    return replace(context_of([1.0] * L), state=BlockState(0, tokens, MASK), completes=completes)


@st.composite
def trees(draw: st.DrawFn, most: int = 7) -> DraftGraph:
    """Random graphs of single commits in which no child weighs more than its parent."""
    graph = DraftGraph(merged=draw(st.booleans()))
    for _ in range(draw(st.integers(0, most))):
        parent = draw(st.integers(0, len(graph)))
        used = {position for position, _ in graph.commits[parent]}
        slot = draw(st.sampled_from([slot for slot in range(L) if slot not in used]))
        mass = graph.masses[parent] * draw(st.floats(0.05, 0.9))
        graph.add(parent, frozenset((Commit(slot, draw(st.integers(0, 3))),)), mass)
    return graph


def curves() -> st.SearchStrategy[CostCurve]:
    return st.sampled_from([*NAMED_CURVES.values(), CostCurve("steps", (1, 3, 4, 9), (1.0, 1.0, 2.0, 2.1), "c1")])


def closed(graph: DraftGraph, nodes: tuple[int, ...]) -> bool:
    return all(graph.parents[node] == 0 or graph.parents[node] in nodes for node in nodes)


def pace_of(curve: CostCurve, commits: int, cost: float) -> Pace:
    pace = Pace(curve)
    pace.commits, pace.cost = commits, cost
    return pace


@settings(max_examples=80)
@given(st.lists(trees(), min_size=1, max_size=3), curves(), st.integers(0, 30), st.floats(1.0, 30.0))
def test_no_other_prefix_of_the_heaviest_states_has_a_better_rate(
    graphs: list[DraftGraph], curve: CostCurve, commits: int, cost: float
) -> None:
    """Against every prefix-closed set where there is one row (convex curves: the best of all sets is a prefix)."""
    paces = [pace_of(curve, commits, cost) for _ in graphs]
    kept = allocate(paces, [context() for _ in graphs], graphs)
    rows = len(graphs)

    def rate(gain: float, states: int) -> float:
        return (rows * commits + rows + gain) / (rows * cost + curve.cost(rows + states))

    own = rate(sum(sum(one.masses[1:]) for one in kept), sum(map(len, kept)))
    ranked = sorted((mass for graph in graphs for mass in graph.masses[1:]), reverse=True)
    assert own == pytest.approx(max(rate(sum(ranked[:count]), count) for count in range(len(ranked) + 1)))
    if rows == 1:
        nodes = range(1, len(graphs[0]) + 1)
        sets = [one for size in range(len(nodes) + 1) for one in itertools.combinations(nodes, size)]
        masses = graphs[0].masses
        assert own == pytest.approx(
            max(rate(sum(masses[node] for node in one), len(one)) for one in sets if closed(graphs[0], one))
        )


@given(trees(12), curves())
def test_trimmed_graphs_are_parts_of_the_whole(graph: DraftGraph, curve: CostCurve) -> None:
    (kept,) = allocate([pace_of(curve, 5, 5.0)], [context()], [graph])
    assert set(kept.keys) <= set(graph.keys) and kept.merged is graph.merged
    for node, key in enumerate(kept.keys):
        assert kept.masses[node] == graph.masses[graph.index[key]]
        assert kept.commits[node] == graph.commits[graph.index[key]]


def test_a_dearer_replica_and_a_faster_request_draft_less() -> None:
    graph = DraftGraph()
    for slot in range(L):
        graph.add(0, frozenset((Commit(slot, 1),)), 0.5 * 0.7**slot)
    line = [CostCurve("line", (1, 2), (1.0, 1.0 + slope), "c1") for slope in (0.0, 0.02, 0.1, 0.4, 2.0)]
    sizes = [len(allocate([pace_of(one, 10, 10.0)], [context()], [graph])[0]) for one in line]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == L and sizes[-1] == 0
    sizes = [len(allocate([pace_of(line[2], commits, 10.0)], [context()], [graph])[0]) for commits in (10, 30, 90)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]


def test_a_state_that_fills_its_block_pays_for_two_replicas_and_saves_an_opening() -> None:
    graph = DraftGraph()
    graph.add(0, frozenset((Commit(L - 1, 1),)), 0.5)
    slopes = {masked: [] for masked in (1, 2)}  # type: ignore[var-annotated]
    for masked in slopes:
        for step in range(40):
            curve = CostCurve("line", (1, 2), (1.0, 1.0 + step / 40), "c1")
            kept = allocate([pace_of(curve, 30, 10.0)], [context(masked, completes=True)], [graph])
            slopes[masked].append(len(kept[0]))
    assert slopes[2] == sorted(slopes[2], reverse=True)
    assert sum(slopes[1]) > sum(slopes[2]) > 0


def test_a_state_beyond_the_block_stands_on_what_fills_it() -> None:
    """Of a curve that is flat up to three replicas more: two for the state that fills the block, one for the next."""
    graph = DraftGraph()
    first = frozenset((Commit(L - 1, 1),))
    filled = graph.add(0, first, 0.9)
    graph.add(filled, first | {Commit(L, 1)}, 0.8)
    assert pace_of(CostCurve("line", (1, 3), (1.0, 2.0)), 30, 10.0).price(3, 2) == pytest.approx(3 * (3.0 - 2.0))
    for flat, kept in ((2, 0), (3, 1), (4, 2)):
        curve = CostCurve("steps", (1, flat, flat + 1), (1.0, 1.0, 99.0), "c1")
        (trimmed,) = allocate([pace_of(curve, 30, 10.0)], [context(1, completes=True)], [graph])
        assert len(trimmed) == kept


@settings(max_examples=60)
@given(trees(10), curves(), st.integers(0, 40), st.floats(0.0, 30.0))
def test_the_search_drops_no_state_that_allocation_would_keep(
    graph: DraftGraph, curve: CostCurve, commits: int, cost: float
) -> None:
    paces = [pace_of(curve, commits, cost)]
    floors = price(paces, 1, 1)
    assert list(floors.floors) == sorted(floors.floors) and len(floors.floors) > MOST_STATES
    ranked = sorted(graph.masses[1:], reverse=True)
    dropped = next((rank for rank, mass in enumerate(ranked) if mass < floors.floor(rank) * (1 - 1e-9)), len(ranked))
    assert len(allocate(paces, [context()], [graph])[0]) <= dropped


def test_a_drafter_whose_word_is_not_true_is_believed_less_and_one_whose_is_stays_believed() -> None:
    graph = DraftGraph()
    node = 0
    for slot in range(4):
        node = graph.add(node, frozenset((Commit(slot, 1),)), 0.9)
    trusts = {}
    for accepted in (0, 1, 3, 4):
        pace = Pace(load_curve("paper-gsm8k"))
        for _ in range(6):
            settle([pace], [Passed(5, 1 + accepted, graph, accepted)])
        trusts[accepted] = pace.trust
    assert trusts[0] < 0.3 and trusts[0] < trusts[1] < trusts[3] and trusts[4] == 1.0


@given(
    st.floats(0.0, 3.0),
    st.floats(0.0, 1.0),
    st.sampled_from(sorted(NAMED_CURVES)),
    st.lists(st.integers(1, 100), min_size=1, max_size=5),
)
@settings(max_examples=40)
def test_drafting_that_never_pays_is_given_up_within_two_rounds_and_two_percent_of_a_run(
    proposal: float, mass: float, name: str, requests: list[int]
) -> None:
    """A drafter that is always wrong, whatever it claims and costs, over requests of so many rounds."""
    named = load_curve(name)
    drafter = DrafterCost(proposal, 0.0, 0.0)
    curve = CostCurve(name, named.replicas, named.seconds, "c1", drafter=drafter)
    run = Experience()
    worst = 0.0
    for rounds in requests:
        pace = Pace(curve, run)
        for _ in range(rounds):
            if not pace.drafts():
                settle([pace], [Passed(1, 1)])
                continue
            graph = DraftGraph()
            for slot in range(L):
                graph.add(0, frozenset((Commit(slot, 1),)), mass / L)
            (kept,) = allocate([pace], [context()], [graph])
            worst = max(worst, curve.cost(1 + len(kept)) - 1 + spent(curve, [kept])[0])
            settle([pace], [Passed(1 + len(kept), 1, kept, 0)])
        assert pace.commits == rounds
    assert run.cost <= 1.02 * sum(requests) + 2 + worst + 1e-9


def test_a_request_begins_with_what_its_run_knows() -> None:
    """After a request whose drafts were never right the next one is not drafted at once; after true ones it is."""
    for accepted, drafts in ((0, False), (1, True)):
        run, graph = Experience(), DraftGraph()
        graph.add(0, frozenset((Commit(0, 1),)), 0.9 * accepted + 0.05)
        for _ in range(8):
            settle([Pace(load_curve("cpu-core"), run)], [Passed(2, 1 + accepted, graph, accepted)])
        assert Pace(load_curve("cpu-core"), run).drafts() is drafts


def test_a_run_of_short_requests_tries_again_once_it_can_afford_it() -> None:
    """The first request's drafts were never right, every later one's are; none of them could afford a draft alone."""
    curve = CostCurve("flat", (1, 40), (1.0, 1.0), "c1", drafter=DrafterCost(0.8, 0.0, 0.0))
    run, forwards = Experience(), []
    for number in range(8):
        pace, left, rounds = Pace(curve, run), 32, 0
        while left:
            graph = DraftGraph()
            graph.add(0, frozenset((Commit(0, 1),)), 0.1 if number == 0 else 1.0)
            for slot in range(1, min(left - 1, L)):
                graph.add(slot, frozenset((Commit(slot, 1),)), 0.1 if number == 0 else 1.0)
            asked = pace.drafts()
            accepted = len(graph) if asked and number else 0
            settle([pace], [Passed(1 + len(graph) * asked, 1 + accepted, graph if asked else None, accepted)])
            left, rounds = max(left - 1 - accepted, 0), rounds + 1
        forwards.append(rounds)
    assert forwards[0] == 32 and forwards[-1] < 8


def test_a_finished_block_is_written_with_the_next_opening_where_replicas_are_cheap() -> None:
    line = CostCurve("line", (1, 2), (1.0, 1.3), "c1")
    assert not writes_apart(line, 1) and writes_apart(line, 8)
    assert not writes_apart(CostCurve("flat", (1, 16), (1.0, 1.0), "c1"), 8)


def test_a_forwards_cost_is_shared_whole_between_its_rows() -> None:
    curve = CostCurve("c", (1, 2, 9), (1.0, 1.5, 6.0), "c1", round_extra=0.1, drafter=DrafterCost(0.2, 0.1, 0.05))
    graph = DraftGraph(calls=3, states_scored=4)
    graph.add(0, frozenset((Commit(0, 1),)), 0.5)
    paces = [Pace(curve) for _ in range(3)]
    settle(paces, [Passed(3, 2, graph, 1), Passed(2, 1), Passed(2, 1, graph, 0)])
    drafting = 2 * (0.1 + 0.2 + 4 * 0.05) + 3 * 0.1
    assert sum(one.cost for one in paces) == pytest.approx(curve.cost(7) + drafting)
    assert [one.commits for one in paces] == [2, 1, 1]
