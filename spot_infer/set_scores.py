"""The one-call head once more, for the draft search: the scores of one table's states in a product of small arrays.

`SetHead.forward` is what this computes, in numpy and a table at a time: what a filled slot adds to the hidden layer of
every other one is laid out once a table, so that a state is a row of zeros and ones times that array. Knows nothing
about tables, features or the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spot_infer.set_head import SetHead

Floats = NDArray[Any]


class HeadArrays:
    """A head's weights on the CPU as arrays, which share its memory where they can. offset [2 L - 1, hidden]; out
    [hidden]; scale [d_max + 1]: the factor at every depth."""

    def __init__(self, head: SetHead) -> None:
        self.block_length, self.hidden = head.block_length, head.hidden
        self.offset = as_array(head.offset)
        self.out = as_array(head.out.weight)[0]
        self.scale = np.exp(as_array(head.sharpness))


def as_array(tensor: Tensor) -> Floats:
    """A tensor's values: float64 where they are, else float32, since numpy lacks bfloat16."""
    kept = tensor.detach() if tensor.dtype == torch.float64 else tensor.detach().float()
    return kept.cpu().numpy()


class SetScores:
    """Scores of the states over one table of m slots. codes [m, 3 * hidden + 1]: of `SetHead.encode`; slot int [m]."""

    def __init__(self, head: HeadArrays, codes: Floats, slot: NDArray[np.int64]) -> None:
        hidden, count = head.hidden, len(slot)
        self.head = head
        self.base, gate, message = (codes[:, at * hidden : (at + 1) * hidden] for at in range(3))
        self.prior = codes[:, 3 * hidden]
        told = gate * message[:, None]
        told += head.offset[slot[:, None] - slot + head.block_length - 1]
        self.told = told.reshape(count, count * hidden)

    def __call__(self, filled: NDArray[np.bool_], depth: Sequence[int]) -> Floats:
        """Scores [Q, m] of states: filled bool [Q, m], root included; depth [Q], steps between the root and the
        state."""
        hears = (filled.astype(self.told.dtype) @ self.told).reshape(*filled.shape, -1)
        hears += self.base
        np.maximum(hears, 0, out=hears)
        scores = hears @ self.head.out
        scores += self.prior
        deepest = len(self.head.scale) - 1
        scores *= self.head.scale[[min(one, deepest) for one in depth]][:, None]
        return scores
