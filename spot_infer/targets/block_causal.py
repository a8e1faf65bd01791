"""Block-causal targets: a position sees its own block and those before it, so what a cached block holds is exact.

Knows nothing about families. Logits at position i predict token i.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from spot_infer.cache import KeyValueCache
from spot_infer.packing import Packed, PromptBlocks, pack_prompts
from spot_infer.targets.native_model import NativeModel
from spot_infer.targets.protocol import PrefixCache


class BlockCausalTarget(NativeModel):
    """A native causal LM under block-causal masks."""

    def new_cache(self) -> KeyValueCache:
        return KeyValueCache(self.spec.block_length)

    def prefill(self, cache: PrefixCache, rows: Sequence[int], prefixes: Sequence[Sequence[int]]) -> None:
        used = [PromptBlocks(row, prefix) for row, prefix in zip(rows, prefixes, strict=True) if len(prefix)]
        if used:
            self.forward(pack_prompts(used, self.spec.block_length, self.spec.mask_id, self.device), cache)
            cache.store([one.row for one in used], [len(one.tokens) for one in used])

    def forward(self, packed: Packed, cache: PrefixCache) -> Tensor:
        assert isinstance(cache, KeyValueCache)
        cache.begin(packed.cache_rows, packed.prefix_width)
        hidden = self.run(packed.input_ids, packed.position_ids, packed.attention_mask, cache)
        return hidden.flatten(0, 1)[packed.read_index]
