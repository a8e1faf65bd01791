"""Sampling at T > 0 follows the enumerated law of a small block, draft-free and drafted, under every exact verifier
(paper equation 4, propositions 2 and 3), and greedy match does not."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import torch
from fake_dlm import FakeTarget
from odd_drafters import HugeDrafter
from slow_decoder import fake_full_logits

from spot_infer.blocks import Commit, Step
from spot_infer.decode import decode
from spot_infer.drafters import ChainDrafter, OddsTreeDrafter
from spot_infer.graph import Drafter
from spot_infer.requests import DecodeSettings, Request, Verifier
from spot_infer.transition import Sampling, confidence, filter_logits
from spot_train.compare.coupling import agreement, live_pairs

PROMPT = (2, 1, 2)
SAMPLES = 1500
TWO_SLOTS = FakeTarget(seed=23, block_length=2, vocab_size=5, stop_ids=(), strength=1.5)
THREE_SLOTS = FakeTarget(seed=28, block_length=3, vocab_size=4, stop_ids=(), strength=1.0)
SAMPLINGS = [Sampling(1.0), Sampling(1.5, top_k=3, top_p=0.95)]


@cache
def enumerated(target: int, sampling: Sampling, blocks: int = 1) -> dict[tuple[Step, ...], float]:
    """Probability of every trajectory of the `blocks` after `target` prompt tokens (its block length), by
    definition."""
    fake = {2: TWO_SLOTS, 3: THREE_SLOTS}[target]
    full_logits = fake_full_logits(fake)
    mask = fake.spec.mask_id
    forbidden = torch.tensor([mask])
    outcomes: dict[tuple[Step, ...], float] = {}

    def walk(tokens: list[int], steps: tuple[Step, ...], probability: float) -> None:
        masked = [position for position, token in enumerate(tokens) if token == mask]
        if not masked and len(tokens) <= blocks * target:
            walk([*tokens, *[mask] * target], steps, probability)
            return
        if not masked:
            outcomes[steps] = probability
            return
        logits = full_logits(tokens)[masked]
        chosen = int(confidence(logits, forbidden)[0].argmax())
        scaled = logits[chosen : chosen + 1].index_fill(-1, forbidden, -torch.inf) / sampling.temperature
        law = filter_logits(scaled, sampling).softmax(-1)[0].tolist()
        for token in range(mask):
            after = list(tokens)
            after[masked[chosen]] = token
            walk(after, (*steps, frozenset([Commit(masked[chosen], token)])), probability * law[token])

    walk([*PROMPT[:target], *[mask] * target], (), 1.0)
    return outcomes


def excess(block: int, settings: DecodeSettings, drafter: Drafter | None) -> tuple[float, int]:
    """How many standard deviations the chi-square statistic lies above its mean, and the drafts accepted."""
    fake = {2: TWO_SLOTS, 3: THREE_SLOTS}[block]
    expected = enumerated(block, settings.sampling, settings.max_new_tokens // block)
    assert sum(expected.values()) == pytest.approx(1)
    steps: dict[int, tuple[Step, ...]] = dict.fromkeys(range(SAMPLES), ())
    accepted = 0
    for round_ in decode(fake, [Request(PROMPT[:block], seed) for seed in steps], settings, drafter):
        steps[round_.request] += round_.steps
        accepted += round_.result.stats.accepted if round_.result else 0
    counts = Counter(steps.values())
    possible = {steps: p for steps, p in expected.items() if p > 0}
    assert set(counts) <= set(possible)
    seen = np.array([counts[steps] for steps in possible])
    mean = SAMPLES * np.array(list(possible.values()))
    rare = mean < 5
    if rare.any():
        seen, mean = np.append(seen[~rare], seen[rare].sum()), np.append(mean[~rare], mean[rare].sum())
    freedom = len(mean) - 1
    assert freedom >= 7
    return float((((seen - mean) ** 2 / mean).sum() - freedom) / np.sqrt(2 * freedom)), accepted


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafter", [None, HugeDrafter(merged=True)], ids=["draft-free", "drafted"])
def test_trajectories_follow_the_enumerated_law(sampling: Sampling, drafter: Drafter | None) -> None:
    settings = DecodeSettings(max_new_tokens=2, sampling=sampling, budget=4 if drafter else 0, batch_size=200)
    assert excess(2, settings, drafter)[0] < 4


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("verifier", ["coupled", "uncoupled", "rejection", "greedy"])
def test_only_greedy_match_leaves_the_law(verifier: Verifier, sampling: Sampling) -> None:
    """Three slots: the first commits draft-free, one is drafted from its table, the last is the target's own."""
    settings = DecodeSettings(max_new_tokens=3, sampling=sampling, budget=1, batch_size=200, verifier=verifier)
    deviations, accepted = excess(3, settings, ChainDrafter())
    assert accepted == SAMPLES if verifier == "greedy" else accepted > SAMPLES / 4
    if verifier == "greedy":
        assert deviations > 20
    else:
        assert deviations < 4
    if verifier == "rejection":
        rate = expected_acceptance(sampling)
        assert abs(accepted / SAMPLES - rate) < 4 * np.sqrt(rate * (1 - rate) / SAMPLES)


def test_rejection_keeps_the_law_where_drafts_run_on_into_the_next_block() -> None:
    settings = DecodeSettings(6, sampling=Sampling(1.0), budget=6, batch_size=200, verifier="rejection")
    with patch("spot_infer.ahead.LEAST_SURE", 0.0), patch("spot_infer.ahead.WORTH", 1e9):
        (deviations, further), (_, inside) = (
            excess(3, settings, OddsTreeDrafter(chain=True, ahead=ahead)) for ahead in (True, False)
        )
    assert deviations < 4
    assert further > inside


def expected_acceptance(sampling: Sampling) -> float:
    """Mean of 1 - TV at the drafted link; its slot is always the target's, as greedy match accepts everywhere."""
    request = Request(PROMPT)
    return sum(
        probability * float(agreement([next(live_pairs(THREE_SLOTS, request, steps, sampling))]).rejection[0])
        for steps, probability in enumerated(3, sampling).items()
    )


def test_the_target_makes_the_order_and_the_second_law_depend_on_the_first_token() -> None:
    expected = enumerated(2, Sampling(1.0))
    tokens = range(TWO_SLOTS.spec.mask_id)
    laws = [[expected[steps] for steps in expected if next(iter(steps[0])).token == a] for a in tokens]
    for a, b in product(tokens, tokens):
        if a != b:
            assert not np.allclose(np.array(laws[a]) / sum(laws[a]), np.array(laws[b]) / sum(laws[b]), atol=0.02)
