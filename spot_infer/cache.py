"""Prefix keys and values of every row, with a scratch region for the last forward's replicas.

Plugs into the attention of native transformers models: they call `update` once a layer and get prefix and own keys
back. Nothing a replica writes reaches the prefix until `promote` says so. Knows nothing about tokens or masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spot_infer.packing import Packed

_GROW_POSITIONS = 256
_GROW_ROWS = 8


class KeyValueCache:
    """Implements `targets.protocol.PrefixCache`. Buffers are [rows, heads, positions, head_dim], one pair a layer."""

    def __init__(self, block_length: int) -> None:
        self.block_length = block_length
        self.lengths: list[int] = []
        self._prefix: list[tuple[Tensor, Tensor]] = []
        self._scratch: list[tuple[Tensor, Tensor]] = []
        self._rows: Tensor | None = None
        self._width = 0

    def add_row(self) -> int:
        self.lengths.append(0)
        return len(self.lengths) - 1

    def drop_row(self, row: int) -> None:
        last = len(self.lengths) - 1
        if row != last:
            used = self.lengths[last]
            for pair in self._prefix:
                for buffer in pair:
                    buffer[row, :, :used] = buffer[last, :, :used]
            self.lengths[row] = self.lengths[last]
        self.lengths.pop()

    def begin(self, rows: Tensor | None, width: int) -> None:
        """Start a forward whose sequence n attends to the first `width` cached positions of row `rows[n]`."""
        if width:
            self._reserve(width)
        self._rows = rows
        self._width = width
        self._scratch = []

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Called by attention: keys, values [N, heads, Q, head_dim] of the sequence itself; returns prefix + own."""
        self._scratch.append((keys, values))
        if self._width == 0 or self._rows is None:
            return keys, values
        prefix_keys, prefix_values = self._prefix[layer_idx]
        rows = self._rows
        return (
            torch.cat([prefix_keys[:, :, : self._width].index_select(0, rows), keys], dim=2),
            torch.cat([prefix_values[:, :, : self._width].index_select(0, rows), values], dim=2),
        )

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Positions before the sequence's own, as attention masks of transformers count them."""
        return self._width

    def store(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Make the first `lengths[n]` scratch positions of sequence n the prefix of the empty row `rows[n]`."""
        for sequence, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            self._append(row, sequence, 0, length)

    def promote(self, row: int, packed: Packed, state: int) -> None:
        self._append(row, packed.sequence_of[state], packed.offset_of[state], self.block_length)

    def _append(self, row: int, sequence: int, offset: int, length: int) -> None:
        start = self.lengths[row]
        self._reserve(start + length)
        for pair, own in zip(self._prefix, self._scratch, strict=True):
            for buffer, new in zip(pair, own, strict=True):
                buffer[row, :, start : start + length] = new[sequence, :, offset : offset + length]
        self.lengths[row] = start + length

    def _reserve(self, positions: int) -> None:
        rows = len(self.lengths)
        if self._prefix:
            have_rows, _, have_positions, _ = self._prefix[0][0].shape
            if rows <= have_rows and positions <= have_positions:
                return
            rows, positions = max(rows, have_rows), max(positions, have_positions)
        rows = -(-rows // _GROW_ROWS) * _GROW_ROWS
        positions = -(-positions // _GROW_POSITIONS) * _GROW_POSITIONS
        old = self._prefix
        self._prefix = []
        for layer, pair in enumerate(self._scratch):
            grown = [own.new_zeros(rows, own.shape[1], positions, own.shape[3]) for own in pair]
            if old:
                for buffer, before in zip(grown, old[layer], strict=True):
                    buffer[: before.shape[0], :, : before.shape[2]] = before
            self._prefix.append((grown[0], grown[1]))
