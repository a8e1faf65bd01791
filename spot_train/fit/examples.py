"""Trajectories -> prefix-conditioned examples (paper section 4.2 and appendix D.1), pure numpy over flat arrays.

Example (t, d): the table computed at state t; the slots of steps t..t+d taken; the label is the slot of step t+1+d, all
in one block. Only steps of one commit are examples. Knows nothing about batches on devices or training.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spot_infer.errors import SpotError
from spot_infer.features import FeatureKind, pad_rows, ragged_features, ragged_ranks, stale_ranking, tables_read
from spot_infer.table import Tables
from spot_infer.transition import CommitRule
from spot_train.trajectory import Trajectory


@dataclass(frozen=True)
class Steps:
    """N steps of `trajectories` trajectories, end to end, over M table rows: table t is rows start[t]..start[t + 1].

    top_logprob f16 [M, 32], log_odds f32 [M], slot u8 [M], best i32 [M] (the likeliest token); follows bool [N]: the
    step before is of the same block; committed int64 [N]: the slot step t fills (-1 where it fills several); deepest
    int64 [N]: largest d for which (t, d) is an example (-1: none); block int64 [N]: the block's number in its
    trajectory; before_stop bool [N]: the commit lies at or before the last returned token.
    """

    block_length: int
    trajectories: int
    start: NDArray[np.int64]
    top_logprob: NDArray[np.float16]
    log_odds: NDArray[np.float32]
    slot: NDArray[np.uint8]
    best: NDArray[np.int32]
    follows: NDArray[np.bool_]
    committed: NDArray[np.int64]
    deepest: NDArray[np.int64]
    block: NDArray[np.int64]
    before_stop: NDArray[np.bool_]

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.committed)

    @property
    def tables(self) -> Tables:
        """The steps' tables."""
        return Tables(self.start, self.slot, self.top_logprob, self.log_odds, self.best)

    @property
    def usable(self) -> NDArray[np.int64]:
        """Steps that have at least one example."""
        return np.flatnonzero(self.deepest >= 0)


def lay_out(trajectories: Iterable[Trajectory]) -> Steps:
    """Lay the trajectories end to end, keeping of each only what training reads.

    Raises SpotError where there is no step or block lengths are mixed.
    """
    parts: dict[str, list[NDArray[Any]]] = defaultdict(list)
    block_length, count, offset = 0, 0, 0
    for one in trajectories:
        if not len(one):
            continue
        length = one.block_tokens.shape[-1]
        if count and length != block_length:
            raise SpotError(
                f"trajectories have block lengths {sorted((length, block_length))}; use those of one target and block "
                "length"
            )
        block_length, count = length, count + 1
        committed, last, block, before_stop = _steps(one, block_length)
        kept: dict[str, NDArray[Any]] = {
            "tables": np.diff(one.step_start),
            "top_logprob": one.top_logprob,
            "log_odds": one.log_odds,
            "slot": one.slot,
            "best": one.top_token[:, 0],
            "follows": np.diff(one.block_start, prepend=-1) == 0,
            "committed": committed,
            "last": last + offset,
            "block": block,
            "before_stop": before_stop,
        }
        for name, array in kept.items():
            parts[name].append(array)
        offset += len(one)
    if not count:
        raise SpotError("there is no recorded step to learn from; collect more prompts")
    flat = {name: np.concatenate(parts.pop(name)) for name in list(parts)}
    return Steps(
        block_length=block_length,
        trajectories=count,
        start=np.concatenate([[0], np.cumsum(flat["tables"])]).astype(np.int64),
        top_logprob=flat["top_logprob"],
        log_odds=flat["log_odds"],
        slot=flat["slot"],
        best=flat["best"],
        follows=flat["follows"],
        committed=flat["committed"],
        deepest=np.maximum(flat["last"] - np.arange(offset) - 1, -1),
        block=flat["block"],
        before_stop=flat["before_stop"],
    )


