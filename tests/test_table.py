"""The stale table: what is stored, at which precision, and that packing of rows leaves no trace in it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spot_infer.logprob_levels import rounded, to_levels
from spot_infer.table import TOP_K, StaleTable, split_table, stale_table
from spot_infer.transition import confidence


def table_of(logits: torch.Tensor, forbidden: list[int], drawn: bool = False) -> StaleTable:
    ids = torch.tensor(forbidden, dtype=torch.int64)
    rows = torch.arange(len(logits))
    extra = (rows % logits.shape[-1], -rows.double() / 3) if drawn else None
    return stale_table(rows, logits, *confidence(logits, ids), ids, extra)


logit_rows = st.integers(0, 2**32).map(
    lambda seed: torch.from_numpy(np.random.default_rng(seed).normal(0, 4, (3, 40)).round(1))
)


@given(logit_rows, st.sets(st.integers(0, 39), max_size=12), st.sampled_from([torch.float32, torch.float64]))
def test_candidates_are_the_best_allowed_tokens_with_unfiltered_probabilities(
    logits: torch.Tensor, forbidden: set[int], dtype: torch.dtype
) -> None:
    table = table_of(logits.to(dtype), sorted(forbidden))
    for row, z in enumerate(logits.tolist()):
        allowed = sorted((t for t in range(40) if t not in forbidden), key=lambda t: (-z[t], t))
        count = min(TOP_K, len(allowed))
        tokens = table.top_token[row].tolist()
        assert tokens[0] == allowed[0]
        assert [z[t] for t in tokens[:count]] == [z[t] for t in allowed[:count]]
        assert tokens[count:] == [-1] * (TOP_K - count)
        assert len(set(tokens[:count])) == count
        total = math.log(sum(math.exp(v) for v in z))
        expected = np.sqrt(np.array([total - z[t] for t in tokens[:count]]).clip(0, 20) / 20) * 254
        found = np.sqrt(table.top_logprob[row, :count].astype(np.float64) / -20) * 254
        np.testing.assert_allclose(found, expected, rtol=0, atol=0.63)
        assert np.diff(found).min(initial=0) >= 0
        assert np.isneginf(table.top_logprob[row, count:]).all()


def test_every_float16_log_has_a_level_in_order_and_rounding_again_changes_nothing() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    every = np.sort(every[~np.isnan(every) & (every <= 0)])[::-1]
    levels = to_levels(every).astype(np.int64)
    assert np.diff(levels).min() == 0 and set(levels) == set(range(256))
    assert (levels[np.isneginf(every)] == 255).all() and (levels[np.isfinite(every)] < 255).all()
    np.testing.assert_array_equal(rounded(rounded(every)), rounded(every))
    shift = np.sqrt(every.clip(-20).astype(np.float64) / -20) * 254 - levels
    assert np.abs(shift[np.isfinite(every)]).max() < 0.501


def test_a_small_vocabulary_is_padded_with_no_token_and_no_mass() -> None:
    table = table_of(torch.tensor([[0.0, 1.0, 2.0]]), [2])
    assert table.top_token[0, :3].tolist() == [1, 0, -1]
    assert (table.top_token[0, 3:] == -1).all()
    assert np.isneginf(table.top_logprob[0, 2:]).all()


def test_dtypes_are_the_shards_and_log_odds_keep_what_float16_loses() -> None:
    logits = torch.zeros(3, 5, dtype=torch.float64)
    logits[:, 1] = torch.tensor([20.0, 20.001, 19.999])
    table = table_of(logits, [4], drawn=True)
    dtypes = [table.slots.dtype, table.top_logprob.dtype, table.top_token.dtype, table.log_odds.dtype]
    assert dtypes == [np.uint8, np.float16, np.int32, np.float32]
    assert table.drawn_token is not None
    assert table.drawn_logprob is not None
    assert (table.drawn_token.dtype, table.drawn_logprob.dtype) == (np.int32, np.float16)
    assert len(set(np.exp(table.top_logprob[:, 0]).tolist())) == 1
    assert np.argsort(table.log_odds).tolist() == [2, 0, 1]


@pytest.mark.parametrize("drawn", [False, True])
def test_splitting_gives_the_tables_of_the_parts(drawn: bool) -> None:
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 9)))
    counts = [2, 0, 3, 1]
    parts = split_table(table_of(logits, [3], drawn), counts)
    starts = np.cumsum([0, *counts])
    assert [len(part.slots) for part in parts] == counts
    for part, start, count in zip(parts, starts, counts, strict=False):
        alone = table_of(logits[start : start + count], [3])
        np.testing.assert_array_equal(part.slots, np.arange(start, start + count))
        np.testing.assert_array_equal(part.top_logprob, alone.top_logprob)
        np.testing.assert_array_equal(part.top_token, alone.top_token)
        np.testing.assert_array_equal(part.log_odds, alone.log_odds)
        assert (part.drawn_token is not None) is drawn
        if drawn:
            assert part.drawn_token.tolist() == [r % 9 for r in range(start, start + count)]
