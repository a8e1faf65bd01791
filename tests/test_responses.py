"""Responses: what states that a round drafted say of how the block's slots respond to a commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_dlm import FakeTarget
from hypothesis import given
from hypothesis import strategies as st
from odd_drafters import CrossingDrafter
from stale_contexts import MASK, START, context_of
from test_replay import order_drafter

from spot_infer.answers import Answers, read_answers
from spot_infer.blocks import BlockState, Commit, unfold
from spot_infer.decode import decode
from spot_infer.drafters import OddsTreeDrafter
from spot_infer.drafters.odds_order import odds_scores
from spot_infer.drafters.order_scores import ODDS_SHARE, TRAINED_SHARE
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, Drafter, DraftGraph
from spot_infer.noise import GumbelNoise
from spot_infer.order_model import Scorer
from spot_infer.packing import Replica, RowStates, pack
from spot_infer.requests import Boundary, DecodeSettings, Request, Round
from spot_infer.responses import Responses, measured
from spot_infer.transition import CommitRule, Sampling, draw
from spot_infer.votes import counted

L = 4
TOP = np.zeros((0, 0))
Told = list[tuple[BlockState, list[float]]]


def told(tokens: Sequence[Sequence[int | None]], seed: int) -> Told:
    """States with random log-odds at their masked slots; None is a mask."""
    draw = np.random.default_rng(seed)
    states = [BlockState(START, tuple(MASK if one is None else one for one in each), MASK) for each in tokens]
    return [(one, draw.normal(size=len(one.masked_slots)).astype(np.float32).tolist()) for one in states]


slots = st.sampled_from([None, None, 1, 1, 2])
states = st.lists(st.tuples(*[slots] * L), min_size=1, max_size=24, unique=True)


@given(states, st.tuples(*[slots] * L), st.integers(0, 99))
def test_a_response_is_the_weighted_mean_over_pairs_one_commit_apart(
    tokens: list[tuple[int | None, ...]], at: tuple[int | None, ...], seed: int
) -> None:
    seen = told(tokens, seed)
    root = told([at], 0)[0][0]
    before = Responses(np.full(L, 7), np.full((L, L), 9, dtype=np.float32))
    found = measured(before, seen, root)
    assert found is not None
    dense = [dict(zip(state.masked_slots, odds, strict=True)) for state, odds in seen]
    for slot in range(L):
        sums: dict[int, list[tuple[float, dict[int, float]]]] = {}
        for (earlier, _), was in zip(seen, dense, strict=True):
            for (later, _), now in zip(seen, dense, strict=True):
                pair = zip(earlier.tokens, later.tokens, strict=True)
                apart = [place for place, (one, other) in enumerate(pair) if one != other]
                if apart == [slot] and earlier.tokens[slot] == MASK and root.tokens[slot] == MASK:
                    far = len(set(earlier.masked_slots) ^ set(root.masked_slots))
                    change = {place: now[place] - was[place] for place in now}
                    sums.setdefault(later.tokens[slot], []).append(((1 + far) ** -2, change))
        if not sums:
            assert found.token[slot] == 7 and (found.change[slot] == 9).all()
            continue
        expected = []
        for token, pairs in sums.items():
            row = np.zeros(L)
            for place in range(L):
                about = [(weight, change[place]) for weight, change in pairs if place in change]
                row[place] = np.average([one for _, one in about], weights=[w for w, _ in about]) if about else 0
            expected.append((token, row))
        token, row = next(one for one in expected if one[0] == found.token[slot])
        np.testing.assert_allclose(found.change[slot], row, atol=1e-5)
    assert (before.token == 7).all() and (before.change == 9).all()


def test_only_the_token_that_was_measured_counts() -> None:
    one = Responses(np.array([4, -1, 6]), np.arange(9, dtype=np.float32).reshape(3, 3))
    between = one.between(np.array([0, 1, 2]), np.array([4, 5, 7]))
    assert between.tolist() == [[0, 1, 2], [0, 0, 0], [0, 0, 0]]
    assert one.between(np.array([2, 0]), np.array([6, 4])).tolist() == [[8, 6], [2, 0]]


@pytest.mark.parametrize("scorer", ["per_level", "one_call"])
def test_scores_move_by_the_responses_of_all_slots_filled_since_the_stale_table(scorer: Scorer) -> None:
    context = replace(context_of([3.0, 2.5, 2.0, 1.0, 0.5, 0.2], filled=(1,)), budget=4)
    root = list(context.state.tokens)
    token = np.array([10, root[1], 12, 99, -1, 15])  # slots 3 and 4: another token, and nothing
    responses = Responses(token, np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32))
    drafter = order_drafter(6, scorer).responding(0.5)
    queries = [(0, (), 0), (0, (2,), 1), (0, (0, 3, 4), 3)]
    plain = drafter.score([context])(queries)
    moved = drafter.score([replace(context, responses=responses)])(queries)
    assert not drafter.responding(0.0).reads_responses and drafter.reads_responses
    for (_, path, _), was, now in zip(queries, plain, moved, strict=True):
        left = [slot for slot in range(6) if slot not in (1, *path)]
        filled = [slot for slot in (1, *path) if slot in (0, 1, 2)]
        change = 0.5 * responses.change[np.ix_(filled, left)].sum(axis=0)
        odds = context.tables[0].log_odds[left] + change
        order = odds_scores(odds[None], np.zeros((1, len(left)), dtype=bool), TOP, CommitRule())[0]
        scores = TRAINED_SHARE * (np.log(was[left]) + change) + ODDS_SHARE * order
        np.testing.assert_allclose(now[left], np.exp(scores) / np.exp(scores).sum(), rtol=1e-4)


class Spy:
    """A drafter that keeps what it was asked and what it answered."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.reads_responses = drafter, True
        self.seen: list[tuple[DraftContext, DraftGraph]] = []

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        graphs = self.drafter.propose(contexts)
        self.seen += zip(contexts, graphs, strict=True)
        return graphs


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("boundary", ["separate", "seamless"])
def test_a_decoder_measures_the_states_it_drafted_and_begins_anew_with_a_block(
    boundary: Boundary, temperature: float
) -> None:
    target = FakeTarget(seed=3, block_length=12, vocab_size=30, stop_rate=0.0)
    prompt, rule = tuple(range(2, 16)), CommitRule()
    sampling = Sampling(temperature=temperature)
    settings = DecodeSettings(46, rule, sampling, budget=12, batch_size=1, boundary=boundary, ignore_stop=True)
    control = list(decode(target, [Request(prompt)], replace(settings, boundary="separate", budget=0)))
    steps = tuple(step for one in control for step in one.steps)
    spies = [Spy(order_drafter(12)), Spy(CrossingDrafter({0: steps}, target.spec.mask_id, merged=True))]
    compared = [compare(target, prompt, settings, spy) for spy in spies]
    assert sum(len(one) for one in compared) > 3
    assert temperature > 0 or any(crossed for one in compared for crossed in one)