def _steps(
    one: Trajectory, block_length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """committed, last step of the unbroken run of single commits in its block, block number, before_stop: each [N]."""
    first = one.commit_start[:-1]
    single = np.diff(one.commit_start) == 1
    position = one.commit_position[np.minimum(first, len(one.commit_position) - 1)].astype(np.int64)
    committed = np.where(single, position - one.block_start, -1)
    broken = np.concatenate([(one.block_start[1:] != one.block_start[:-1]) | ~single[1:] | ~single[:-1], [True]])
    ends = np.flatnonzero(broken)
    last = ends[np.searchsorted(ends, np.arange(len(one)))]
    block = (one.block_start - one.block_start[0]).astype(np.int64) // block_length
    return committed, last, block, position < one.prompt_length + one.returned_tokens


def sample_depths(
    deepest: NDArray[np.int64], d_max: int, depths_per_state: int, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Different depths [N, depths_per_state] a state out of 0..min(d_max, deepest), -1 where there are too few.

    Depth d is drawn with a weight of 1 / (d + 1): the search asks about shallow states most, and every path begins
    there. A pure function of (seed, epoch, state's index).
    """
    uniform = np.random.Generator(np.random.Philox(key=[seed, epoch])).random((len(deepest), d_max + 1))
    depth = np.arange(d_max + 1)
    keys = -np.log1p(-uniform) * (depth + 1)
    keys[depth > deepest[:, None]] = np.inf
    wanted = min(depths_per_state, d_max + 1)
    chosen = np.argsort(keys, axis=1, kind="stable")[:, :wanted]
    return np.where(np.isinf(np.take_along_axis(keys, chosen, axis=1)), -1, chosen)


def epoch_batches(steps: Steps, batch_size: int, seed: int, epoch: int, pool: int = 32) -> list[NDArray[np.int64]]:
    """The epoch's batches of state indices: shuffled, then sorted by table size inside pools of `pool` batches, so that
    little is padded, then shuffled again. A pure function of (seed, epoch)."""
    generator = np.random.Generator(np.random.Philox(key=[seed, (1 << 32) + epoch]))
    shuffled = generator.permutation(steps.usable)
    sizes = np.diff(steps.start)
    batches: list[NDArray[np.int64]] = []
    for first in range(0, len(shuffled), batch_size * pool):
        group = shuffled[first : first + batch_size * pool]
        group = group[np.argsort(sizes[group], kind="stable")]
        batches += [group[cut : cut + batch_size] for cut in range(0, len(group), batch_size)]
    return [batches[index] for index in generator.permutation(len(batches))]


@lru_cache(maxsize=2)
def window_order(windows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order in which an epoch goes through its windows. A pure function of (seed, epoch)."""
    return np.random.Generator(np.random.Philox(key=[seed, (1 << 33) + epoch])).permutation(windows)


@dataclass(frozen=True)
class Examples:
    """Q examples over S tables padded to the widest, m slots.

    features f32 [S, m, F]; slot i64, rank i64, valid bool [S, m] (rank: the untrained order under the rule); root bool
    [S, m]: filled in the root; table i64 [Q]: which of the S tables; taken bool [Q, m]; depth, label (index into m),
    block i64 [Q]; before_stop bool [Q].
    """

    features: NDArray[np.float32]
    slot: NDArray[np.int64]
    rank: NDArray[np.int64]
    valid: NDArray[np.bool_]
    root: NDArray[np.bool_]
    table: NDArray[np.int64]
    taken: NDArray[np.bool_]
    depth: NDArray[np.int64]
    label: NDArray[np.int64]
    block: NDArray[np.int64]
    before_stop: NDArray[np.bool_]


def make_examples(
    steps: Steps, states: NDArray[np.int64], depths: NDArray[np.int64], kind: FeatureKind, rule: CommitRule
) -> Examples:
    """The examples (states[i], depths[i, j]) for states [S] and depths [S, k]; entries that are no example (negative,
    or deeper than `steps.deepest`) are left out."""
    table, column = np.nonzero((depths >= 0) & (depths <= steps.deepest[states][:, None]))
    depth = depths[table, column]
    state = states[table]
    rows, valid = pad_rows(steps.start, states)
    features, rank = _table_inputs(steps, states, kind, rule)
    slot = steps.slot[rows].astype(np.int64)
    filled = np.zeros((len(table), steps.block_length), dtype=bool)
    path = np.arange(int(depth.max(initial=0)) + 1)
    query, ahead = np.nonzero(path <= depth[:, None])
    filled[query, steps.committed[state[query] + ahead]] = True
    label_step = state + depth + 1
    is_label = (slot[table] == steps.committed[label_step][:, None]) & valid[table]
    return Examples(
        features=features,
        slot=slot,
        rank=rank,
        valid=valid,
        root=(slot == steps.committed[states][:, None]) & valid,
        table=table,
        taken=np.take_along_axis(filled, slot[table], axis=1) & valid[table],
        depth=depth,
        label=is_label.argmax(axis=1),
        block=steps.block[label_step],
        before_stop=steps.before_stop[label_step],
    )


def _table_inputs(
    steps: Steps, states: NDArray[np.int64], kind: FeatureKind, rule: CommitRule
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features [S, m, F] and ranks [S, m] of the states' tables, padded with zeros."""
    tables = steps.tables.take(states)
    before = np.where(steps.follows[states] & (tables_read(kind) > 1), states - 1, -1)
    padded, valid = pad_rows(tables.start, np.arange(len(states)))
    filled = np.ones((len(states), steps.block_length), dtype=bool)
    filled[np.repeat(np.arange(len(states)), np.diff(tables.start)), tables.slot] = False
    single = steps.committed[states] >= 0
    filled[single, steps.committed[states[single]]] = True
    flat = ragged_features(tables, steps.tables.take(before), filled, kind, rule)
    ranks = ragged_ranks(stale_ranking(tables.top_logprob, tables.log_odds, rule), tables.slot, tables.start)
    return flat[padded] * valid[:, :, None], ranks[padded] * valid
