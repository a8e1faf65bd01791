"""A diffusion language model without a network: a masked slot's logits are a hash of everything it may see.

Two hash layers stand for a transformer's: every key mixes its own (position, token) with all it attends to, and a
slot's answer mixes every key it attends to. So reading a pad, a sibling replica, a stale state, a wrong position or a
wrong cache row changes the answer, and a query that does not see every position up to its block's end exactly once, as
one that reads a sibling's ancestor does not, is an error. Visibility comes from the packed forward alone, the prefix
from the cache alone.
Logits are a per-position preference plus a hash-dependent perturbation, so that drafts are sometimes right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spot_infer.packing import Packed
from spot_infer.targets.protocol import TargetSpec

Hashes = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_POSITION = np.uint64(0xD1B54A32D192ED03)
_TOKEN = np.uint64(0x8CB92BA72F3D8DD7)
_PAD = np.uint64(0x5BD1E9955BD1E995)


def mix(values: Hashes | np.uint64) -> Hashes:
    """splitmix64's finaliser, elementwise."""
    with np.errstate(over="ignore"):
        mixed = np.asarray(values, dtype=np.uint64) + _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def key_hash(positions: Hashes, tokens: Hashes) -> Hashes:
    """First-layer value of a key."""
    return mix(mix(positions * _POSITION) ^ (tokens * _TOKEN))


