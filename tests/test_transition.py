"""The commit rule, the filters and the coupled draw, each against a slow form written from its sentence."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from spot_infer.errors import SpotError
from spot_infer.noise import gumbel_row
from spot_infer.official_rules import even_quotas, linear_quotas
from spot_infer.transition import (
    CommitRule,
    Sampling,
    confidence,
    draw,
    draw_from_all,
    filter_logits,
    ranking_values,
    select_slots,
)

VOCAB = 7
NONE = torch.zeros(0, dtype=torch.int64)
coarse = st.lists(st.sampled_from([-4.0, -1.0, 0.0, 0.5, 3.0, 60.0]), min_size=VOCAB, max_size=VOCAB)
fine = st.lists(st.floats(-30, 30, width=32), min_size=VOCAB, max_size=VOCAB)
some_ids = st.sets(st.integers(0, VOCAB - 1), max_size=VOCAB - 2)


def exact_log_odds(logits: list[float], best: int) -> float:
    """z_best - ln(sum of exp of the others) with 60 digits."""
    with localcontext() as context:
        context.prec = 60
        total = sum((Decimal(z).exp() for i, z in enumerate(logits) if i != best), Decimal(0))
        return float(Decimal(logits[best]) - total.ln())


@given(coarse | fine, some_ids, st.sampled_from([torch.float32, torch.float64]))
def test_confidence_is_the_lowest_best_allowed_token_and_its_exact_log_odds(
    logits: list[float], forbidden: set[int], dtype: torch.dtype
) -> None:
    log_odds, best, normaliser = confidence(
        torch.tensor([logits], dtype=dtype), torch.tensor(sorted(forbidden), dtype=torch.int64)
    )
    expected = min((i for i in range(VOCAB) if i not in forbidden), key=lambda i: (-logits[i], i))
    assert int(best) == expected
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert float(log_odds) == pytest.approx(exact_log_odds(logits, expected), rel=tolerance, abs=tolerance)
    total = math.log(sum(math.exp(z - max(logits)) for z in logits)) + max(logits)
    assert float(normaliser) == pytest.approx(total, rel=tolerance, abs=tolerance)


def test_log_odds_order_slots_whose_float32_probabilities_are_all_one() -> None:
    logits = torch.zeros(3, 5)
    logits[:, 2] = torch.tensor([40.0, 41.0, 39.0])
    log_odds, _, _ = confidence(logits, NONE)
    assert torch.equal(logits.softmax(-1).max(-1).values, torch.ones(3))
    assert select_slots(ranking_values(log_odds, CommitRule()).tolist(), log_odds.tolist(), CommitRule()) == [1]
    rounded = ranking_values(log_odds, CommitRule(resolution="bfloat16"))
    assert select_slots(rounded.tolist(), log_odds.tolist(), CommitRule()) == [0]


def bfloat16_of(value: float) -> float:
    """Round a float32 to bfloat16, to nearest even, on its bits."""
    bits = int(np.float32(value).view(np.uint32))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(np.uint32(bits).view(np.float32))


@given(st.lists(st.floats(-30, 40, width=32), min_size=2, max_size=8))
def test_bfloat16_ranks_by_the_rounded_probability(values: list[float]) -> None:
    log_odds = torch.tensor(values, dtype=torch.float32)
    expected = [bfloat16_of(p) for p in torch.sigmoid(log_odds).tolist()]
    assert ranking_values(log_odds, CommitRule(resolution="bfloat16")).tolist() == expected


@given(st.lists(st.floats(-30, 40), min_size=2, max_size=8), st.sampled_from([1e-3, 0.05, 0.3]))
def test_epsilon_ties_exactly_the_slots_within_epsilon_of_certain(values: list[float], epsilon: float) -> None:
    log_odds = torch.tensor(values, dtype=torch.float64)
    ranked = ranking_values(log_odds, CommitRule(resolution=epsilon))
    certain = log_odds >= math.log((1 - epsilon) / epsilon)
    assert len(set(ranked[certain].tolist())) <= 1
    assert torch.equal(ranked[~certain], log_odds[~certain])
    if certain.any() and (~certain).any():
        assert ranked[certain].min() >= ranked[~certain].max()


@given(st.lists(st.floats(-30, 40), min_size=2, max_size=8), st.sampled_from(["bfloat16", 1e-3, 0.05, 0.3]))
def test_slots_within_the_tie_width_rank_as_a_certain_one_does_and_commit_left_to_right(
    values: list[float], resolution: Any
) -> None:
    rule = CommitRule(resolution=resolution)
    log_odds = torch.tensor([*values, 60.0], dtype=torch.float64)
    ranked = ranking_values(log_odds, rule)
    uncertain = torch.sigmoid(-log_odds)
    edge = (uncertain - rule.tie_width).abs() < 1e-12
    assert torch.equal((ranked == ranked[-1])[~edge], (uncertain <= rule.tie_width)[~edge])
    assert select_slots(ranked.tolist(), log_odds.tolist(), rule) == [int((ranked == ranked[-1]).int().argmax())]


@given(st.lists(st.floats(-30, 15), min_size=1, max_size=8), st.sampled_from([1e-3, 0.05, 0.3]))
def test_a_stated_resolution_changes_nothing_where_no_slot_is_that_sure_and_nothing_a_second_time(
    values: list[float], epsilon: float
) -> None:
    log_odds = torch.tensor(values, dtype=torch.float64)
    rule, finer = CommitRule(resolution=epsilon), CommitRule(resolution=1e-9)
    once = ranking_values(log_odds, rule)
    assert torch.equal(ranking_values(once, rule), once)
    assert torch.equal(ranking_values(log_odds, finer), ranking_values(log_odds, CommitRule()))
    assert CommitRule().tie_width == 0
    order = CommitRule(selection="quota", quota=len(values))
    kept = [slot for slot in select_slots(values, values, order) if values[slot] < math.log((1 - epsilon) / epsilon)]
    assert select_slots(once.tolist(), values, replace(order, resolution=epsilon))[len(values) - len(kept) :] == kept


@given(fine, st.sampled_from(["margin", "entropy"]))
def test_margin_and_entropy_follow_their_definitions(logits: list[float], ranking: Any) -> None:
    z = torch.tensor([logits], dtype=torch.float64)
    p = sorted((math.exp(v - max(logits)) for v in logits), reverse=True)
    p = [v / sum(p) for v in p]
    expected = p[0] - p[1] if ranking == "margin" else sum(v * math.log(v) for v in p if v > 0)
    value = ranking_values(confidence(z, NONE)[0], CommitRule(ranking=ranking), z)
    assert float(value) == pytest.approx(expected, abs=1e-12)


def test_a_forbidden_token_is_in_no_margin() -> None:
    logits = torch.log(torch.tensor([[0.2, 0.1, 0.7], [0.3, 0.25, 0.45]], dtype=torch.float64))
    forbidden = torch.tensor([2])
    margin = ranking_values(confidence(logits, forbidden)[0], CommitRule("margin"), logits, forbidden)
    assert margin.tolist() == pytest.approx([0.1, 0.05])


scores = st.lists(st.sampled_from([-2.0, 0.0, 1.0, 2.0, 2.5]), min_size=1, max_size=6)


@given(scores, st.integers(1, 8), st.sampled_from([0.2, 0.5, 0.8, float(torch.sigmoid(torch.tensor(2.0).double()))]))
def test_selection_sorts_by_value_and_lowest_slot(values: list[float], quota: int, threshold: float) -> None:
    by_hand = []
    left = list(range(len(values)))
    while left:
        best = next(i for i in left if values[i] == max(values[j] for j in left))
        by_hand.append(best)
        left.remove(best)
    assert select_slots(values, values, CommitRule()) == by_hand[:1]
    assert select_slots(values, values, CommitRule(selection="quota", quota=quota)) == by_hand[:quota]
    above = [i for i in by_hand if values[i] > math.log(threshold / (1 - threshold))]
    chosen = select_slots(values, values, CommitRule(selection="threshold", threshold=threshold, quota=quota))
    assert chosen == (above if len(above) >= quota else by_hand[:quota])


def test_the_threshold_itself_is_not_above_the_threshold() -> None:
    rule = CommitRule(selection="threshold", threshold=0.5)
    assert select_slots([0.0, 0.0, 1e-9], [0.0, 0.0, 1e-9], rule) == [2]
    assert select_slots([0.0, 0.0], [0.0, 0.0], rule) == [0]


def slow_filter(scaled: list[float], sampling: Sampling) -> list[float]:
    """Keep tokens one at a time, best first, until top-k is full or the mass before the next one reaches top-p."""
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    order = order[: sampling.top_k or None]
    weights = [math.exp(scaled[i] - scaled[order[0]]) for i in order]
    kept, mass = set(), 0.0
    for token, weight in zip(order, weights, strict=True):
        if sampling.top_p < 1 and mass >= sampling.top_p - 1e-15:
            break
        kept.add(token)
        mass += weight / sum(weights)
    return [z if i in kept else -math.inf for i, z in enumerate(scaled)]


@given(
    st.lists(st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.25, 2.0]), min_size=VOCAB, max_size=VOCAB), min_size=1),
    st.integers(0, VOCAB + 2),
    st.sampled_from([0.05, 0.31, 0.62, 0.93, 1.0]),
)
def test_filters_match_the_slow_form_ties_kept_by_token_id(rows: list[list[float]], top_k: int, top_p: float) -> None:
    sampling = Sampling(1.0, top_k, top_p)
    filtered = filter_logits(torch.tensor(rows, dtype=torch.float64), sampling)
    assert filtered.tolist() == [slow_filter(row, sampling) for row in rows]


def test_top_p_reads_probabilities_after_temperature_and_top_k() -> None:
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64))
    kept = lambda **fields: int(torch.isfinite(filter_logits(logits, Sampling(1.0, **fields))).sum())  # noqa: E731
    assert kept(top_p=0.55) == 2
    assert kept(top_k=2, top_p=0.55) == 1
    assert kept(top_p=0.75) == 3
    assert kept(top_k=3, top_p=0.75) == 2
    noise = torch.tensor([[0.0, 0.0, 0.0, 50.0]], dtype=torch.float64)
    assert int(draw(logits, noise, Sampling(0.05, top_p=0.9999), NONE)[0]) == 1 - 1
    assert int(draw(logits, noise, Sampling(5.0, top_p=0.9999), NONE)[0]) == 3


def test_top_p_ties_at_the_edge_keep_the_lowest_ids() -> None:
    kept = torch.isfinite(filter_logits(torch.zeros(1, 4, dtype=torch.float64), Sampling(1.0, top_p=0.5)))
    assert kept.tolist() == [[True, True, False, False]]
    kept = torch.isfinite(filter_logits(torch.zeros(1, 4, dtype=torch.float64), Sampling(1.0, top_k=3)))
    assert kept.tolist() == [[True, True, True, False]]


@given(fine, some_ids, st.integers(0, 2**32), st.sampled_from([0.3, 1.0, 1.5]), st.integers(0, 4))
def test_a_draw_maximises_the_perturbed_filtered_law(
    logits: list[float], forbidden: set[int], seed: int, temperature: float, top_k: int
) -> None:
    sampling = Sampling(temperature, top_k)
    noise = gumbel_row(seed, 3, VOCAB)
    token, logprob = draw(
        torch.tensor([logits]), torch.from_numpy(noise)[None], sampling, torch.tensor(sorted(forbidden)).long()
    )
    scaled = [-math.inf if i in forbidden else float(np.float32(z)) / temperature for i, z in enumerate(logits)]
    kept = slow_filter(scaled, sampling)
    total = max(kept) + math.log(sum(math.exp(z - max(kept)) for z in kept))
    perturbed = [z - total + noise[i] for i, z in enumerate(kept)]
    assert int(token) == int(np.argmax(perturbed))
    assert int(token) not in forbidden
    assert float(logprob) == pytest.approx(kept[int(token)] - total, abs=1e-9)
    everything = draw_from_all(
        torch.tensor([logits]), torch.from_numpy(noise)[None], temperature, torch.tensor(sorted(forbidden)).long()
    )
    assert int(everything) == int(np.argmax([z + noise[i] for i, z in enumerate(scaled)]))


def chi_square(counts: Tensor, law: Tensor) -> float:
    expected = law * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.5, 0, 1.0), (1.5, 4, 1.0), (1.0, 0, 0.8)]
)
def test_draws_over_positions_follow_the_filtered_law(temperature: float, top_k: int, top_p: float) -> None:
    logits = torch.log(torch.tensor([0.35, 0.25, 0.2, 0.1, 0.06, 0.04], dtype=torch.float64))
    sampling, count = Sampling(temperature, top_k, top_p), 6000
    noise = torch.from_numpy(np.stack([gumbel_row(11, position, 6) for position in range(count)]))
    tokens, _ = draw(logits.expand(count, -1), noise, sampling, torch.tensor([2]))
    law = filter_logits((logits / temperature).index_fill(0, torch.tensor([2]), -torch.inf)[None], sampling)[0]
    law = law.softmax(-1)
    counts = torch.bincount(tokens, minlength=6).double()
    assert counts[law == 0].sum() == 0
    kept = law > 0
    assert chi_square(counts[kept], law[kept]) < 24  # 99.9% of chi-square with 4 degrees of freedom is 18.5


BAD_RULES: list[dict[str, Any]] = [
    {"ranking": "luck"},
    {"resolution": "float8"},
    {"resolution": 0.7},
    {"resolution": 0.0},
    {"selection": "all"},
    {"quota": 0},
    {"threshold": 1.0},
    {"colour": "red"},
    {"ranking": "margin", "resolution": 0.01},
    {"quota": ()},
    {"quota": (2, 0), "selection": "quota"},
    {"quota": (2, 1), "selection": "threshold"},
    {"temperature": 0.0},
    {"opening": "last"},
]


@pytest.mark.parametrize("fields", BAD_RULES)
def test_a_rule_that_means_nothing_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(SpotError, match="rule"):
        CommitRule.from_dict(fields)


@pytest.mark.parametrize("fields", [{"temperature": -1.0}, {"temperature": math.nan}, {"top_k": -1}, {"top_p": 0.0}])
def test_sampling_that_means_nothing_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(SpotError, match=next(iter(fields))):
        Sampling(**fields)


@pytest.mark.parametrize(
    "rule",
    [
        CommitRule(),
        CommitRule("margin", "bfloat16", "quota", 3),
        CommitRule(resolution=0.01),
        CommitRule(selection="quota", quota=(2, 1), inclusive=True, temperature=0.5, opening="first"),
    ],
)
def test_a_rule_survives_being_written_down(rule: CommitRule) -> None:
    assert CommitRule.from_dict(json.loads(json.dumps(rule.to_dict()))) == rule


def test_fields_that_only_reproduce_published_decoders_are_written_only_where_they_are_used() -> None:
    assert list(CommitRule().to_dict()) == ["ranking", "resolution", "selection", "quota", "threshold"]


def test_a_quota_by_step_is_counted_from_the_commits_since_the_block_opened() -> None:
    rule = CommitRule(selection="quota", quota=(3, 2, 1))
    assert [rule.quota_after(committed) for committed in (0, 3, 5, 6, 7)] == [3, 2, 1, 1, 1]
    assert select_slots([0.1, 0.4, 0.3, 0.2], [0.0] * 4, rule, committed=3) == [1, 2]


def test_a_threshold_is_strict_unless_inclusive_and_an_opening_may_commit_the_first_slot_alone() -> None:
    at_half = CommitRule(selection="threshold", threshold=0.5)
    assert select_slots([0.0, 1.0, -1.0], [0.0, 1.0, -1.0], at_half) == [1]
    assert select_slots([0.0, 1.0, -1.0], [0.0, 1.0, -1.0], replace(at_half, inclusive=True)) == [1, 0]
    first = replace(at_half, opening="first")
    assert select_slots([0.0, 1.0, -1.0], [0.0, 1.0, -1.0], first) == [0]
    assert select_slots([0.0, 1.0, -1.0], [0.0, 1.0, -1.0], first, committed=1) == [1]


@pytest.mark.parametrize(
    "rule", [CommitRule(selection="quota", quota=(2, 1)), CommitRule(temperature=0.5), CommitRule(opening="first")]
)
def test_a_rule_of_published_decoders_serves_no_drafter(rule: CommitRule) -> None:
    with pytest.raises(SpotError, match="without a drafter"):
        rule.check_draftable()
    CommitRule("entropy", "bfloat16", "threshold", 2, 0.5, inclusive=True).check_draftable()


@given(st.integers(1, 64), st.integers(1, 64))
def test_published_schedules_fill_the_block(slots: int, steps: int) -> None:
    assert sum(linear_quotas(slots, steps)) == slots
    if steps <= slots:
        even = even_quotas(slots, steps)
        assert (sum(even), len(even), max(even) - min(even) <= 1) == (slots, steps, True)
        assert list(even) == sorted(even, reverse=True)
