"""Sampling at T > 0 follows the enumerated law of a two-slot target, with and without a drafter (paper equation 4)."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from fake_dlm import FakeTarget
from odd_drafters import HugeDrafter
from slow_decoder import fake_full_logits

from spot_infer.blocks import Commit, Step
from spot_infer.decode import decode
from spot_infer.graph import Drafter
from spot_infer.requests import DecodeSettings, Request
from spot_infer.transition import Sampling, confidence, filter_logits

PROMPT = (3, 1)
SAMPLES = 1500
TARGET = FakeTarget(seed=23, block_length=2, vocab_size=5, stop_ids=(), strength=1.5)
MASK = TARGET.spec.mask_id


def enumerated(sampling: Sampling) -> dict[tuple[Step, ...], float]:
    """Probability of every trajectory of the block at [2, 4), from the definition."""
    full_logits = fake_full_logits(TARGET)
    forbidden = torch.tensor([MASK])

    def law(tokens: list[int]) -> tuple[int, list[float]]:
        masked = [p for p in (2, 3) if tokens[p] == MASK]
        logits = full_logits(tokens)[masked]
        chosen = int(confidence(logits, forbidden)[0].argmax())
        scaled = logits[chosen : chosen + 1].index_fill(-1, forbidden, -torch.inf) / sampling.temperature
        return masked[chosen], filter_logits(scaled, sampling).softmax(-1)[0].tolist()

    outcomes: dict[tuple[Step, ...], float] = {}
    first, first_law = law([*PROMPT, MASK, MASK])
    for a in range(MASK):
        tokens = [*PROMPT, MASK, MASK]
        tokens[first] = a
        second, second_law = law(tokens)
        for b in range(MASK):
            steps = (frozenset([Commit(first, a)]), frozenset([Commit(second, b)]))
            outcomes[steps] = first_law[a] * second_law[b]
    return outcomes


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(1.5, top_k=3, top_p=0.95)])
@pytest.mark.parametrize("drafter", [None, HugeDrafter(merged=True)], ids=["draft-free", "drafted"])
def test_trajectories_follow_the_enumerated_law(sampling: Sampling, drafter: Drafter | None) -> None:
    expected = enumerated(sampling)
    assert sum(expected.values()) == pytest.approx(1)
    settings = DecodeSettings(max_new_tokens=2, sampling=sampling, budget=4 if drafter else 0, batch_size=200)
    steps: dict[int, tuple[Step, ...]] = dict.fromkeys(range(SAMPLES), ())
    for round_ in decode(TARGET, [Request(PROMPT, seed) for seed in steps], settings, drafter):
        steps[round_.request] += round_.steps
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
    statistic = float(((seen - mean) ** 2 / mean).sum())
    assert statistic < freedom + 4.0 * np.sqrt(2 * freedom)


def test_the_target_makes_the_order_and_the_second_law_depend_on_the_first_token() -> None:
    expected = enumerated(Sampling(1.0))
    laws = [[expected[steps] for steps in expected if next(iter(steps[0])).token == a] for a in range(MASK)]
    for a, b in product(range(MASK), range(MASK)):
        if a != b:
            assert not np.allclose(np.array(laws[a]) / sum(laws[a]), np.array(laws[b]) / sum(laws[b]), atol=0.02)
