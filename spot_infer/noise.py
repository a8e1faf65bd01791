"""Keyed Gumbel noise (paper section 4.3): a row depends on the request's seed and the absolute position, nothing else.

Generator `philox4x64-10/v1`: numpy's Philox 4x64 with ten rounds, key (seed, position), counter from one; the 64-bit
outputs become uniforms (top 52 bits + 1/2) / 2^52 in float64, exact and never 0 or 1, and then -log(-log u). float32
uniforms would cap a draw at about 16.6, which a vocabulary of 150,000 reaches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NOISE_VERSION = "philox4x64-10/v1"
_MASK64 = (1 << 64) - 1


def gumbel_row(seed: int, position: int, vocab_size: int) -> NDArray[np.float64]:
    """Gumbel(0, 1) draws [V] of one absolute position."""
    return gumbel_of(np.random.Philox(key=np.array([seed & _MASK64, position], dtype=np.uint64)).random_raw(vocab_size))


def gumbel_of(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Gumbel(0, 1) draws from uniform 64-bit words, shape kept; finite for every word."""
    return -np.log(-np.log(_uniform(words)))


def uniforms(seed: int, position: int, count: int) -> NDArray[np.float64]:
    """Uniform draws [count] in (0, 1) of one absolute position, independent of its Gumbel row: the generator's key is
    a hash of the seed."""
    name = hashlib.sha256(f"{seed & _MASK64}:uniforms".encode()).digest()
    key = np.array([int.from_bytes(name[:8], "little"), position], dtype=np.uint64)
    return _uniform(np.random.Philox(key=key).random_raw(count))


def _uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


class GumbelNoise:
    """The noise of one request; keeps the rows of recent positions where they were asked for, since a block's rows are
    read once a round."""

    def __init__(self, seed: int, vocab_size: int, keep_rows: int = 128) -> None:
        self.seed = seed
        self.vocab_size = vocab_size
        self.keep_rows = keep_rows
        self._rows: dict[int, Tensor] = {}

    def rows(self, positions: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        """float64 [len(positions), V] on `device`, made on the CPU."""
        for position in positions:
            if position not in self._rows:
                row = torch.from_numpy(gumbel_row(self.seed, position, self.vocab_size))
                self._rows[position] = row.to(device)
        stacked = torch.stack([self._rows[position].to(device) for position in positions])
        while len(self._rows) > self.keep_rows:
            del self._rows[next(iter(self._rows))]
        return stacked


def prompt_hash(prompt_ids: Sequence[int]) -> str:
    """Hex digest that names a prompt by its token ids."""
    return hashlib.sha256(np.asarray(prompt_ids, dtype="<i4").tobytes()).hexdigest()


def request_seed(seed: int, prompt_ids: Sequence[int], sample: int = 0) -> int:
    """The 64-bit seed of one request: a hash of the run's seed, the prompt and the sample's number."""
    text = f"{seed}:{prompt_hash(prompt_ids)}:{sample}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
