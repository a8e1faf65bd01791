"""A stand-in for a machine on which the shape of a forward moves what bfloat16 rounds: CPUs here add in one order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spot_infer.packing import Packed
from spot_infer.targets import load_target
from spot_infer.targets.block_causal import BlockCausalTarget


class Rounded(BlockCausalTarget):
    """Hidden states move with the shape of the forward, by what bfloat16 rounds in a few layers."""

    def forward(self, packed: Packed, cache: Any) -> Tensor:
        hidden = super().forward(packed, cache)
        return hidden * (1 + 2**-6 * torch.sin(1e4 * hidden + len(packed.input_ids)))


def rounded(name: str) -> Rounded:
    """A packaged target, computed in float32 and moved like that."""
    target = load_target(name, dtype="float32")
    assert isinstance(target, BlockCausalTarget)
    return Rounded(target.model, target.tokenizer, replace(target.spec, dtype="bfloat16"))
