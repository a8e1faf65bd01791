"""A full-attention target's blocks against the official code's logits, and the commit rules of its generation loops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spot_infer import load_target
from spot_infer.blocks import BlockState
from spot_infer.canvas import CanvasPacked
from spot_infer.official_rules import even_quotas, linear_quotas
from spot_infer.packing import Replica, RowStates
from spot_infer.transition import CommitRule

TOLERANCE = 1e-4


def loaded(folder: Path, block_length: int, cache: str) -> Any:
    return load_target(folder, dtype="float32", device="cpu", block_length=block_length, cache=cache)  # type: ignore[arg-type]


def block_logits(target: Any, cache: Any, *blocks: list[int]) -> Iterator[Tensor]:
    """Logits [L, V] at every slot, masked or not, of replicas side by side in the block that is open in row 0."""
    replicas = [Replica(BlockState(cache.starts[0], tuple(block), target.spec.mask_id)) for block in blocks]
    packed = target.pack([RowStates(0, cache.lengths[0], replicas)], cache, "concat", 0)
    length = target.spec.block_length
    everywhere = {
        "read_slot": torch.arange(length).repeat(len(blocks)),
        "state_start": tuple(range(0, length * len(blocks) + 1, length)),
    }
    yield from target.logits(target.forward(CanvasPacked(**{**vars(packed), **everywhere}), cache)).split(length)


def opened(target: Any, ids: list[int], start: int) -> tuple[Any, Tensor]:
    """A cache whose only row's block at `start` was opened by a forward of `ids`, and that block's logits."""
    cache = target.new_cache()
    cache.add_row()
    target.open_blocks(cache, [ids], [start])
    (logits,) = block_logits(target, cache, ids[start : start + target.spec.block_length])
    return cache, logits


def predicted(target: Any, raw: Tensor, start: int, length: int) -> Tensor:
    """Rows of the official, unshifted logits that predict the block."""
    first = start - target.spec.logit_shift
    return raw[first : first + length]


FAST = CommitRule(selection="threshold", threshold=0.1, inclusive=True)
FAST_DREAM = CommitRule(selection="threshold", threshold=0.1, inclusive=True, opening="first")
OFFICIAL = {
    "llada": [
        ("ids_gsai_steps16_gen16_b8_T0", CommitRule(selection="quota", quota=even_quotas(8, 8)), 8, "none"),
        ("ids_gsai_steps8_gen16_b8_T0", CommitRule(selection="quota", quota=even_quotas(8, 4)), 8, "none"),
        ("ids_fastdllm_nocache_thr0.1_b8", FAST, 8, "none"),
        ("ids_fastdllm_prefixcache_thr0.1_b8", FAST, 8, "prefix"),
        ("ids_fastdllm_dualcache_thr0.1_b8", FAST, 8, "dual"),
    ],
    "dream": [
        *(
            (f"ids_{name}_steps16_T0", CommitRule(ranking, selection="quota", quota=linear_quotas(16, 16)), 16, "none")
            for name, ranking in (("maskgit_plus", "probability"), ("topk_margin", "margin"), ("entropy", "entropy"))
        ),
        (
            "ids_confidence_threshold_steps16_T0",
            CommitRule(selection="threshold", threshold=0.9, inclusive=True),
            16,
            "none",
        ),
        ("ids_fastdllm_prefix_thr0.1_b8", FAST_DREAM, 8, "prefix"),
        ("ids_fastdllm_dual_thr0.1_b8", FAST_DREAM, 8, "dual"),
    ],
}
