"""Agreement of stale and fresh draws: closed forms against draws, the coupling's bound, live and recorded pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fake_dlm import FakeTarget
from fake_trajectories import fake_trajectories
from hypothesis import given
from hypothesis import strategies as st
from live_laws import pairs

from spot_infer.requests import Request
from spot_infer.transition import Sampling, pick
from spot_train.compare.coupling import (
    agreement,
    coupled_agreement,
    coupling_bound,
    live_pairs,
    recorded_pairs,
    total_variation,
)
from spot_train.replay.replay import steps_of


@st.composite
def two_laws(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A law and a neighbour of it, some tokens impossible under one of them."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    vocab, concentration = draw(st.integers(2, 30)), draw(st.sampled_from([0.05, 0.5, 5.0]))
    p = random.dirichlet(np.full(vocab, concentration))
    q = random.random() * p + random.random() * random.dirichlet(np.full(vocab, concentration))
    q[random.random(vocab) < 0.2] = 0.0
    return p, q / q.sum() if q.sum() > 0 else p


def drawn_agreement(p: np.ndarray, q: np.ndarray, draws: int, seed: int) -> float:
    """How often the decoder's own draw agrees under one Gumbel row."""
    noise = torch.from_numpy(np.random.default_rng(seed).gumbel(size=(draws, len(p))))
    with np.errstate(divide="ignore"):
        one, other = (pick(torch.from_numpy(np.log(law)).expand(draws, -1), noise) for law in (p, q))
    return float((one == other).double().mean())


@given(two_laws())
def test_coupled_agreement_lies_between_its_bound_and_one_minus_total_variation(laws) -> None:  # type: ignore[no-untyped-def]
    p, q = laws
    delta = total_variation(p, q)
    agreed = coupled_agreement(p, q)
    assert coupling_bound(delta) - 1e-9 <= agreed <= 1 - delta + 1e-9
    assert agreed == pytest.approx(coupled_agreement(q, p))
    drawn = drawn_agreement(p, q, 4000, 0)
    assert abs(drawn - agreed) < 5 * np.sqrt(agreed * (1 - agreed) / 4000) + 1e-3


def test_agreement_of_equal_and_of_disjoint_laws() -> None:
    p, q = np.array([0.5, 0.5, 0.0, 0.0]), np.array([0.0, 0.0, 0.5, 0.5])
    assert coupled_agreement(p, p) == pytest.approx(1) and coupled_agreement(p, q) == 0
    assert (coupling_bound(np.float64(0.0)), coupling_bound(np.float64(1.0))) == (1, 0)
    assert agreement([]).means() == {}


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_live_pairs_agree_at_least_as_often_as_the_bound_says(temperature: float) -> None:
    """The states with the most different laws by the decoder's own draws, all states in closed form."""
    found = agreement(pairs(temperature))
    assert len(found.delta) > 80 and found.delta.max() > 0.5
    assert (found.coupled >= found.bound - 1e-9).all() and (found.coupled <= 1 - found.delta + 1e-9).all()
    for index in np.argsort(-found.delta)[:3]:
        pair = pairs(temperature)[index]
        drawn = drawn_agreement(pair.stale, pair.fresh, 4000, int(index))
        assert drawn == pytest.approx(found.coupled[index], abs=5 * 0.5 / np.sqrt(4000))
        assert drawn > found.bound[index] - 5 * 0.5 / np.sqrt(4000)
    assert (found.rejection <= 1 + 1e-9).all() and found.rejection.min() >= 0


def test_coupling_stays_alive_where_independent_draws_die() -> None:
    means = {temperature: agreement(pairs(temperature, age=1)).means() for temperature in (1.0, 2.5)}
    assert means[2.5]["coupled"] > means[2.5]["uncoupled"] + 0.1 > means[2.5]["independent"] + 0.2
    assert means[1.0]["coupled"] > 0.98 < means[1.0]["uncoupled"]


def test_recorded_pairs_are_the_live_ones_cut_to_the_table() -> None:
    target = FakeTarget(seed=0, block_length=8, vocab_size=40)
    sampling = Sampling(1.3, top_k=20)
    trajectory = fake_trajectories(count=3)[2]
    request = Request(tuple(2 + (2 * k) % 30 for k in range(7)), 2)
    # half a level moves a log probability x by sqrt(20 |x|) / 254, and so a probability at this temperature by 0.006
    live = list(live_pairs(target, request, steps_of(trajectory), sampling))
    recorded = list(recorded_pairs(trajectory, sampling))
    assert len(live) == len(recorded) > 10
    for one, other in zip(live, recorded, strict=True):
        width = len(other.stale)
        np.testing.assert_allclose(one.stale[:width], other.stale, atol=6e-3)
        np.testing.assert_allclose(one.fresh[:width], other.fresh, atol=6e-3)
        np.testing.assert_allclose(one.proposal[:width], other.proposal, atol=6e-3)
