"""Stale table and hypothetical state -> inputs of the order model (paper section 4.2, appendix D.1).

Version 1 has 74 inputs a table slot: 72 that depend on the table alone, so they are computed once a table, and 2 path
features (slot already taken, depth) that change with every drafted state. Version 2 adds 15 that depend on the root and
on the table before it (`changes.py`). One ragged function serves live tables and whole trajectories. Knows nothing
about tokens' meaning, models or training.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from spot_infer.changes import CHANGE_FEATURES, change_columns
from spot_infer.logprob_levels import LEAST_LOGPROB
from spot_infer.table import TOP_K, Tables
from spot_infer.transition import CommitRule, ranking_values

FeatureKind = Literal["v1", "paper", "v2"]
FEATURE_VERSIONS: dict[FeatureKind, int] = {"v1": 1, "paper": 1, "v2": 2}
TABLE_FEATURES = 2 * TOP_K + 8
PATH_FEATURES = 2
RANK_COLUMN = 2 * TOP_K + 1
LOG_ODDS_COLUMN = 2 * TOP_K
MOST_LOG_ODDS = 32.0
LOG_ODDS_SCALE = 16.0

Floats = NDArray[np.float32]


def table_features(kind: FeatureKind) -> int:
    """Columns of `ragged_features`."""
    return TABLE_FEATURES + (CHANGE_FEATURES if kind == "v2" else 0)


def tables_read(kind: FeatureKind) -> int:
    """How many of a block's newest tables the features are made of."""
    return 2 if kind == "v2" else 1


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
    tables: Tables, before: Tables, filled: NDArray[np.bool_], kind: FeatureKind, rule: CommitRule
) -> Floats:
    """float32 [M, table_features(kind)] for tables laid end to end, with the ones before them in their blocks (empty
    where there is none) and filled bool [T, L], the slots that are filled in the roots.

    Version 1, which reads neither, has 72 columns: 32 probabilities, 32 log-probabilities / 20, then log-odds / 16,
    rank / L, gap to the largest log-odds / 16, p1 - p2, entropy of the top-32 / ln 32, mass beyond them, slot / L,
    table slots / L. `paper` takes the first three of the eight from float32 probabilities, which saturate, as the
    paper's inputs do. Version 2 appends `changes.change_columns`.
    """
    block_length = filled.shape[1]
    slots, starts = tables.slot, tables.start
    logprob = tables.top_logprob.astype(np.float32)
    probability = np.exp(logprob)
    clamped = np.maximum(logprob, np.float32(LEAST_LOGPROB))
    lengths = np.diff(starts)
    if kind == "paper":
        confidence = torch.sigmoid(torch.from_numpy(tables.log_odds.astype(np.float64))).float().numpy()
        ranking = confidence.astype(np.float64)
    else:
        confidence = _bounded(tables.log_odds) / np.float32(LOG_ODDS_SCALE)
        ranking = stale_ranking(tables.top_logprob, tables.log_odds, rule)
    holding = lengths > 0
    largest = np.zeros(len(lengths), dtype=np.float32)
    if len(confidence):
        largest[holding] = np.maximum.reduceat(confidence, starts[:-1][holding])
    rank = ragged_ranks(ranking, slots, starts)
    statistics = (
        confidence,
        rank.astype(np.float32) / np.float32(block_length),
        np.repeat(largest, lengths) - confidence,
        probability[:, 0] - probability[:, 1],
        -(probability * clamped).sum(axis=1) / np.float32(np.log(TOP_K)),
        np.maximum(np.float32(1) - probability.sum(axis=1), np.float32(0)),
        slots.astype(np.float32) / np.float32(block_length),
        np.repeat(lengths, lengths).astype(np.float32) / np.float32(block_length),
    )
    columns = [probability, clamped / np.float32(-LEAST_LOGPROB), np.stack(statistics, axis=1)]
    if kind == "v2":
        rank_before = ragged_ranks(stale_ranking(before.top_logprob, before.log_odds, rule), before.slot, before.start)
        now, old = (one._replace(log_odds=_bounded(one.log_odds)) for one in (tables, before))
        columns.append(change_columns(now, old, filled, rank, rank_before))
    return np.concatenate(columns, axis=1).astype(np.float32, copy=False)


def _bounded(log_odds: NDArray[np.float32]) -> Floats:
    return np.clip(log_odds, -MOST_LOG_ODDS, MOST_LOG_ODDS).astype(np.float32)


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
