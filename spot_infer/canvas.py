"""Full attention: what a replica is forwarded with, where the cache is only approximately the prefix's.

A canvas is a row's prompt, its finished blocks and masks to the end. With full attention every position depends on all
others, so nothing cached is exact. When a block opens, the whole canvas is forwarded and its keys and values are kept
while the block lasts (the caches of Fast-dLLM); a later state of the block is forwarded as a window of the canvas that
sees what is kept of the rest. Knows nothing about models.

`lead` is the shift of the logits: where row i predicts token i + 1, a window begins one position before its block. That
position only asks: the block sees its kept key and value, so the block's own rows are the same with and without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spot_infer.cache import KeyValueCache
from spot_infer.packing import Packed
from spot_infer.targets.protocol import CacheKind


class CanvasCache(KeyValueCache):
    """Every row's canvas and, once its block was opened by a forward, the keys and values of all its positions."""

    def __init__(self, block_length: int) -> None:
        super().__init__(block_length)
        self.canvases: list[list[int]] = []
        self.starts: list[int] = []

    def add_row(self) -> int:
        self.canvases.append([])
        self.starts.append(-1)
        return super().add_row()

    def drop_row(self, row: int) -> None:
        super().drop_row(row)
        self.canvases[row], self.starts[row] = self.canvases[-1], self.starts[-1]
        self.canvases.pop()
        self.starts.pop()

    def open_block(self, row: int, canvas: Sequence[int], start: int) -> None:
        """The row's active block is the one at `start`; nothing is kept for it yet."""
        self.canvases[row], self.starts[row] = list(canvas), start
        self.lengths[row] = 0

    def opened(self, row: int) -> bool:
        """Whether a forward has opened the row's block."""
        return self.lengths[row] > 0


@dataclass(frozen=True)
class CanvasPacked(Packed):
    """A packed forward of a full-attention target: `whole` are the states that take their whole canvas, `windowed` the
    sequences whose replicas take a window each; row_positions [B]: token positions computed for every input row."""

    whole: tuple[int, ...]
    windowed: tuple[int, ...]
    row_positions: tuple[int, ...]

    def positions_of(self, row: int) -> int:
        return self.row_positions[row]


def plan_canvases(packed: Packed, cache: CanvasCache, kind: CacheKind, lead: int) -> CanvasPacked:
    """Decide how every state of `packed` is forwarded, and what that costs its row.

    A row whose block no forward has opened has one state, its root.
    """
    cache_rows = packed.cache_rows.tolist()
    row_of = [cache_rows[sequence] for sequence in packed.sequence_of]
    whole = [state for state, row in enumerate(row_of) if kind == "none" or not cache.opened(row)]
    windowed = [n for n, row in enumerate(cache_rows) if kind != "none" and cache.opened(row)]
    canvas = max((len(cache.canvases[row_of[state]]) for state in whole), default=0)
    replicas = packed.input_ids.shape[1] // cache.block_length
    width = max((window_end(cache, cache_rows[n], kind) - cache.starts[cache_rows[n]] for n in windowed), default=0)
    positions = []
    first = 0
    for row, sequences in enumerate(packed.row_sequences):
        states = range(packed.row_states[row], packed.row_states[row + 1])
        windows = sum(n in windowed for n in range(first, first + sequences))
        positions.append(sum(state in whole for state in states) * canvas + windows * replicas * (width + lead))
        first += sequences
    return CanvasPacked(**vars(packed), whole=tuple(whole), windowed=tuple(windowed), row_positions=tuple(positions))


def window_end(cache: CanvasCache, row: int, kind: CacheKind) -> int:
    """Where the row's windows end: with its canvas, or with its block where what follows is kept."""
    return cache.starts[row] + cache.block_length if kind == "dual" else len(cache.canvases[row])


@dataclass(frozen=True)
class CanvasForward:
    """One call of the model. input_ids, position_ids int64 [N, Q]; attention_mask bool [N, 1, Q, P + Q], the first P
    keys being those kept for cache row cache_rows[n] (None: none are); width: of one window, Q = replicas * width."""

    input_ids: Tensor
    position_ids: Tensor
    attention_mask: Tensor
    cache_rows: Tensor | None
    kept: int
    width: int


def whole_canvases(canvases: Sequence[Sequence[int]]) -> CanvasForward:
    """Every canvas as one sequence, padded to the longest."""
    width = max(len(canvas) for canvas in canvases)
    ids = torch.tensor([[*canvas, *[0] * (width - len(canvas))] for canvas in canvases])
    seen = torch.arange(width) < torch.tensor([len(canvas) for canvas in canvases])[:, None]
    mask = seen[:, None, None, :].expand(-1, 1, width, -1)
    return CanvasForward(ids, torch.arange(width).expand(len(canvases), -1), mask, None, 0, width)


def windows(tokens: Tensor, cache_rows: Sequence[int], cache: CanvasCache, kind: CacheKind, lead: int) -> CanvasForward:
    """Every replica as a window of its row's canvas: tokens int64 [N, R, L] are the replicas' blocks.

    A replica sees its window and what is kept outside it; its siblings are out of sight.
    """
    sequences, replicas, length = tokens.shape
    starts = torch.tensor([cache.starts[row] for row in cache_rows])
    ends = torch.tensor([window_end(cache, row, kind) for row in cache_rows])
    canvases = torch.tensor([len(cache.canvases[row]) for row in cache_rows])
    width = lead + int((ends - starts).max())
    positions = starts[:, None] - lead + torch.arange(width)
    ids = torch.zeros(sequences, replicas, width, dtype=torch.int64)
    for number, row in enumerate(cache_rows):
        window = cache.canvases[row][cache.starts[row] - lead : int(ends[number])]
        ids[number, :, : len(window)] = torch.tensor(window)
    ids[:, :, lead : lead + length] = tokens
    asks = torch.arange(width) < lead
    itself = torch.eye(width, dtype=torch.bool)
    own = ((positions < ends[:, None]) & ~asks)[:, None, :] | itself
    apart = torch.eye(replicas, dtype=torch.bool)
    own = (apart[:, None, :, None] & own[:, None, :, None, :]).reshape(sequences, replicas * width, replicas * width)
    kept = int((canvases if kind == "dual" else starts).max())
    key = torch.arange(kept)
    before = torch.where(asks, starts[:, None] - lead, starts[:, None])
    context = key < before[:, :, None]
    if kind == "dual":
        context |= ((key >= ends[:, None]) & (key < canvases[:, None]))[:, None, :]
    mask = torch.cat([context.repeat(1, replicas, 1), own], dim=-1)[:, None]
    return CanvasForward(ids.flatten(1), positions.repeat(1, replicas), mask, torch.tensor(cache_rows), kept, width)
