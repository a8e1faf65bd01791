"""Drafts that run on into the next block: the table before it opens, the way in, and what it takes of a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from fake_dlm import FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_decoder import fake_full_logits
from test_replay import order_drafter

from spot_infer.ahead import REPLICAS, completed, make_room
from spot_infer.allocate import Pace
from spot_infer.api import encode_prompt
from spot_infer.blocks import BlockState, Commit
from spot_infer.cost import CostCurve
from spot_infer.decode import decode
from spot_infer.draft import Query, search
from spot_infer.drafters import ChainDrafter, OddsTreeDrafter, OrderDrafter
from spot_infer.drafters.entrance import CERTAINTY, entrance
from spot_infer.drafters.hypotheses import token_hypotheses
from spot_infer.graph import DraftContext, DraftGraph, Ending, looks_ahead
from spot_infer.replicas import lay_out
from spot_infer.requests import Boundary, DecodeSettings, Request, Round
from spot_infer.responses import Responses
from spot_infer.table import StaleTable
from spot_infer.targets import load_target
from spot_infer.transition import CommitRule, Sampling, confidence, draw

L = 4
MASK = 9


def table_of(slots: Sequence[int], odds: Sequence[float], first_token: int = 1) -> StaleTable:
    """A table whose slot i has the token first_token + i, as sure as its log-odds say."""
    logprob = np.full((len(slots), 32), -12.0, np.float16)
    logprob[:, 0] = -np.logaddexp(0, -np.array(odds))
    tokens = np.arange(32, dtype=np.int32) + np.arange(len(slots), dtype=np.int32)[:, None] + first_token
    return StaleTable(np.array(slots, np.uint8), logprob, tokens, np.array(odds, np.float32))


def context_of(**changes: Any) -> DraftContext:
    """A root whose slots 2 and 3 are open, slot 1 just filled, and a table of the block behind it."""
    context = DraftContext(
        request=0,
        state=BlockState(0, (5, 2, MASK, MASK), MASK),
        tables=(table_of([1, 2, 3], [9.0, 8.0, 7.0]),),
        budget=16,
        floor=0.0,
        temperature=0.0,
        completes=True,
        next_table=table_of(range(L), [6.0, 8.0, 7.0, 5.0]),
    )
    return replace(context, **changes)


def test_a_block_is_completed_as_its_table_says_where_that_is_likely() -> None:
    context = context_of()
    guess = completed(context)
    assert guess is not None and guess.tokens == (5, 2, 2, 3)
    past = context_of(tables=(table_of([1, 2, 3], [-9.0, 8.0, 7.0]),))
    assert completed(past) == guess  # slot 1 is filled: how sure it was is past
    unsure = context_of(tables=(table_of([1, 2, 3], [9.0, 0.0, -0.5]),))
    assert completed(unsure) is None
    agreed = completed(replace(unsure, votes={2: {2: 1.0}, 3: {7: 1.0}}))
    assert agreed is not None and agreed.tokens == (5, 2, 2, 7)
    tokens, sure = np.array([8, 7, 6], np.int32), np.zeros(3, np.float16)
    drawn = replace(context.tables[0], drawn_token=tokens, drawn_logprob=sure)
    assert completed(replace(context, tables=(drawn,), temperature=1.0)).tokens == (5, 2, 7, 6)  # type: ignore[union-attr]


def test_the_entrance_is_what_the_rule_commits_first() -> None:
    context = context_of()
    way = entrance(context, CommitRule())
    assert way is not None and way.first == Commit(L + 1, 2)
    assert way.probability == pytest.approx(CERTAINTY / (1 + np.exp(-8.0)), rel=1e-3)
    assert way.context.state == BlockState(L, (MASK, 2, MASK, MASK), MASK)
    assert way.context.tables[0] is context.next_table and not way.context.completes
    told = Responses(np.zeros(L, np.int64), np.ones((L, L), np.float32))
    behind = entrance(context_of(responses=told), CommitRule())
    assert behind is not None and behind.context.responses is None
    for changes in ({"next_table": None}, {"completes": False}):
        assert entrance(context_of(**changes), CommitRule()) is None
    assert entrance(context_of(), CommitRule(selection="quota", quota=2)) is None


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("one_call", [True, False])
def test_a_draft_goes_on_behind_the_entrance_with_the_mass_that_reached_it(merged: bool, one_call: bool) -> None:
    context = context_of(budget=40)
    way = entrance(context, CommitRule())
    assert way is not None
    asked: list[Query] = []

    def score(queries: list[Query]) -> list[np.ndarray]:
        """Equal shares of the open slots."""
        asked.extend(queries)
        answers = []
        for number, path, depth in queries:
            assert depth == len(path)
            of = (context, way.context)[number]
            open_ = np.isin(of.tables[0].slots, [s for s in of.state.masked_slots if s not in path])
            answers.append(open_ / open_.sum())
        return answers

    hypotheses = [token_hypotheses(one) for one in (context, way.context)]
    (graph,) = search([context], score, hypotheses, merged, one_call=one_call, entrances=[way])
    own = {Commit(2, 2), Commit(3, 3)}
    chance = float(np.prod([pairs[0][1] for pairs in hypotheses[0][1:]]))
    masses: dict[frozenset[Commit], float] = {}
    for commits, mass in zip(graph.commits, graph.masses, strict=True):
        masses[commits] = masses.get(commits, 0.0) + mass
    inside = {commits: mass for commits, mass in masses.items() if any(one.position >= L for one in commits)}
    assert inside and all(commits >= own | {way.first} for commits in inside)
    assert masses[frozenset(own)] == pytest.approx(chance)
    assert masses[frozenset(own | {way.first})] == pytest.approx(chance * way.probability)
    below = [mass for commits, mass in inside.items() if len(commits) == 4]
    assert len(below) == 3
    assert sum(below) == pytest.approx(chance * way.probability, rel=0.01)
    assert max(map(len, inside)) == len(own) + 1 + way.context.room  # the next block's last slot is left open
    assert {number for number, _, _ in asked} == {0, 1}


def test_a_guess_that_was_drafted_takes_no_replica_more() -> None:
    context = context_of()
    guess = completed(context)
    assert guess is not None
    alone = lay_out((), context.state, DraftGraph(), 100, 32, guess)
    assert len(alone.replicas) == 1 + REPLICAS and alone.of_node == [0]
    assert alone.next_block is not None and alone.replicas[alone.next_block].state == guess.following()
    graph = DraftGraph()
    node = graph.add(0, frozenset({Commit(2, 2)}), 0.9)
    node = graph.add(node, frozenset({Commit(3, 3)}), 0.9)
    shared = lay_out((), context.state, graph, 100, 32, guess)
    assert len(shared.replicas) == len(lay_out((), context.state, graph, 100, 32).replicas)
    assert shared.next_block == shared.of_node[node]


def test_the_lightest_states_make_room_unless_they_are_worth_more() -> None:
    graph = DraftGraph()
    masses = {2: 0.9, 3: 0.4, 0: 0.3, 1: 0.1}
    nodes = {slot: graph.add(0, frozenset({Commit(slot, 1)}), mass) for slot, mass in masses.items()}
    below = graph.add(nodes[3], frozenset({Commit(2, 1)}), 0.35)
    guess = {Commit(2, 1), Commit(3, 1)}
    assert make_room(graph, guess, budget=5) is graph  # drafted: its replicas are there
    other = {Commit(2, 1), Commit(3, 2)}
    assert make_room(graph, other, budget=5 + REPLICAS) is graph
    roomy = make_room(graph, other, budget=5)
    assert roomy is not None and len(roomy) == 5 - REPLICAS
    assert set(roomy.commits) == {frozenset(), *(graph.commits[node] for node in (nodes[2], nodes[3], below))}
    assert make_room(graph, other, budget=4) is None  # 0.1 + 0.3 + 0.35
    assert make_room(graph, other, budget=5, price=0.05) == roomy and make_room(graph, other, 5, price=0.15) is None
    assert make_room(graph, guess, budget=5, price=9.0) is graph
    assert make_room(graph, other, budget=REPLICAS) is None


class Watching:
    """A chain that crosses blocks; compares every table of an unopened block with the slow model's."""

    looks_ahead = crosses_blocks = True

    def __init__(self, target: FakeTarget, request: Request, rounds: list[Round], sampling: Sampling) -> None:
        self.inner = ChainDrafter(depth=1, cross_block=True)
        self.full_logits = fake_full_logits(target)
        self.spec, self.request, self.rounds, self.sampling = target.spec, request, rounds, sampling
        self.before: DraftContext | None = None
        self.seen = 0

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        (context,) = contexts
        self._check(context)
        self.before = context
        return self.inner.propose(contexts)

    def _check(self, context: DraftContext) -> None:
        after = context.state.following()
        assert context.completes is (after.start < len(self.request.prompt_ids) + 21)
        before = self.before if self.before is not None and self.before.state.start == context.state.start else None
        guess = None if before is None else completed(before)
        ahead = context.next_table
        assert (ahead is None) is (not context.completes or not self._goes_on(guess))
        if ahead is None or guess is None:
            return
        self.seen += 1
        canvas = dict(enumerate(self.request.prompt_ids))
        canvas |= {position: token for r in self.rounds for step in r.steps for position, token in step}
        known = [canvas[position] for position in range(context.state.start)]
        logits = self.full_logits([*known, *guess.tokens, *after.tokens])[-L:]
        log_odds, best, _ = confidence(logits, torch.tensor(self.spec.forbidden_ids))
        assert ahead.slots.tolist() == list(range(L))
        assert ahead.top_token[:, 0].tolist() == best.tolist()
        np.testing.assert_allclose(ahead.log_odds, log_odds, rtol=1e-6)
        if self.sampling.temperature > 0:
            assert context.noise is not None
            noise = context.noise.rows(range(after.start, after.start + L))
            drawn, _ = draw(logits, noise, self.sampling, torch.tensor(self.spec.forbidden_ids))
            assert ahead.drawn_token is not None and ahead.drawn_token.tolist() == drawn.tolist()

    def _goes_on(self, guess: BlockState | None) -> bool:
        """Whether a block that ends as `guess` does not end the request."""
        if guess is None:
            return False
        generated = guess.tokens[max(len(self.request.prompt_ids) - guess.start, 0) :]
        return not set(generated) & set(self.spec.stop_ids)


