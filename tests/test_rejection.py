"""Rejection sampling on chains: acceptance is 1 - TV, commits follow the target's law, and only chains are taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from live_laws import pairs, tiny

from spot_infer.blocks import BlockState, Commit
from spot_infer.decode import decode
from spot_infer.drafters import ChainDrafter
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, DraftGraph, Proposal
from spot_infer.noise import gumbel_row, uniforms
from spot_infer.rejection import accept_or_replace, chain_commits, draw_tokens, proposal_law, propose
from spot_infer.requests import DecodeSettings, Request
from spot_infer.table import TOP_K, StaleTable
from spot_infer.transition import CommitRule, Sampling
from spot_train.compare.coupling import Pair

DRAWS = 10**6


def table_of(laws: list[list[float]], start_slot: int = 0) -> StaleTable:
    """A stale table whose candidates 0, 1, ... have these probabilities."""
    top = np.full((len(laws), TOP_K), -np.inf, dtype=np.float16)
    token = np.full((len(laws), TOP_K), -1, dtype=np.int32)
    for row, law in enumerate(laws):
        top[row, : len(law)] = np.log(law)
        token[row, : len(law)] = np.arange(len(law))
    slots = np.arange(start_slot, start_slot + len(laws), dtype=np.uint8)
    return StaleTable(slots, top, token, np.zeros(len(laws), dtype=np.float32))


def context_of(table: StaleTable) -> DraftContext:
    return DraftContext(0, BlockState(4, (99,) * 4, 99), (table,), 4, 0.0, 0.0)


def _accepted(pi: np.ndarray, q: np.ndarray, random: np.random.Generator) -> float:
    tokens = propose(q, random.random(DRAWS))
    assert np.abs(np.bincount(tokens, minlength=len(q)) / DRAWS - q).max() < 0.004
    rate = np.minimum(1, pi[tokens] / q[tokens])
    return float((random.random(DRAWS) < rate).mean())


def _compact(pair: Pair, q: np.ndarray, width: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """The laws over the likeliest tokens of either, the rest as one token: sums of min(pi, q) change by its share."""
    kept = np.union1d(np.argsort(-pair.fresh)[:width], np.flatnonzero(q))
    rest = np.setdiff1d(np.arange(len(q)), kept)
    return tuple(np.append(law[kept], law[rest].sum()) for law in (pair.fresh, q))  # type: ignore[return-value]


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_acceptance_on_live_states_is_one_minus_total_variation(temperature: float) -> None:
    """10^6 proposals a state through the decoder's sampler, on the states with the most different laws; miscalibrated
    proposals are the stale law sharpened, flattened, and that of another state."""
    random = np.random.default_rng(0)
    by_distance = sorted(pairs(temperature), key=lambda pair: np.minimum(pair.fresh, pair.proposal).sum())
    chosen = [by_distance[int(at * (len(by_distance) - 1))] for at in (0.0, 0.05, 0.2)]
    assert np.minimum(chosen[0].fresh, chosen[0].proposal).sum() < 0.9
    for pair in chosen:
        sharp, flat = (np.where(pair.proposal > 0, pair.proposal, 0) ** power for power in (2.0, 0.5))
        for q in (pair.proposal, sharp / sharp.sum(), flat / flat.sum(), by_distance[-1].proposal):
            support = np.flatnonzero(q)
            expected = np.minimum(pair.fresh, q).sum()
            assert _accepted(pair.fresh[support], q[support], random) == pytest.approx(expected, abs=0.002)


def _committed(pi: np.ndarray, q: np.ndarray, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Commits of the decoder's own accept-or-replace from q, and which of them are the proposal."""
    random = np.random.default_rng(seed)
    support = np.flatnonzero(q)
    proposed = support[propose(q[support], random.random(draws))]
    links = [
        Proposal(Commit(0, int(token)), support, q[support], uniform)
        for token, uniform in zip(proposed.tolist(), random.random(draws).tolist(), strict=True)
    ]
    noise = torch.from_numpy(random.gumbel(size=(draws, len(pi))))
    log_law = torch.from_numpy(np.log(pi)).expand(draws, -1)
    tokens = accept_or_replace(log_law, torch.full((draws,), -1), noise, links).numpy()
    return tokens, tokens == proposed


def _excess(tokens: np.ndarray, law: np.ndarray) -> float:
    """Standard deviations of the chi-square statistic above its mean, rare tokens pooled with the rarest other."""
    seen, mean = np.bincount(tokens, minlength=len(law)).astype(float), law * len(tokens)
    assert not seen[law == 0].any()
    order = np.argsort(-mean)
    bins = np.minimum(np.arange(len(law)), max(int((mean >= 5).sum()) - 1, 0))
    seen, mean = (np.bincount(bins, weights=values[order]) for values in (seen, mean))
    return float((((seen - mean) ** 2 / mean).sum() - len(mean) + 1) / np.sqrt(2 * len(mean)))


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.3, 3.0]))
def test_commits_follow_the_targets_law_whatever_the_proposal_law(seed: int, concentration: float) -> None:
    random = np.random.default_rng(seed)
    pi, q = random.dirichlet(np.full(6, concentration), size=2) + 1e-12
    pi, q = pi / pi.sum(), q / q.sum()
    q[random.integers(6)] = 0.0
    q = q / q.sum() if q.sum() > 0 else np.full(6, 1 / 6)
    tokens, accepted = _committed(pi, q, 1500, seed)
    expected = np.minimum(pi, q).sum()
    assert abs(accepted.mean() - expected) < 5 * np.sqrt(expected * (1 - expected) / 1500) + 1e-3
    assert _excess(tokens, pi) < 6


