"""Block-causal targets: a position sees its own block and those before it, so what a cached block holds is exact.

Knows nothing about families. Logits at position i predict token i.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spot_infer.cache import KeyValueCache
from spot_infer.packing import Packed
from spot_infer.targets.native_model import NativeModel
from spot_infer.targets.protocol import PrefixCache


class BlockCausalTarget(NativeModel):
    """A native causal LM under block-causal masks."""

    def new_cache(self) -> KeyValueCache:
        return KeyValueCache(self.spec.block_length)

    def prefill(self, cache: PrefixCache, rows: Sequence[int], prefixes: Sequence[Sequence[int]]) -> None:
        used = [index for index, prefix in enumerate(prefixes) if len(prefix)]
        if not used:
            return
        assert isinstance(cache, KeyValueCache)
        lengths = [len(prefixes[index]) for index in used]
        width = max(lengths)
        ids = torch.tensor(
            [[*prefixes[index], *[self.spec.mask_id] * (width - len(prefixes[index]))] for index in used]
        )
        block = torch.arange(width) // self.spec.block_length
        mask = (block[:, None] >= block[None, :]).expand(len(used), 1, width, width)
        cache.begin(None, 0)
        self.run(ids, torch.arange(width).expand(len(used), -1), mask, cache)
        cache.store([rows[index] for index in used], lengths)

    def forward(self, packed: Packed, cache: PrefixCache) -> Tensor:
        assert isinstance(cache, KeyValueCache)
        cache.begin(packed.cache_rows, packed.prefix_width)
        hidden = self.run(packed.input_ids, packed.position_ids, packed.attention_mask, cache)
        return hidden.flatten(0, 1)[packed.read_index]
