"""Features: one ragged function for a live table and for whole trajectories, in full precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spot_infer.features import (
    LOG_ODDS_COLUMN,
    RANK_COLUMN,
    TABLE_FEATURES,
    FeatureKind,
    pad_rows,
    path_features,
    ragged_features,
    ragged_ranks,
    stale_ranking,
    table_features,
)
from spot_infer.table import TOP_K, StaleTable, lay_tables
from spot_infer.transition import CommitRule, ranking_values, select_slots

L = 16
RULES = [CommitRule(), CommitRule(resolution="bfloat16"), CommitRule(ranking="margin"), CommitRule(ranking="entropy")]


def make_table(seed: int, m: int, vocab_size: int = 50, spread: float = 14.0) -> StaleTable:
    generator = np.random.default_rng(seed)
    log_odds = np.sort(generator.uniform(-3, spread, m)).astype(np.float32)[generator.permutation(m)]
    best = -np.logaddexp(0.0, -log_odds.astype(np.float64))
    rest = np.sort(generator.uniform(0.2, 9.0, (m, TOP_K - 1)), axis=1)
    logprob = np.concatenate([best[:, None], best[:, None] - rest], axis=1)
    logprob[:, vocab_size:] = -np.inf
    slots = np.sort(generator.permutation(L)[:m])
    tokens = generator.integers(0, vocab_size, (m, TOP_K))
    return StaleTable(slots.astype(np.uint8), logprob.astype(np.float16), tokens.astype(np.int32), log_odds)


def features_of(
    table: StaleTable,
    kind: FeatureKind = "v1",
    rule: CommitRule = RULES[0],
    before: StaleTable | None = None,
    root: tuple[int, ...] = (),
) -> np.ndarray:
    """Of one table, with the slots of `root` filled beside those that it does not hold."""
    filled = np.ones((1, L), dtype=bool)
    filled[0, table.slots] = False
    filled[0, list(root)] = True
    return ragged_features(lay_tables([table]), lay_tables([before]), filled, kind, rule)


tables = st.builds(make_table, st.integers(0, 10_000), st.integers(1, L), st.integers(2, 60))


@given(
    st.lists(st.tuples(tables, st.none() | tables, st.integers(0, L - 1)), min_size=1, max_size=5),
    st.sampled_from(RULES),
    st.sampled_from(["v1", "paper", "v2"]),
)
def test_many_tables_at_once_equal_one_at_a_time(
    several: list[tuple[StaleTable, StaleTable | None, int]], rule: CommitRule, kind: FeatureKind
) -> None:
    laid = lay_tables([table for table, _, _ in several])
    filled = np.ones((len(several), L), dtype=bool)
    for index, (table, _, root) in enumerate(several):
        filled[index, table.slots] = False
        filled[index, root] = True
    together = ragged_features(laid, lay_tables([before for _, before, _ in several]), filled, kind, rule)
    assert together.dtype == np.float32
    assert together.shape == (laid.start[-1], table_features(kind))
    for index, (table, before, root) in enumerate(several):
        alone = features_of(table, kind, rule, before, (root,))
        np.testing.assert_array_equal(together[laid.start[index] : laid.start[index + 1]], alone)
    assert np.isfinite(together).all()
    assert abs(together[:, TABLE_FEATURES:]).max(initial=0) <= 2


@given(tables, st.sampled_from(RULES[:2]))
def test_the_rank_is_the_order_in_which_the_rule_would_commit(table: StaleTable, rule: CommitRule) -> None:
    features = features_of(table, "v1", rule)
    ranks = np.round(features[:, RANK_COLUMN] * L).astype(int)
    log_odds = torch.from_numpy(table.log_odds)
    chosen = select_slots(ranking_values(log_odds, rule).tolist(), table.log_odds.tolist(), rule)
    assert ranks[chosen[0]] == 0
    assert sorted(ranks.tolist()) == list(range(len(table.slots)))


def test_ties_rank_the_lowest_slot_first() -> None:
    ranks = ragged_ranks(np.array([1.0, 2.0, 2.0, 5.0, 5.0]), np.array([3, 9, 4, 7, 1]), np.array([0, 3, 5]))
    assert ranks.tolist() == [2, 1, 0, 1, 0]


def test_float32_log_odds_order_slots_that_the_papers_probabilities_tie() -> None:
    table = make_table(1, 4)
    sure = StaleTable(table.slots, table.top_logprob, table.top_token, np.array([20, 21, 23, 22], np.float32))
    full = features_of(sure, "v1", CommitRule())
    paper = features_of(sure, "paper", CommitRule())
    assert (full[:, RANK_COLUMN] * L).tolist() == [3, 2, 0, 1]
    assert (paper[:, RANK_COLUMN] * L).tolist() == [0, 1, 2, 3]
    assert len(set(full[:, LOG_ODDS_COLUMN].tolist())) == 4
    assert len(set(paper[:, LOG_ODDS_COLUMN].tolist())) == 1


def test_the_bfloat16_rule_ties_what_the_float32_rule_tells_apart() -> None:
    table = make_table(2, 2)
    near = StaleTable(table.slots, table.top_logprob, table.top_token, np.array([8.0, 8.5], np.float32))
    assert stale_ranking(near.top_logprob, near.log_odds, CommitRule()).argmax() == 1
    assert len(set(stale_ranking(near.top_logprob, near.log_odds, CommitRule(resolution="bfloat16")).tolist())) == 1


def test_statistics_by_hand() -> None:
    logprob = np.full((1, TOP_K), -np.inf, np.float16)
    logprob[0, :2] = np.log([0.5, 0.25])
    table = StaleTable(np.array([4], np.uint8), logprob, np.zeros((1, TOP_K), np.int32), np.array([0.0], np.float32))
    row = features_of(table, "v1", CommitRule())[0]
    entropy = (0.5 * np.log(2) + 0.25 * np.log(4)) / np.log(TOP_K)
    np.testing.assert_allclose(row[:3], [0.5, 0.25, 0], atol=1e-3)
    np.testing.assert_allclose(row[TOP_K : TOP_K + 3], [np.log(0.5) / 20, np.log(0.25) / 20, -1], atol=1e-3)
    np.testing.assert_allclose(row[2 * TOP_K :], [0, 0, 0, 0.25, entropy, 0.25, 4 / L, 1 / L], atol=1e-3)


def test_version_2_columns_by_hand() -> None:
    """Slots 2, 3, 5, 9 of 16 were masked in the table and 7 before it; the root has filled 3 since."""
    now = make_table(3, 4)
    slots, odds = np.array([2, 3, 5, 9], np.uint8), np.array([4.0, 9.0, 1.0, 4.5], np.float32)
    now = StaleTable(slots, now.top_logprob, now.top_token.copy(), odds)
    now.top_token[:, 0] = [5, 5, 6, 5]
    old = make_table(4, 5)
    odds = np.array([2.0, 9.5, 1.0, 3.0, 30.5], np.float32)
    old = StaleTable(np.array([2, 3, 5, 7, 9], np.uint8), old.top_logprob, old.top_token.copy(), odds)
    old.top_token[[0, 1, 2, 4], 0] = now.top_token[:, 0]
    old.top_token[2, 0] += 1
    columns = features_of(now, "v2", CommitRule(), old, (3,))[:, TABLE_FEATURES:].T
    expected = [
        [1, 1, 1, 1],
        [2 / 8, -0.5 / 8, 0, -2],
        [(3 - 2) / L, (1 - 0) / L, (4 - 3) / L, (0 - 1) / L],
        [0, 0, 1, 0],
        [0.5 / 8, 1, 3 / 8, 1],
        [3 / 8, 1, 1, 0.5 / 8],
        [1 / L, 2 / L, 1 / L, 1 / L],
        [1 / L, 1 / L, 1 / L, 1 / L],
        [0, 0, 0, 0],
        [1, 0, 0, 0],
        [-1 / L, 0, 2 / L, 6 / L],
        [-5 / L, -4 / L, -2 / L, 2 / L],
        [0, 1, 0, 0],
        [1, 0, 0, 0],
        [3 / L, 3 / L, 1 / L, 3 / L],
    ]
    np.testing.assert_allclose(columns, expected, atol=1e-6)
    first = features_of(now, "v2", CommitRule(), None, (3,))[:, TABLE_FEATURES:].T
    assert (first[[0, 1, 2, 3, 11]] == 0).all()
    kept = [*range(4, 11), 12, 13, 14]
    np.testing.assert_array_equal(first[kept], columns[kept])


def test_where_nothing_is_filled_only_the_blocks_left_edge_is_near() -> None:
    whole = make_table(5, L)
    left, right = features_of(whole, "v2")[:, TABLE_FEATURES + 6 : TABLE_FEATURES + 8].T * L
    assert left.tolist() == list(range(1, L + 1)) and right.tolist() == [L] * L


@pytest.mark.parametrize("wanted", [[0], [2, 0], [1, 1, 2]])
def test_padding_gathers_the_right_rows(wanted: list[int]) -> None:
    starts = np.array([0, 3, 4, 9])
    rows, valid = pad_rows(starts, np.array(wanted))
    for query, table in enumerate(wanted):
        assert rows[query][valid[query]].tolist() == list(range(starts[table], starts[table + 1]))


def test_path_features_read_depths_beyond_d_max_as_d_max() -> None:
    taken = torch.tensor([[True, False], [False, False]])
    paths = path_features(taken, torch.tensor([3, 40]), d_max=15)
    assert paths[0].tolist() == [[1.0, pytest.approx(0.2)], [0.0, pytest.approx(0.2)]]
    assert paths[1, :, 1].tolist() == [1.0, 1.0]