def compare(target: FakeTarget, prompt: tuple[int, ...], settings: DecodeSettings, spy: Spy) -> list[bool]:
    """Check what every proposal was given against forwards of its states alone; whether each was measured behind a
    block that its round had left."""
    every = list(decode(target, [Request(prompt)], settings, spy))
    (result,) = [one.result for one in every if one.result is not None]
    rounds = [one for one in every if one.graph is not None]
    canvas, end = [*prompt, *result.tokens], len(prompt) + settings.max_new_tokens
    found = []
    for now, (context, graph), (following, _) in zip(rounds, spy.seen, spy.seen[1:], strict=False):
        start, crossed = following.state.start, following.state.start != context.state.start
        prefix, votes = canvas[: context.state.start], None
        *drafted, last = [unfold(context.state, commits, end) or () for commits in (*graph.commits, passed(now))]
        expected = None if crossed else context.responses
        if last[-1].start == start:
            seen: list[tuple[tuple[BlockState, ...], Answers]] = []
            for blocks in (blocks for blocks in drafted if blocks and blocks[-1].start == start):
                behind = [*prefix, *(token for block in blocks[:-1] for token in block.tokens)]
                seen.append((blocks, alone(target, behind, blocks[-1], settings)))
            expected = measured(expected, [(blocks[-1], own.log_odds) for blocks, own in seen], last[-1])
            votes = counted([(blocks[-1], own.drawn) for blocks, own in seen if blocks != last])
        assert {slot: pytest.approx(shares) for slot, shares in (votes or {}).items()} == (following.votes or {})
        assert (expected is None) is (following.responses is None)
        if expected is not None and following.responses is not None:
            np.testing.assert_array_equal(following.responses.token, expected.token)
            np.testing.assert_allclose(following.responses.change, expected.change, atol=1e-5)
            found.append(crossed)
    return found


def passed(one: Round) -> frozenset[Commit]:
    """What a round committed before its last step."""
    return frozenset(commit for step in one.steps[:-1] for commit in step)


def alone(target: FakeTarget, prefix: Sequence[int], state: BlockState, settings: DecodeSettings) -> Answers:
    """What the target says of a state alone, in a forward of its own."""
    noise = GumbelNoise(0, target.spec.vocab_size) if settings.sampling.temperature > 0 else None
    cache = target.new_cache()
    cache.add_row()
    target.prefill(cache, [0], [prefix])
    packed = pack([RowStates(0, len(prefix), [Replica(state, None)])], "concat", target.device, 0)
    hidden = target.forward(packed, cache)
    own = read_answers(target, packed, hidden, settings.rule, [(0, state.start, noise)])[0]
    if noise is None:
        return own
    logits = target.logits(hidden)
    forbidden = torch.tensor(target.spec.forbidden_ids)
    positions = [state.start + slot for slot in state.masked_slots]
    return replace(own, drawn=draw(logits, noise.rows(positions), settings.sampling, forbidden)[0].tolist())


@pytest.mark.parametrize("share", [-0.5, float("nan"), 1e39, True])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(SpotError, match=r"draft\.response is"):
        order_drafter(8).responding(share)
    with pytest.raises(SpotError, match=r"draft\.response is"):
        OddsTreeDrafter(response=share)


def test_a_certain_slot_has_a_share_and_not_all_or_nothing_else() -> None:
    context = replace(context_of([3.0, 2.0, 1.0, 0.5]), budget=6)
    table = replace(context.tables[0], log_odds=np.array([np.inf, 2.0, 1.0, -np.inf], dtype=np.float32))
    responses = measured(None, [(context.state, [np.inf, 2.0, 1.0, 0.5])], context.state)
    assert responses is None
    told = Responses(np.array([10, 11, 12, 13]), np.ones((4, 4), dtype=np.float32))
    for drafter in (OddsTreeDrafter(), order_drafter(4, "one_call"), order_drafter(4)):
        (graph,) = drafter.propose([replace(context, tables=(table,), responses=told)])
        assert len(graph) == 6 and np.isfinite(graph.masses).all()
