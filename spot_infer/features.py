"""Stale table and hypothetical state -> inputs of the order model (paper section 4.2, appendix D.1). Feature version 1.

74 inputs a table slot: 72 that depend on the table alone, so they are computed once a table, and 2 path features (slot
already taken, depth) that change with every drafted state. One ragged function serves a single live table and whole
trajectories. Knows nothing about tokens' meaning, models or training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from spot_infer.table import TOP_K, StaleTable
from spot_infer.transition import CommitRule, ranking_values

FEATURE_VERSION = 1
FeatureKind = Literal["v1", "paper"]
TABLE_FEATURES = 2 * TOP_K + 8
PATH_FEATURES = 2
RANK_COLUMN = 2 * TOP_K + 1
LOG_ODDS_COLUMN = 2 * TOP_K
LEAST_LOGPROB = -20.0
MOST_LOG_ODDS = 32.0
LOG_ODDS_SCALE = 16.0

Floats = NDArray[np.float32]


def stale_ranking(top_logprob: NDArray[Any], log_odds: NDArray[Any], rule: CommitRule) -> NDArray[np.float64]:
    """The value [M] that `rule` ranks stale slots by, largest first.

    Margin and entropy rules see only the table's top-32 [M, 32], renormalised.
    """
    logits = None if rule.ranking == "probability" else torch.from_numpy(top_logprob.astype(np.float64))
    values = ranking_values(torch.from_numpy(np.ascontiguousarray(log_odds, dtype=np.float32)), rule, logits)
    return values.double().numpy()


def ragged_ranks(values: NDArray[Any], slots: NDArray[Any], starts: NDArray[Any]) -> NDArray[np.int64]:
    """Rank [M] of every row inside its own table (0 commits first), sorted by (-value, slot).

    Table t is rows starts[t]..starts[t + 1] of values [M] and slots [M].
    """
    tables = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    order = np.lexsort((slots, -values, tables))
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.arange(len(values)) - np.repeat(starts[:-1], np.diff(starts))
    return ranks


def ragged_features(
    top_logprob: NDArray[np.float16],
    log_odds: NDArray[np.float32],
    slots: NDArray[np.uint8],
    starts: NDArray[Any],
    block_length: int,
    kind: FeatureKind,
    rule: CommitRule,
) -> Floats:
    """float32 [M, 72] for tables laid end to end: table t is rows starts[t]..starts[t + 1] of the [M, ...] arrays.

    Columns: 32 probabilities, 32 log-probabilities / 20, then log-odds / 16, rank / L, gap to the largest log-odds
    / 16, p1 - p2, entropy of the top-32 / ln 32, mass beyond them, slot / L, table slots / L. `paper` takes the first
    three of the eight from float32 probabilities, which saturate, as the paper's inputs do.
    """
    logprob = top_logprob.astype(np.float32)
    probability = np.exp(logprob)
    clamped = np.maximum(logprob, np.float32(LEAST_LOGPROB))
    lengths = np.diff(starts)
    if kind == "v1":
        confidence = np.clip(log_odds, -MOST_LOG_ODDS, MOST_LOG_ODDS).astype(np.float32) / np.float32(LOG_ODDS_SCALE)
        ranking = stale_ranking(top_logprob, log_odds, rule)
    else:
        confidence = torch.sigmoid(torch.from_numpy(log_odds.astype(np.float64))).float().numpy()
        ranking = confidence.astype(np.float64)
    filled = lengths > 0
    largest = np.zeros(len(lengths), dtype=np.float32)
    if len(confidence):
        largest[filled] = np.maximum.reduceat(confidence, starts[:-1][filled])
    statistics = (
        confidence,
        ragged_ranks(ranking, slots, starts).astype(np.float32) / np.float32(block_length),
        np.repeat(largest, lengths) - confidence,
        probability[:, 0] - probability[:, 1],
        -(probability * clamped).sum(axis=1) / np.float32(np.log(TOP_K)),
        np.maximum(np.float32(1) - probability.sum(axis=1), np.float32(0)),
        slots.astype(np.float32) / np.float32(block_length),
        np.repeat(lengths, lengths).astype(np.float32) / np.float32(block_length),
    )
    columns = [probability, clamped / np.float32(-LEAST_LOGPROB), np.stack(statistics, axis=1)]
    return np.concatenate(columns, axis=1).astype(np.float32, copy=False)


def table_features(table: StaleTable, block_length: int, kind: FeatureKind, rule: CommitRule) -> Floats:
    """float32 [m, 72] of one table; see `ragged_features`."""
    starts = np.array([0, len(table.slots)])
    return ragged_features(table.top_logprob, table.log_odds, table.slots, starts, block_length, kind, rule)


def many_table_features(
    tables: Sequence[StaleTable], block_length: int, kind: FeatureKind, rule: CommitRule
) -> tuple[Floats, NDArray[np.int64]]:
    """Features [M, 72] of several tables laid end to end, and where each starts [T + 1]."""
    starts = np.concatenate([[0], np.cumsum([len(table.slots) for table in tables])]).astype(np.int64)
    features = ragged_features(
        np.concatenate([table.top_logprob for table in tables]),
        np.concatenate([table.log_odds for table in tables]),
        np.concatenate([table.slots for table in tables]),
        starts,
        block_length,
        kind,
        rule,
    )
    return features, starts


def pad_rows(starts: NDArray[Any], tables: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Gather indices [Q, m] and validity [Q, m] that pad tables [Q] of a ragged array to the widest of them.

    Padding points at row 0 and is invalid.
    """
    first = starts[tables]
    lengths = starts[np.asarray(tables) + 1] - first
    offsets = np.arange(int(lengths.max(initial=0)))
    valid = offsets < lengths[:, None]
    return np.where(valid, first[:, None] + offsets, 0), valid


def path_features(taken: torch.Tensor, depth: torch.Tensor, d_max: int) -> torch.Tensor:
    """float32 [Q, m, 2]: the taken flag and depth / d_max (depths beyond d_max read as d_max).

    taken bool [Q, m]: filled in the root or committed on the hypothetical path; depth int [Q].
    """
    scaled = depth.clamp(max=d_max).to(torch.float32) / max(d_max, 1)
    return torch.stack([taken.to(torch.float32), scaled[:, None].expand(taken.shape)], dim=-1)