def uniform(hashes: Hashes) -> NDArray[np.float64]:
    """Hashes as numbers in [0, 1)."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53


class FakeTokenizer:
    """One character a token: id i is the i-th letter from `a` on. Enough of a tokenizer for decoding to text."""

    chat_template = None

    def decode(self, ids: int | Iterable[int], **_: object) -> str:
        ids = [ids] if isinstance(ids, int) else ids
        return "".join(chr(ord("a") + int(token)) for token in ids)

    def get_vocab(self) -> dict[str, int]:
        return {chr(ord("a") + token): token for token in range(256)}


class FakeCache:
    """Per row, the two layers of every cached key; `scratch` holds those of the last forward's replicas."""

    def __init__(self, block_length: int) -> None:
        self.block_length = block_length
        self.lengths: list[int] = []
        self.keys: list[tuple[Hashes, Hashes]] = []
        self.scratch: tuple[Packed, Hashes, Hashes] | None = None

    def add_row(self) -> int:
        self.lengths.append(0)
        self.keys.append((np.zeros(0, np.uint64), np.zeros(0, np.uint64)))
        return len(self.lengths) - 1

    def drop_row(self, row: int) -> None:
        self.lengths[row], self.keys[row] = self.lengths[-1], self.keys[-1]
        self.lengths.pop()
        self.keys.pop()

    def promote(self, row: int, packed: Packed, state: int) -> None:
        if self.scratch is None or self.scratch[0] is not packed:
            raise AssertionError("promote reads the scratch region of another forward")
        span = slice(packed.offset_of[state], packed.offset_of[state] + self.block_length)
        sequence = packed.sequence_of[state]
        self.extend(row, self.scratch[1][sequence, span], self.scratch[2][sequence, span])

    def store(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        if self.scratch is None or any(self.lengths[row] for row in rows):
            raise AssertionError("store reads the scratch region into empty rows")
        for sequence, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            self.extend(row, self.scratch[1][sequence, :length], self.scratch[2][sequence, :length])

    def extend(self, row: int, first: Hashes, second: Hashes) -> None:
        self.keys[row] = (np.concatenate([self.keys[row][0], first]), np.concatenate([self.keys[row][1], second]))
        self.lengths[row] += len(first)


@dataclass
class FakeTarget:
    """`strength` scales how much the visible context moves the logits, `stop_rate` how many positions want a stop
    token, `forbidden_rate` how many want the mask token; `quantum` > 0 rounds logits to its multiples, for exact ties.
    """

    seed: int = 0
    block_length: int = 4
    vocab_size: int = 12
    stop_ids: tuple[int, ...] = (0, 1)
    extra_forbidden: tuple[int, ...] = ()
    strength: float = 0.6
    stop_rate: float = 0.02
    forbidden_rate: float = 0.05
    quantum: float = 0.0
    exact_prefix_cache: bool = True
    max_positions: int = 4096
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    forwards: int = 0

    def __post_init__(self) -> None:
        mask_id = self.vocab_size - 1
        self.spec = TargetSpec(
            name=f"fake-{self.seed}",
            block_length=self.block_length,
            vocab_size=self.vocab_size,
            mask_id=mask_id,
            stop_ids=self.stop_ids,
            forbidden_ids=(*self.extra_forbidden, mask_id),
            max_positions=self.max_positions,
            exact_prefix_cache=self.exact_prefix_cache,
            dtype="float64",
            config_hash=f"fake-{self.seed}",
        )

    def new_cache(self) -> FakeCache:
        return FakeCache(self.block_length)

    def prefill(self, cache: FakeCache, rows: Sequence[int], prefixes: Sequence[Sequence[int]]) -> None:
        for row, prefix in zip(rows, prefixes, strict=True):  # apart from `forward`, so that the two can be compared
            if cache.lengths[row] or len(prefix) % self.block_length:
                raise AssertionError("prefill takes whole blocks into an empty row")
            first = key_hash(np.arange(len(prefix), dtype=np.uint64), np.asarray(prefix, dtype=np.uint64))
            seen = np.repeat(np.cumsum(first)[self.block_length - 1 :: self.block_length], self.block_length)
            cache.extend(row, first, mix(first ^ mix(seen)))

    def forward(self, packed: Packed, cache: FakeCache) -> Tensor:
        """hidden float64 [M, 3]: the two halves of the second layer's hash, and the slot's position."""
        self.forwards += not packed.encodes_prompts
        positions = packed.position_ids.numpy().astype(np.uint64)
        own = key_hash(positions, packed.input_ids.numpy().astype(np.uint64))
        visible = packed.attention_mask.numpy()[:, 0]
        self._assert_whole(visible, packed)
        prefix = [self._prefix(packed, cache, layer) for layer in (0, 1)]
        first = np.where(visible, np.concatenate([prefix[0], own], axis=1)[:, None, :], np.uint64(0)).sum(axis=-1)
        own_second = mix(own ^ mix(first))
        second = np.where(visible, np.concatenate([prefix[1], own_second], axis=1)[:, None, :], np.uint64(0))
        cache.scratch = (packed, own, own_second)
        answers = mix(second.sum(axis=-1) ^ own_second).reshape(-1)
        read = packed.read_index.numpy()
        high, low = answers[read] >> np.uint64(32), answers[read] & np.uint64(0xFFFFFFFF)
        hidden = np.stack([high.astype(np.float64), low.astype(np.float64), positions.reshape(-1)[read]], axis=-1)
        return torch.from_numpy(hidden.astype(np.float64))

    def _assert_whole(self, visible: NDArray[np.bool_], packed: Packed) -> None:
        """Every query sees as many keys as there are positions up to its block's end, with their sums of powers."""
        own = packed.position_ids.numpy()
        prefix = np.broadcast_to(np.arange(packed.prefix_width), (len(own), packed.prefix_width))
        keys = np.concatenate([prefix, own], axis=1)
        ends = (own // self.block_length + 1) * self.block_length
        counts = np.arange(ends.max() + 1)
        for power in range(3):
            expected = np.concatenate([[0], np.cumsum(counts**power)])[ends]
            if not np.array_equal(visible @ keys[..., None] ** power, expected[..., None]):
                raise AssertionError("a query does not see every position up to its block's end exactly once")

    def _prefix(self, packed: Packed, cache: FakeCache, layer: int) -> Hashes:
        pads = mix(np.arange(packed.prefix_width, dtype=np.uint64) ^ _PAD)
        rows = [cache.keys[row][layer][: packed.prefix_width] for row in packed.cache_rows.tolist()]
        return np.stack([np.concatenate([row, pads[len(row) :]]) for row in rows])

    def logits(self, hidden: Tensor) -> Tensor:
        """float64 [m, V]."""
        parts = hidden.numpy()
        answers = (parts[:, 0].astype(np.uint64) << np.uint64(32)) | parts[:, 1].astype(np.uint64)
        return torch.from_numpy(self.slot_logits(answers, parts[:, 2].astype(np.uint64)))

    def slot_logits(self, answers: Hashes, positions: Hashes) -> NDArray[np.float64]:
        """Logits [m, V] of slots at `positions` whose second-layer hashes are `answers`."""
        tokens = np.arange(self.vocab_size, dtype=np.uint64)
        place = mix(positions ^ mix(np.uint64(self.seed)))
        taste = 2.0 * uniform(mix(place[:, None] ^ (tokens * _TOKEN)))
        moved = 2.0 * uniform(mix(answers[:, None] ^ (tokens * _TOKEN))) - 1.0
        sharpness = 9.0 * uniform(mix(place ^ np.uint64(1))) * (1 + 0.3 * self.strength * (2 * uniform(answers) - 1))
        logits = taste + self.strength * moved
        logits[np.arange(len(place)), self._favourite(place)] += sharpness
        return np.round(logits / self.quantum) * self.quantum if self.quantum else logits

    def _favourite(self, place: Hashes) -> NDArray[np.int64]:
        kind = uniform(mix(place ^ np.uint64(2)))
        token = (uniform(mix(place ^ np.uint64(3))) * self.vocab_size).astype(np.int64)
        ordinary = [t for t in range(self.vocab_size) if t not in self.stop_ids and t not in self.spec.forbidden_ids]
        favourite = np.asarray(ordinary)[token % len(ordinary)]
        if self.stop_ids:
            favourite = np.where(
                kind < self.stop_rate, np.asarray(self.stop_ids)[token % len(self.stop_ids)], favourite
            )
        return np.where(kind > 1 - self.forbidden_rate, self.spec.mask_id, favourite)