@settings(max_examples=12)
@given(
    st.integers(0, 30),
    st.sampled_from([1, 3, 4, 6]),
    st.sampled_from(["separate", "fused", "seamless"]),
    st.sampled_from(["concat", "batch"]),
    st.sampled_from([Sampling(), Sampling(0.8)]),
)
def test_the_table_ahead_is_the_next_blocks_behind_the_guess(
    seed: int, prompt_length: int, boundary: Boundary, layout: Any, sampling: Sampling
) -> None:
    target = FakeTarget(seed=seed, block_length=L, stop_ids=())
    request = Request(tuple(range(prompt_length)), seed)
    run_settings = DecodeSettings(21, sampling=sampling, budget=6, boundary=boundary, layout=layout)
    rounds: list[Round] = []
    drafter = Watching(target, request, rounds, sampling)
    with (
        patch("spot_infer.ahead.LEAST_SURE", 0.0),
        patch("spot_infer.decode.MOST_OPEN", 1e9),
        patch("spot_infer.ahead.WORTH", 1e9),
    ):
        for round_ in decode(target, [request], run_settings, drafter):
            rounds.append(round_)
    assert drafter.seen


@pytest.mark.parametrize("drafter", [OddsTreeDrafter(), order_drafter(L), order_drafter(L, "one_call", "v2")])
def test_drafters_run_on_each_context_into_its_own_next_block(drafter: OddsTreeDrafter | OrderDrafter) -> None:
    tables = [table_of(range(L), odds) for odds in ([6.0, 8.0, 7.0, 5.0], [8.0, 5.0, 7.0, 6.0])]
    contexts = [context_of(budget=12, next_table=table) for table in tables]
    contexts.insert(1, context_of(budget=12, next_table=None))
    beyond = []
    for graph in drafter.propose(contexts):
        inside = [commits for commits in graph.commits if any(one.position >= L for one in commits)]
        beyond.append(min(inside, key=len, default=frozenset()) - {Commit(2, 2), Commit(3, 3)})
    assert beyond == [{Commit(L + 1, 2)}, frozenset(), {Commit(L, 1)}]
    still = drafter.looking(False)
    for one in (still, still.as_tree(), still.as_chain()):
        assert not looks_ahead(one)
        for graph in one.propose(contexts):
            assert all(one.position < L for commits in graph.commits for one in commits)


