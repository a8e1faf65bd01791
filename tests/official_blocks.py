"""A block-causal target's blocks, one behind the other, against the official code's logits."""

from __future__ import annotations

from typing import Any

import torch

from spot_infer.blocks import BlockState
from spot_infer.packing import Packed, Replica, RowStates, pack

TOLERANCE = 1e-4


def block_logits(target: Any, cache: Any, tokens: list[int], start: int) -> tuple[torch.Tensor, Packed]:
    """Logits [L, V] of a block behind the cache's only row, read at every slot whether masked or not."""
    state = BlockState(start, tuple(tokens), target.spec.mask_id)
    packed = pack([RowStates(0, cache.lengths[0], (Replica(state),))], "concat")
    everywhere = Packed(**{**vars(packed), "read_index": torch.arange(len(tokens))})
    return target.logits(target.forward(everywhere, cache)), packed


def check_stored_blocks(target: Any, reference: dict[str, torch.Tensor]) -> None:
    """Every block behind its stored predecessors has the logits of the official full forward."""
    ids, expected = reference["input_ids"][0].tolist(), reference["logits"][0]
    length = target.spec.block_length
    cache = target.new_cache()
    cache.add_row()
    for start in range(0, len(ids), length):
        logits, packed = block_logits(target, cache, ids[start : start + length], start)
        assert (logits - expected[start : start + length]).abs().max() < TOLERANCE
        cache.promote(0, packed, 0)
    assert cache.lengths == [len(ids)]
