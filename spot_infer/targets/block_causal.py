"""Block-causal targets: a native causal LM under explicit 4D boolean masks, whose prefix cache is exact.

Knows nothing about families: any decoder of transformers that takes such masks and a cache. No flash attention. Logits
at position i predict token i.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spot_infer.cache import KeyValueCache
from spot_infer.packing import Packed
from spot_infer.targets.protocol import PrefixCache, TargetSpec


class BlockCausalTarget:
    """A transformers causal LM whose prefix cache is exact because attention is block-causal."""

    def __init__(self, model: Any, tokenizer: Any, spec: TargetSpec) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.spec = spec

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

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
        self._run(ids.to(self.device), torch.arange(width).expand(len(used), -1).to(self.device), mask, cache)
        cache.store([rows[index] for index in used], lengths)

    def forward(self, packed: Packed, cache: PrefixCache) -> Tensor:
        assert isinstance(cache, KeyValueCache)
        cache.begin(packed.cache_rows, packed.prefix_width)
        hidden = self._run(packed.input_ids, packed.position_ids, packed.attention_mask, cache)
        return hidden.flatten(0, 1)[packed.read_index]

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self.model.get_output_embeddings()(hidden)
        return logits if logits.dtype == torch.float64 else logits.float()

    def _run(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: KeyValueCache) -> Tensor:
        return self.model.get_decoder()(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask.to(self.device),
            cache=cache,
            use_cache=True,
        ).last_hidden_state
