"""Drafters: inside the budget, never a finished block, and each one's own promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_trajectories import fake_trajectories
from hypothesis import given
from hypothesis import strategies as st

from spot_infer.blocks import BlockState, Commit, unfold
from spot_infer.drafters import (
    CalibratedGraph,
    CalibratedGraphDrafter,
    ChainDrafter,
    ConfidenceTreeDrafter,
    DraftSettings,
    OddsTreeDrafter,
    OracleDrafter,
    OrderDrafter,
    RandomDrafter,
    TrajectoryTreeDrafter,
)
from spot_infer.drafters.hypotheses import token_hypotheses
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, Drafter
from spot_infer.order_model import OrderModel, OrderModelConfig, Scorer
from spot_infer.table import TOP_K, StaleTable
from spot_infer.transition import CommitRule
from spot_infer.votes import VOTED_SHARE, counted
from spot_train.replay.replay import steps_of
from spot_train.trajectory import Trajectory

L = 8
MASK = 39
SCORERS: list[Scorer] = ["per_level", "one_call"]
WIDE = (*(frozenset((i, 0) for i in range(depth)) for depth in range(1, L + 1)), frozenset({(0, 31)}))


def order_model(block_length: int = L, scorer: Scorer = "per_level", **changes: int) -> OrderModel:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "heads": 2, "layers": 1, "feed_forward": 16, "head_hidden": 8, **changes}
    model = OrderModel(OrderModelConfig(block_length, scorer=scorer, **sizes))
    if scorer == "per_level":
        torch.nn.init.normal_(model.head_out.weight)
    else:
        for parameter in model.set_head.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    return model.double()


def context_at(
    one: Trajectory, step: int, request: int = 0, budget: int = 6, floor: float = 0.0, completes: bool = False
) -> DraftContext:
    """The root at state `step` (not a block's first) with the table before it."""
    start = int(one.block_start[step])
    tokens = [0] * L
    for slot in one.table(step).slots.tolist():
        tokens[slot] = MASK
    temperature = 0.0 if one.drawn_token is None else 0.7
    state = BlockState(start, tuple(tokens), MASK)
    return DraftContext(request, state, (one.table(step - 1),), budget, floor, temperature, completes=completes)


def roots(one: Trajectory) -> list[int]:
    return [step for step in range(1, len(one)) if one.block_start[step] == one.block_start[step - 1]]


def all_drafters(trajectories: list[Trajectory]) -> dict[str, Drafter]:
    control = {index: steps_of(one) for index, one in enumerate(trajectories)}
    return {
        "order": OrderDrafter(order_model()),
        "tree": OrderDrafter(order_model(), DraftSettings(merged=False, tau=2.0)),
        "one call": OrderDrafter(order_model(scorer="one_call")),
        "one call tree": OrderDrafter(order_model(scorer="one_call"), DraftSettings(merged=False)),
        "chain": ChainDrafter(),
        "short chain": ChainDrafter(depth=2),
        "quota chain": ChainDrafter(CommitRule(selection="quota", quota=2)),
        "second token chain": ChainDrafter(rank=2, drawn_confidence=True),
        "confidence tree": ConfidenceTreeDrafter(drawn_confidence=True),
        "confidence tree, unmerged": ConfidenceTreeDrafter(merged=False, runner_up_below=1.0),
        "odds tree": OddsTreeDrafter(),
        "odds chain": OddsTreeDrafter(chain=True),
        "trajectory tree": TrajectoryTreeDrafter(width=3, depth=9),
        "calibrated graph": CalibratedGraphDrafter(CalibratedGraph(WIDE, (0.1,) * len(WIDE), L)),
        "random": RandomDrafter(),
        "wrong": RandomDrafter(3, "wrong", merged=False),
        "position": OracleDrafter("position", control),
        "token": OracleDrafter("token", control),
        "joint": OracleDrafter("joint", control),
    }


@pytest.mark.parametrize("completes", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("name", list(all_drafters([])))
def test_drafts_keep_to_the_budget_and_fill_the_block_only_where_another_follows(
    name: str, temperature: float, completes: bool
) -> None:
    trajectories = list(fake_trajectories(count=4, block_length=L, temperature=temperature))
    drafter = all_drafters(trajectories)[name]
    contexts = [
        context_at(one, step, index, budget, completes=completes)
        for index, one in enumerate(trajectories)
        for step in roots(one)
        for budget in (0, 1, 5)
    ]
    graphs = drafter.propose(contexts)
    assert len(graphs) == len(contexts)
    assert any(len(graph) for graph in graphs)
    for context, graph in zip(contexts, graphs, strict=True):
        assert len(graph) <= context.budget
        for commits in graph.commits:
            blocks = unfold(context.state, commits, end=10**6)
            assert blocks is not None
            assert len(blocks) == 1 or completes
            assert len(blocks) <= 2 or name == "joint"
            assert all(0 <= token < 40 and token != MASK for _, token in commits)
    filled = [unfold(one.state, graph.commits[-1], 10**6) for one, graph in zip(contexts, graphs, strict=True)]
    assert any(len(blocks or ()) > 1 for blocks in filled) is completes
    assert drafter.propose([]) == []


@given(st.integers(0, 30), st.lists(st.integers(0, 200), min_size=2, max_size=6, unique=True), st.sampled_from(SCORERS))
def test_a_batch_of_contexts_drafts_what_each_would_alone(seed: int, picks: list[int], scorer: Scorer) -> None:
    one = max(fake_trajectories(count=4, block_length=L, seed=seed % 3), key=len)
    drafter = OrderDrafter(order_model(scorer=scorer), chunk_states=1 + seed)
    contexts = [context_at(one, roots(one)[pick % len(roots(one))], pick) for pick in picks]
    together = drafter.propose(contexts)
    for context, graph in zip(contexts, together, strict=True):
        (alone,) = drafter.propose([context])
        assert graph.keys == alone.keys
        np.testing.assert_allclose(graph.masses, alone.masses, rtol=1e-9)


def test_one_network_call_a_level_for_all_contexts() -> None:
    one = max(fake_trajectories(count=4, block_length=L), key=len)
    model = order_model()
    calls = []
    model.input.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    contexts = [context_at(one, step) for step in roots(one)[:5]]
    graphs = OrderDrafter(model).propose(contexts)
    assert len(calls) == max(graph.calls for graph in graphs) > 1
    assert sum(calls) == sum(graph.states_scored for graph in graphs)


def test_one_network_call_for_all_levels_of_all_contexts() -> None:
    one = max(fake_trajectories(count=4, block_length=L), key=len)
    model = order_model(scorer="one_call")
    calls = []
    model.input.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    contexts = [context_at(one, step, budget=40) for step in roots(one)[:5]]
    graphs = OrderDrafter(model).propose([*contexts, replace(contexts[0], budget=0)])
    assert calls == [6]
    assert [graph.calls for graph in graphs] == [1] * 5 + [0]
    assert max(len(commits) for graph in graphs for commits in graph.commits) > 2


def test_a_one_call_score_depends_on_the_set_and_not_on_its_order() -> None:
    one = max(fake_trajectories(count=4, block_length=L), key=len)
    asked = OrderDrafter(order_model(scorer="one_call")).score([context_at(one, roots(one)[0])])
    open_slots = context_at(one, roots(one)[0]).state.masked_slots
    first, second, third = open_slots[0], open_slots[2], open_slots[3]
    (law,) = asked([(0, (first, second), 2)])
    assert np.array_equal(asked([(0, (second, first), 2)])[0], law)
    (other,) = asked([(0, (first, third), 2)])
    rest = [i for i, slot in enumerate(one.table(roots(one)[0] - 1).slots.tolist()) if slot in open_slots[4:]]
    assert not np.allclose(law[rest] / law[rest].sum(), other[rest] / other[rest].sum())


def test_tau_flattens_the_masses() -> None:
    one = max(fake_trajectories(count=4, block_length=L), key=len)
    context = context_at(one, roots(one)[0], budget=20)
    sharp, flat = (OrderDrafter(order_model(), DraftSettings(tau=tau)).propose([context])[0] for tau in (0.3, 5.0))
    assert max(sharp.masses[1:]) > max(flat.masses[1:])


def test_another_block_length_is_named() -> None:
    one = max(fake_trajectories(count=4, block_length=L), key=len)
    with pytest.raises(SpotError, match="block length 4"):
        OrderDrafter(order_model(4)).propose([context_at(one, roots(one)[0])])


@pytest.mark.parametrize("change", [{"tau": 0.0}, {"tau": float("nan")}, {"merged": 1}, {"runner_up_below": "x"}])
def test_bad_settings_are_named(change: dict[str, object]) -> None:
    with pytest.raises(SpotError, match=next(iter(change))):
        DraftSettings(**change)  # type: ignore[arg-type]


def table_of(slots: list[int], top: list[tuple[float, float]], log_odds: list[float]) -> StaleTable:
    logprob = np.full((len(slots), TOP_K), -np.inf)
    logprob[:, :2] = np.log(np.maximum(top, 1e-30))
    token = np.full((len(slots), TOP_K), -1)
    token[:, :2] = [(10 + slot, 20 + slot) for slot in slots]
    return StaleTable(
        np.array(slots, np.uint8), logprob.astype(np.float16), token.astype(np.int32), np.array(log_odds, np.float32)
    )


def test_the_runner_up_is_drafted_only_where_the_argmax_is_unsure() -> None:
    table = table_of([1, 4], [(0.5, 0.3), (0.9, 0.05)], [0.0, 2.0])
    state = BlockState(8, tuple(MASK if slot in (1, 4) else 0 for slot in range(L)), MASK)
    pairs = token_hypotheses(DraftContext(0, state, (table,), 4, 0.0, 0.0))
    assert [[token for token, _ in slot] for slot in pairs] == [[11, 21], [14]]
    np.testing.assert_allclose([p for slot in pairs for _, p in slot], [0.5, 0.3, 0.9], atol=1e-3)


def test_a_token_that_states_name_is_drafted_and_weighs_what_they_say_of_it() -> None:
    table = table_of([1, 4, 5], [(0.5, 0.3), (0.9, 0.05), (0.2, 0.1)], [0.0, 2.0, -1.4])
    state = BlockState(8, tuple(MASK if slot in (1, 4, 5) else 0 for slot in range(L)), MASK)
    votes = {1: {11: 0.25, 30: 0.75}, 4: {14: 0.95, 31: 0.05}}
    context = DraftContext(0, state, (table,), 4, 0.0, 0.0, votes=votes)
    named, agreed, unseen = token_hypotheses(context)
    share = VOTED_SHARE
    assert named == [
        (30, pytest.approx(0.75 * share)),
        (11, pytest.approx(0.25 * share + 0.5 * (1 - share), abs=1e-3)),
        (21, pytest.approx(0.3 * (1 - share), abs=1e-3)),
    ]
    assert agreed == [(14, pytest.approx(0.95 * share + 0.9 * (1 - share), abs=1e-3))]  # 31 has 0.03
    assert unseen == token_hypotheses(replace(context, votes=None))[2]
    drawn = replace(table, drawn_token=np.array([21, 14, 15]), drawn_logprob=np.log([0.3, 0.9, 0.2]))
    sampled = token_hypotheses(replace(context, tables=(drawn,), temperature=1.0))
    assert [token for token, _ in sampled[0]] == [30, 11, 21] and sampled[2] == [(15, pytest.approx(0.2))]


def test_later_states_have_more_votes() -> None:
    early = BlockState(8, (MASK, MASK, MASK, 1), MASK)
    late = BlockState(8, (MASK, 2, 1, 1), MASK)
    votes = counted([(early, [5, 6, 7]), (late, [8]), (BlockState(8, (1, 1, 1, 1), MASK), [])])
    assert votes == {0: {5: pytest.approx(0.1), 8: pytest.approx(0.9)}, 1: {6: 1.0}, 2: {7: 1.0}}  # 1/9 against 1


def test_the_chain_follows_the_rules_ranking_and_the_floor() -> None:
    table = table_of([0, 1, 2, 3, 4], [(0.9, 0.1)] * 5, [9.0, 8.0, 8.5, 1.0, 9.9])
    state = BlockState(16, tuple(MASK if slot < 4 else 5 for slot in range(L)), MASK)
    context = DraftContext(0, state, (table,), 8, 0.0, 0.0)
    (exact,) = ChainDrafter().propose([context])
    assert [sorted(c.position - 16 for c in commits) for commits in exact.commits] == [[], [0], [0, 2], [0, 1, 2]]
    assert exact.commits[1] == {Commit(16, 10)}
    (tied,) = ChainDrafter(CommitRule(resolution="bfloat16")).propose([context])
    assert [sorted(c.position - 16 for c in commits) for commits in tied.commits] == [[], [0], [0, 1], [0, 1, 2]]
    (floored,) = ChainDrafter().propose([DraftContext(0, state, (table,), 8, 0.85, 0.0)])
    assert len(floored) == 1


def test_the_joint_oracle_drafts_the_trajectory_itself() -> None:
    trajectories = list(fake_trajectories(count=4, block_length=L))
    oracle = OracleDrafter("joint", {index: steps_of(one) for index, one in enumerate(trajectories)})
    for index, one in enumerate(trajectories):
        for step in roots(one):
            (graph,) = oracle.propose([context_at(one, step, index)])
            node = 0
            for ahead in range(step, step + len(graph)):
                child = graph.child(node, one.step(ahead))
                assert child is not None
                node = child


def test_oracles_know_the_half_they_are_named_for() -> None:
    trajectories = list(fake_trajectories(count=4, block_length=L))
    control = {index: steps_of(one) for index, one in enumerate(trajectories)}
    for index, one in enumerate(trajectories):
        for step in roots(one):
            context = context_at(one, step, index, budget=20)
            truth = {commit.position: commit.token for later in control[index][step:] for commit in later}
            (position,) = OracleDrafter("position", control).propose([context])
            order = [next(iter(later)).position for later in control[index][step : step + len(position)]]
            assert [len(commits) for commits in position.commits] == list(range(len(position) + 1))
            for depth, commits in enumerate(position.commits):
                assert {commit.position for commit in commits} == set(order[:depth])
            (token,) = OracleDrafter("token", control).propose([context])
            for commits in token.commits:
                assert all(truth.get(commit.position, commit.token) == commit.token for commit in commits)


def test_the_wrong_drafter_never_drafts_the_likeliest_token() -> None:
    one = max(fake_trajectories(count=4, block_length=L), key=len)
    for step in roots(one):
        context = context_at(one, step, budget=10)
        likeliest = dict(zip(context.tables[0].slots.tolist(), context.tables[0].top_token[:, 0].tolist(), strict=True))
        (graph,) = RandomDrafter(1, "wrong").propose([context])
        for commits in graph.commits:
            assert all(likeliest[position - context.state.start] != token for position, token in commits)


def test_random_drafts_depend_on_seed_and_root_alone() -> None:
    one = max(fake_trajectories(count=4, block_length=L), key=len)
    contexts = [context_at(one, step) for step in roots(one)]
    together = [graph.keys for graph in RandomDrafter(1).propose(contexts)]
    assert together == [RandomDrafter(1).propose([context])[0].keys for context in contexts]
    assert together != [graph.keys for graph in RandomDrafter(2).propose(contexts)]
