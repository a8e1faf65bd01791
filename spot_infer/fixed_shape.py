"""A target whose forwards all have one shape: as many sequences of one block, as many keys, as many rows of the head.

Knows nothing about drafts, and nothing about why one would want that (`bitwise.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spot_infer.packing import Packed
from spot_infer.targets.protocol import PrefixCache, Target

HEAD_ROWS = 128
"""Slots projected to the vocabulary at once."""


class FixedShapeTarget:
    """A target whose forwards all hold `sequences` sequences of one block behind `prefix_tokens` keys."""

    def __init__(self, inner: Target, sequences: int, prefix_tokens: int) -> None:
        self.inner = inner
        self.spec = inner.spec
        self.tokenizer = inner.tokenizer
        self.sequences = sequences
        self.prefix_tokens = prefix_tokens

    @property
    def device(self) -> torch.device:
        return self.inner.device

    def new_cache(self) -> PrefixCache:
        """A cache that has held a block, so that padded keys exist from the first forward on."""
        cache = self.inner.new_cache()
        with torch.inference_mode():
            row = cache.add_row()
            self.inner.prefill(cache, [row], [[self.spec.mask_id] * self.spec.block_length])
            cache.drop_row(row)
        return cache

    def prefill(self, cache: PrefixCache, rows: Sequence[int], prefixes: Sequence[Sequence[int]]) -> None:
        """Encode every prompt in a forward of its own."""
        for row, prefix in zip(rows, prefixes, strict=True):
            self.inner.prefill(cache, [row], [prefix])

    def forward(self, packed: Packed, cache: PrefixCache) -> Tensor:
        return self.inner.forward(packed, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        parts = [self.inner.logits(fill_rows(rows))[: len(rows)] for rows in hidden.split(HEAD_ROWS)]
        return torch.cat(parts)

    def fill(self, packed: Packed) -> Packed:
        """`packed` with copies of its first sequence and keys out of sight, up to the shape. The copies are no row's.

        Raises ValueError where it is larger than the shape, which the settings rule out.
        """
        count, width = packed.input_ids.shape
        spare, keys = self.sequences - count, self.prefix_tokens - packed.prefix_width
        if spare < 0 or keys < 0 or width != self.spec.block_length:
            raise ValueError(
                f"a forward of {count} sequences of {width} tokens behind {packed.prefix_width} keys exceeds bitwise "
                f"mode's {self.sequences} of {self.spec.block_length} behind {self.prefix_tokens}"
            )
        prefix, own = packed.attention_mask.split([packed.prefix_width, width], dim=-1)
        mask = torch.cat([torch.nn.functional.pad(prefix, (0, keys)), own], dim=-1)
        return replace(
            packed,
            input_ids=_repeated(packed.input_ids, spare),
            position_ids=_repeated(packed.position_ids, spare),
            attention_mask=_repeated(mask, spare),
            cache_rows=_repeated(packed.cache_rows, spare),
            prefix_width=self.prefix_tokens,
        )


def fill_rows(rows: Tensor) -> Tensor:
    """Hidden states [m, H] with copies of the first one, [HEAD_ROWS, H]."""
    return _repeated(rows, HEAD_ROWS - len(rows))


def _repeated(tensor: Tensor, count: int) -> Tensor:
    return torch.cat([tensor, tensor[:1].expand(count, *tensor.shape[1:])]) if count else tensor