def test_no_state_is_drafted_that_ends_the_request_in_the_next_block() -> None:
    """The next block's slot 1 stops the request once slot 0, the only one before it that a draft leaves open, is
    filled."""
    table = table_of(range(L), [6.0, 8.0, 7.0, 5.0], first_token=11)
    context = context_of(budget=40, next_table=table, ending=Ending(2, 100, frozenset({12})))
    (graph,) = OddsTreeDrafter().propose([context])
    stop, before = Commit(L + 1, 12), Commit(L, 11)
    assert any(stop in commits for commits in graph.commits)
    assert not any({stop, before} <= commits for commits in graph.commits)
    (free,) = OddsTreeDrafter().propose([replace(context, ending=None)])
    assert any({stop, before} <= commits for commits in free.commits)


def test_running_on_saves_forwards_and_changes_no_token() -> None:
    target = load_target("builtin:data/tiny-sdar-b16")
    texts = ["What is 12 + 30?", "Sort these numbers: 3 1 2", "Reverse the word house", "Count from 1 to 9"]
    prompts = [Request(encode_prompt(target, text), n) for n, text in enumerate(texts)]
    how = DecodeSettings(96, budget=20, ignore_stop=True, batch_size=4)
    results = []
    for ahead in (False, True):
        rounds = list(decode(target, prompts, how, OddsTreeDrafter(ahead=ahead)))
        done = sorted((one.result for one in rounds if one.result is not None), key=lambda one: one.request)
        further = sum(_beyond(one) > 1 for one in rounds)
        results.append(([one.tokens for one in done], sum(one.stats.nfe for one in done), further))
    (plain, plain_nfe, none), (tokens, nfe, some) = results
    assert tokens == plain
    assert none == 0 and some > 4
    assert nfe < 0.95 * plain_nfe


