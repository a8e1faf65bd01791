"""A native causal LM of transformers as targets run it: explicit positions and 4D boolean masks, `sdpa` attention.

Knows nothing about blocks, caches of prefixes or families.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from spot_infer.cache import KeyValueCache
from spot_infer.targets.protocol import Target, TargetSpec


class NativeModel:
    """What every target made of such a model shares."""

    def __init__(self, model: Any, tokenizer: Any, spec: TargetSpec) -> None:
        self.model = model.eval()
        self.head = model.get_output_embeddings()
        self.tokenizer = tokenizer
        self.spec = spec

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self.head(hidden.to(self.head.weight.dtype))
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


def with_float32_head(target: Target) -> Target | None:
    """The same target with its logits computed in float32 from a copy of the head, V * H * 4 bytes; None where they are
    that fine already, or the target is no native model."""
    if not isinstance(target, NativeModel) or target.head.weight.dtype not in (torch.bfloat16, torch.float16):
        return None
    finer: Any = copy.copy(target)
    finer.head = copy.deepcopy(target.head).float()
    return finer
