"""A native causal LM of transformers as targets run it: explicit positions and 4D boolean masks, `sdpa` attention.

Knows nothing about blocks, caches of prefixes or families.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spot_infer.cache import KeyValueCache
from spot_infer.targets.protocol import TargetSpec


class NativeModel:
    """What every target made of such a model shares."""

    def __init__(self, model: Any, tokenizer: Any, spec: TargetSpec) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.spec = spec

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self.model.get_output_embeddings()(hidden)
        return logits if logits.dtype == torch.float64 else logits.float()

    def run(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: KeyValueCache | None) -> Tensor:
        """Hidden states [N, Q, H] of ids, positions [N, Q] under mask bool [N, 1, Q, P + Q], P keys from `cache`."""
        return self.model.get_decoder()(
            input_ids=ids.to(self.device),
            position_ids=positions.to(self.device),
            attention_mask=mask.to(self.device),
            cache=cache,
            use_cache=cache is not None,
        ).last_hidden_state
