"""Keyed Gumbel rows against a plain Python Philox, written from the published algorithm (Salmon et al., 2011)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spot_infer.noise import NOISE_VERSION, GumbelNoise, gumbel_of, gumbel_row, prompt_hash, request_seed

WORD = (1 << 64) - 1
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def philox4x64(counter: list[int], key: list[int], rounds: int = 10) -> list[int]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        low, high = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (high >> 64) ^ c1 ^ k0, high & WORD, (low >> 64) ^ c3 ^ k1, low & WORD
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return [c0, c1, c2, c3]


KNOWN_ANSWERS = [
    (
        [0] * 4,
        [0] * 2,
        "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b",
    ),
    (
        [WORD] * 4,
        [WORD] * 2,
        "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0",
    ),
    (
        [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89],
        [0x452821E638D01377, 0xBE5466CF34E90C6C],
        "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6",
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_the_oracle_gives_the_known_answers_of_random123(counter: list[int], key: list[int], expected: str) -> None:
    assert [f"{word:016x}" for word in philox4x64(counter, key)] == expected.split()


@given(st.integers(0, WORD), st.integers(0, 2**40), st.integers(1, 40))
def test_a_row_is_the_published_generator_keyed_by_seed_and_position(seed: int, position: int, size: int) -> None:
    words: list[int] = []
    for block in range(1, -(-size // 4) + 1):
        words += philox4x64([block, 0, 0, 0], [seed, position])
    expected = [-math.log(-math.log(((word >> 12) + 0.5) * 2.0**-52)) for word in words[:size]]
    np.testing.assert_allclose(gumbel_row(seed, position, size), expected, rtol=1e-12)


def test_vectors_of_this_noise_version() -> None:
    """A change of generator is a change of every seed's output: it needs a new version name."""
    assert NOISE_VERSION == "philox4x64-10/v1"
    zero = [-1.49545161157695, -0.3511371183614868, -0.7859067841514997, 0.5586754626449686]
    other = [-0.032582370421546165, 1.4099164162154671, 0.553622369605095, 1.223115108144126]
    np.testing.assert_allclose(gumbel_row(0, 0, 4), zero, rtol=1e-12)
    np.testing.assert_allclose(gumbel_row(12345, 678, 4), other, rtol=1e-12)


def test_the_extreme_words_give_finite_noise() -> None:
    lowest, highest = gumbel_of(np.array([0, WORD], dtype=np.uint64))
    assert -4 < lowest < 0
    assert 36 < highest < 37


def test_rows_do_not_depend_on_what_was_read_before_or_together() -> None:
    together = GumbelNoise(7, 11).rows([3, 4, 900])
    noise = GumbelNoise(7, 11, keep_rows=2)
    for _ in range(3):
        for index, position in enumerate([3, 4, 900]):
            assert torch.equal(noise.rows([position])[0], together[index])
    assert torch.equal(noise.rows([900, 3, 4]), together[[2, 0, 1]])


def test_a_longer_vocabulary_keeps_the_first_draws() -> None:
    np.testing.assert_array_equal(gumbel_row(5, 6, 100)[:37], gumbel_row(5, 6, 37))


def test_draws_follow_the_gumbel_law() -> None:
    draws = np.sort(np.concatenate([gumbel_row(1, position, 1000) for position in range(200)]))
    distance = np.abs(np.exp(-np.exp(-draws)) - (np.arange(len(draws)) + 0.5) / len(draws)).max()
    assert distance < 1.95 / math.sqrt(len(draws))


def test_neighbouring_seeds_and_positions_are_uncorrelated() -> None:
    rows = np.stack([gumbel_row(seed, position, 4000) for seed in (0, 1) for position in (0, 1)])
    off_diagonal = np.corrcoef(rows)[~np.eye(4, dtype=bool)]
    assert np.abs(off_diagonal).max() < 4.5 / math.sqrt(4000)


def test_request_seeds_separate_seed_prompt_and_sample() -> None:
    seeds = {request_seed(s, p, n) for s in (0, 1) for p in ([1, 2], [2, 1], [12]) for n in (0, 1)}
    assert len(seeds) == 12
    assert all(0 <= seed <= WORD for seed in seeds)
    assert request_seed(0, (1, 2)) == request_seed(0, [1, 2])
    assert prompt_hash([1, 2]) != prompt_hash([1, 2, 0])
