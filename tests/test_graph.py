"""Draft graphs: one node a state when merged, one node a path as a tree; and the walk that verifies them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spot_infer.blocks import BlockState, Commit, Step
from spot_infer.graph import DraftGraph
from spot_infer.verify import verify

MASK = 9
ROOT = BlockState(0, (MASK,) * 4, MASK)
paths = st.lists(st.permutations([(slot, token) for slot in range(4) for token in (1, 2)]).map(lambda p: p[:3]))


def grow(graph: DraftGraph, path: list[tuple[int, int]]) -> list[int]:
    """Add `path` commit by commit, skipping slots already filled on it; the nodes passed."""
    nodes = [0]
    for slot, token in path:
        if slot not in {position for position, _ in graph.commits[nodes[-1]]}:
            nodes.append(graph.add(nodes[-1], frozenset([Commit(slot, token)]), 0.5 ** len(nodes)))
    return nodes


@given(paths, st.booleans())
def test_nodes_are_states_when_merged_and_paths_as_a_tree(orders: list[Any], merged: bool) -> None:
    graph = DraftGraph(merged=merged)
    reached: dict[Any, int] = {}
    for path in orders:
        nodes = grow(graph, path)
        for depth, (before, node) in enumerate(pairwise(nodes), 1):
            assert before < node or merged
            taken: list[Commit] = []
            for slot, token in path:
                if slot not in {position for position, _ in taken} and len(taken) < depth:
                    taken.append(Commit(slot, token))
            name = frozenset(taken) if merged else tuple(taken)
            assert reached.setdefault(name, node) == node
            assert graph.commits[node] == frozenset(taken)
    assert len(graph) == len(reached) == len(graph.keys) - 1
    assert len({ROOT.with_commits(commits) for commits in graph.commits}) == len(set(graph.commits))


def test_two_orders_of_one_state_share_a_node_only_when_merged() -> None:
    a, b = frozenset([Commit(0, 1)]), frozenset([Commit(1, 2)])
    for merged in (True, False):
        graph = DraftGraph(merged=merged)
        first = graph.add(graph.add(0, a, 0.5), b, 0.4)
        second = graph.add(graph.add(0, b, 0.5), a, 0.4)
        assert (first == second) is merged
        assert graph.child(0, a) == 1
        assert graph.child(0, frozenset([Commit(0, 2)])) is None
    merged_graph = DraftGraph()
    both = merged_graph.add(merged_graph.add(0, a, 0.5), b, 0.4)
    assert merged_graph.child(0, a | b) == both


@given(
    paths,
    st.booleans(),
    st.permutations([Commit(slot, token) for slot, token in zip(range(4), (1, 2, 1, 2), strict=False)]),
)
def test_verification_takes_the_targets_own_path_as_far_as_it_was_drafted(
    orders: list[Any], merged: bool, trajectory: list[Commit]
) -> None:
    graph = DraftGraph(merged=merged)
    for path in orders:
        grow(graph, path)
    truth: dict[frozenset[Commit], Commit] = {frozenset(trajectory[:t]): trajectory[t] for t in range(4)}
    elsewhere = Commit(99, 0)
    transitions: list[Step | None] = [frozenset([truth.get(commits, elsewhere)]) for commits in graph.commits]
    steps, nodes = verify(graph, transitions)
    expected = 0
    drafted = set(graph.commits)
    while frozenset(trajectory[: expected + 1]) in drafted and (merged or _is_path(graph, trajectory[: expected + 1])):
        expected += 1
    assert steps == [frozenset([commit]) for commit in trajectory[: expected + 1]]
    assert [graph.commits[node] for node in nodes] == [frozenset(trajectory[:t]) for t in range(expected + 1)]


def _is_path(graph: DraftGraph, path: list[Commit]) -> bool:
    return tuple(frozenset([commit]) for commit in path) in graph.index


def test_a_drafted_finished_block_ends_the_walk_without_a_step() -> None:
    graph = DraftGraph()
    step = frozenset([Commit(0, 1)])
    graph.add(0, step, 1.0)
    assert verify(graph, [step, None]) == ([step], [0, 1])