@pytest.mark.parametrize("price", [0.0, 9.0])
def test_looking_ahead_has_a_price_on_a_curve_alone(price: float) -> None:
    """Too dear, a forward holds the next block behind no guess but a drafted one."""
    target, requests = (
        FakeTarget(seed=3, block_length=L, stop_ids=(), strength=4.0),
        [Request((1, 2, 3)), Request((3,))],
    )
    curve = CostCurve("flat", (1, 2), (1.0, 1.0))
    asked: list[int] = []
    with (
        patch("spot_infer.ahead.LEAST_SURE", 0.0),
        patch.object(Pace, "price", lambda pace, replicas, more: asked.append(more) or price),
        patch("spot_infer.decode.lay_out", wraps=lay_out) as laid,
    ):
        list(decode(target, requests, DecodeSettings(24, budget=12, batch_size=2), OddsTreeDrafter()))
        assert not asked
        laid.reset_mock()
        list(decode(target, requests, DecodeSettings(24, budget=12, batch_size=2, curve=curve), OddsTreeDrafter()))
    undrafted = []
    for _, root, graph, _, _, guess in (call.args for call in laid.call_args_list if len(call.args) > 5):
        if guess is not None:
            commits = frozenset(Commit(root.start + slot, guess.tokens[slot]) for slot in root.masked_slots)
            undrafted.append(commits not in graph.commits)
    assert set(asked) == {REPLICAS} and undrafted
    assert any(undrafted) is (price == 0)


def _beyond(round_: Round) -> int:
    """Steps of a round in a block behind its own."""
    after = round_.state.start + len(round_.state.tokens)
    return sum(min(step).position >= after for step in round_.steps)
