"""The columns that feature version 2 adds: what changed since the table before, where the root is filled, and which
slots hold one token.

All are free and transferable: no token's meaning, no hidden states. Pure; knows nothing about models or training.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spot_infer.table import Tables

CHANGE_FEATURES = 15
MOST_CHANGE = 16.0
MOST_GAP = 8.0

Floats = NDArray[np.float32]


def change_columns(
    tables: Tables,
    before: Tables,
    filled: NDArray[np.bool_],
    rank: NDArray[np.int64],
    rank_before: NDArray[np.int64],
) -> Floats:
    """float32 [M, 15] for T tables, the ones before them in their blocks (empty where there is none), and filled bool
    [T, L], the slots that are filled in each table's root. rank [M], rank_before: places under the commit rule.

    Columns: whether there is a table before; change of the log-odds since, clamped to ±16, / 8; places risen / L;
    whether the argmax token changed; log-odds to the next open slot before and after it in the stale order, clamped to
    0..8, / 8; distance to the nearest filled slot on the left (the block's edge is one) and on the right (1 where none
    is), / L; whether the left and the right neighbour was filled since the table; signed distance to the nearest slot
    filled since the table, and to the nearest one filled between the table before and it, / L; whether the left and the
    right neighbour has the same argmax token; slots of the table with the same one, / L.
    """
    length = filled.shape[1]
    lengths = np.diff(tables.start)
    of = np.repeat(np.arange(len(lengths)), lengths)
    slot = tables.slot.astype(np.int64)
    present, log_odds, ranks, best = _dense(before, length, (before.log_odds, rank_before, before.best))
    known = present[of, slot]
    here, tokens = _dense(tables, length, (tables.best,))
    newest = here & filled
    columns = (
        (np.diff(before.start) > 0)[of],
        np.where(known, np.clip(tables.log_odds - log_odds[of, slot], -MOST_CHANGE, MOST_CHANGE) / 8, 0),
        np.where(known, (ranks[of, slot] - rank) / length, 0),
        known & (best[of, slot] != tables.best),
        *_gaps(tables, of, newest[of, slot], rank),
        np.minimum(_left(filled)[of, slot], slot + 1) / length,
        _right(filled)[of, slot] / length,
        _shifted(newest, 1)[of, slot],
        _shifted(newest, -1)[of, slot],
        _nearest(newest)[of, slot] / length,
        _nearest(present & ~here)[of, slot] / length,
        *_alike(tables, of, here, tokens),
    )
    return np.stack(columns, axis=1).astype(np.float32)


def _dense(tables: Tables, length: int, rows: tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], ...]:
    """Which slots [T, L] each table holds, and every array of rows [M] laid out by table and slot, 0 elsewhere."""
    of = np.repeat(np.arange(len(tables.start) - 1), np.diff(tables.start))
    laid = [np.zeros((len(tables.start) - 1, length), dtype=one.dtype) for one in (np.zeros(0, bool), *rows)]
    for array, values in zip(laid, (True, *rows), strict=True):
        array[of, tables.slot] = values
    return tuple(laid)


def _gaps(tables: Tables, of: NDArray[np.int64], gone: NDArray[np.bool_], rank: NDArray[np.int64]) -> list[Floats]:
    """Log-odds [M] to the open neighbours in the stale order, as columns; `gone` [M]: slots that are not open."""
    order = np.lexsort((rank, gone, of))
    sorted_odds, sorted_of = tables.log_odds[order], of[order]
    step = np.full(len(order) + 1, np.float32(MOST_GAP))
    near = (sorted_of[1:] == sorted_of[:-1]) & ~gone[order][1:]
    step[1:-1][near] = np.clip(sorted_odds[:-1] - sorted_odds[1:], 0, MOST_GAP)[near]
    columns = []
    for gaps in (step[:-1], step[1:]):
        column = np.empty(len(order), np.float32)
        column[order] = gaps / np.float32(MOST_GAP)
        columns.append(column)
    return columns


def _alike(
    tables: Tables, of: NDArray[np.int64], here: NDArray[np.bool_], tokens: NDArray[np.int32]
) -> list[NDArray[Any]]:
    """Columns [M]: the left, the right neighbour's likeliest token is the slot's own; share of slots where it is.
    `here` and `tokens` [T, L]: which slots the tables hold, and their likeliest tokens."""
    beside = (tokens[:, 1:] == tokens[:, :-1]) & here[:, 1:] & here[:, :-1]
    same = np.zeros((2, *here.shape), dtype=bool)
    same[0, :, 1:], same[1, :, :-1] = beside, beside
    _, names, counts = np.unique(of * (1 << 32) + tables.best, return_inverse=True, return_counts=True)
    return [same[0][of, tables.slot], same[1][of, tables.slot], counts[names] / here.shape[1]]


def _left(marks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Distance [T, L] from the nearest marked place on the left; L where none is."""
    length = marks.shape[1]
    place = np.arange(length)
    last = np.maximum.accumulate(np.where(marks, place, -1), axis=1)
    distance = np.full(marks.shape, length)
    distance[:, 1:] = np.where(last[:, :-1] >= 0, place[1:] - last[:, :-1], length)
    return distance


def _right(marks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The same on the right."""
    return _left(marks[:, ::-1])[:, ::-1]


def _shifted(marks: NDArray[np.bool_], by: int) -> NDArray[np.bool_]:
    """Whether the place `by` to the left is marked."""
    shifted = np.zeros_like(marks)
    if by > 0:
        shifted[:, by:] = marks[:, :-by]
    else:
        shifted[:, :by] = marks[:, -by:]
    return shifted


def _nearest(marks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Signed distance [T, L] from the nearest marked place, positive to its right; 0 at one, and where none is."""
    left, right = _left(marks), _right(marks)
    nearest = np.where(left <= right, left, -right)
    return np.where(marks | ~marks.any(axis=1, keepdims=True), 0, nearest)