def test_commits_on_live_states_follow_the_targets_law() -> None:
    by_distance = sorted(pairs(1.0), key=lambda pair: np.minimum(pair.fresh, pair.proposal).sum())
    for number, pair in enumerate(by_distance[:2]):
        for q in (pair.proposal, by_distance[-1].proposal):
            pi, compact_q = _compact(pair, q)
            assert _excess(_committed(pi, compact_q, 10_000, number)[0], pi) < 4


def test_equal_laws_accept_even_at_the_edge_of_rounding() -> None:
    law = np.array([0.25, 0.75])
    link = Proposal(Commit(0, 1), np.arange(2), law, 1.0)
    log_law = torch.from_numpy(np.log(law))[None]
    tokens = accept_or_replace(log_law, torch.tensor([-1]), torch.zeros(1, 2, dtype=torch.float64), [link])
    assert tokens.tolist() == [1]


def test_a_row_without_a_proposal_keeps_the_targets_draw() -> None:
    drawn = torch.tensor([3, 1])
    assert accept_or_replace(torch.zeros(2, 4), drawn, torch.zeros(2, 4), [None, None]).tolist() == [3, 1]


def test_the_proposal_law_is_the_tables_own_filtered_like_the_targets() -> None:
    table = table_of([[0.5, 0.25, 0.125, 0.0625]])
    stored = np.exp(table.top_logprob[0, :4].astype(np.float64))
    assert proposal_law(table, Sampling(1.0))[0, :4] == pytest.approx(stored / stored.sum())
    assert proposal_law(table, Sampling(0.5))[0, :4] == pytest.approx(stored**2 / (stored**2).sum())
    assert proposal_law(table, Sampling(1.0, top_k=2))[0, :4] == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=1e-3)
    assert proposal_law(table, Sampling(1.0, top_p=0.6))[0, :4] == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=1e-3)


def test_tokens_are_drawn_anew_from_the_law_and_never_seen_by_the_drafter() -> None:
    table = table_of([[0.5, 0.3, 0.2]] * 4)
    graph = DraftGraph()
    for slot in (2, 0, 3):
        graph.add(len(graph), frozenset([Commit(4 + slot, 0)]), 0.5)
    counts = np.zeros((3, 3))
    for seed in range(1500):
        drawn = draw_tokens(graph, context_of(table), Sampling(1.0), seed)
        commits = chain_commits(drawn)
        assert [commit.position for commit in commits] == [6, 4, 7]
        assert [drawn.proposals[node].commit for node in range(3)] == commits
        for link, commit in enumerate(commits):
            counts[link, commit.token] += 1
    law = proposal_law(table, Sampling(1.0))[0, :3]
    assert np.abs(counts / 1500 - law).max() < 0.06


def test_what_is_not_a_chain_of_single_commits_is_refused() -> None:
    table = table_of([[0.5, 0.5]] * 4)
    one, two = (frozenset([Commit(4 + slot, 0)]) for slot in (0, 1))
    siblings, pair = DraftGraph(), DraftGraph()
    siblings.add(0, one, 0.5)
    siblings.add(0, two, 0.5)
    pair.add(0, one | two, 0.5)
    for graph in (siblings, pair):
        with pytest.raises(SpotError, match="verifies chains of single commits only"):
            draw_tokens(graph, context_of(table), Sampling(1.0), 0)
    elsewhere = DraftGraph()
    elsewhere.add(0, frozenset([Commit(8, 0)]), 0.5)
    with pytest.raises(SpotError, match="no stale law"):
        draw_tokens(elsewhere, context_of(table), Sampling(1.0), 0)
    quota = DecodeSettings(sampling=Sampling(1.0), budget=2, verifier="rejection", rule=CommitRule(selection="quota"))
    with pytest.raises(SpotError, match="one commit at a time"):
        next(iter(decode(tiny(), [Request((5,))], quota, ChainDrafter())))


def test_uniforms_are_keyed_and_apart_from_the_gumbel_rows() -> None:
    assert uniforms(7, 3, 2).tolist() == uniforms(7, 3, 5)[:2].tolist()
    draws = np.array([uniforms(seed, position, 2) for seed in range(40) for position in range(50)])
    assert draws.min() > 0 and draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.02 and abs(np.corrcoef(draws.T)[0, 1]) < 0.08
    rows = np.array([gumbel_row(seed, position, 2) for seed in range(40) for position in range(50)])
    assert np.abs(np.corrcoef(np.hstack([draws, rows]).T) - np.eye(4)).max() < 0.08
    assert uniforms(0, 0, 2).tolist() == [0.9591503117516241, 0.07280913708915937]
    assert uniforms(2**64 - 1, 5, 1).tolist() == [0.26878961825463465]
