"""First divergences: found where they are, with the gap that the recorded tables show."""

from __future__ import annotations

import numpy as np
import pytest
from fake_dlm import FakeTarget

from spot_infer.blocks import Commit, Step
from spot_infer.decode import decode
from spot_infer.divergence import first_divergence
from spot_infer.noise import GumbelNoise
from spot_infer.requests import DecodeSettings, Request
from spot_infer.table import StaleTable
from spot_infer.transition import CommitRule, Sampling

REQUEST = Request((3, 4, 5, 6, 7), seed=11)


def recorded(target: FakeTarget, settings: DecodeSettings) -> tuple[list[Step], list[StaleTable]]:
    steps: list[Step] = []
    tables: list[StaleTable] = []
    for round_ in decode(target, [REQUEST], settings, record=True):
        steps += round_.steps
        tables += round_.tables
    return steps, tables


def only(step: Step) -> Commit:
    (commit,) = step
    return commit


def test_equal_runs_do_not_diverge():
    target = FakeTarget()
    steps, _ = recorded(target, DecodeSettings(max_new_tokens=9))
    assert first_divergence(target, REQUEST, steps, list(steps), CommitRule(), Sampling()) is None


@pytest.mark.parametrize("step", [0, 1, 5])
def test_another_slot_is_an_order_divergence_whose_gap_is_the_difference_of_log_odds(step):
    target = FakeTarget(stop_rate=0.0)
    steps, tables = recorded(target, DecodeSettings(max_new_tokens=11, ignore_stop=True))
    table = tables[step]
    own = only(steps[step])
    start = own.position // target.block_length * target.block_length
    slots = table.slots.tolist()
    rival = next(index for index, slot in enumerate(slots) if start + slot != own.position)
    other = [*steps[:step], frozenset((Commit(start + slots[rival], int(table.top_token[rival, 0])),))]
    found = first_divergence(target, REQUEST, steps, other, CommitRule(), Sampling())
    assert found is not None and (found.step, found.kind) == (step, "order")
    gap = table.log_odds[slots.index(own.position - start)] - table.log_odds[rival]
    assert found.gap == pytest.approx(abs(float(gap)), abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_another_token_is_a_token_divergence_whose_gap_is_the_difference_of_perturbed_logits(temperature):
    target = FakeTarget(stop_rate=0.0)
    sampling = Sampling(temperature)
    steps, tables = recorded(target, DecodeSettings(max_new_tokens=11, ignore_stop=True, sampling=sampling))
    own, table = only(steps[4]), tables[4]
    index = table.slots.tolist().index(own.position % target.block_length)
    rival = next(int(token) for token in table.top_token[index] if token not in (own.token, -1))
    logprob = {int(t): float(p) for t, p in zip(table.top_token[index], table.top_logprob[index], strict=True)}
    other = [*steps[:4], frozenset((Commit(own.position, rival),))]
    found = first_divergence(target, REQUEST, steps, other, CommitRule(), sampling)
    gap = logprob[own.token] - logprob[rival]
    if temperature:
        noise = GumbelNoise(REQUEST.seed, target.vocab_size).rows([own.position])[0]
        gap = gap / temperature + float(noise[own.token] - noise[rival])
    assert found is not None and (found.step, found.kind) == (4, "token")
    half_levels = sum(np.sqrt(20 * abs(logprob[one])) for one in (own.token, rival)) / 254
    assert found.gap == pytest.approx(abs(gap), abs=half_levels / (temperature or 1) + 1e-3)


def test_a_run_that_ends_early_diverges_at_its_end():
    target = FakeTarget(stop_rate=0.0)
    steps, _ = recorded(target, DecodeSettings(max_new_tokens=9, ignore_stop=True))
    found = first_divergence(target, REQUEST, steps, steps[:3], CommitRule(), Sampling())
    assert found is not None and found.step == 3 and np.isinf(found.gap)
