"""What the decoder needs of a target. Anything with these members works: an adapter, a wrapped model, a test fake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from spot_infer.packing import Layout, Packed, RowStates

Attention = Literal["block-causal", "full"]
CacheKind = Literal["exact", "none", "prefix", "dual"]
"""What a target keeps of finished blocks: `exact` under block-causal attention. Under full attention `none` (every
forward takes the whole canvas, about canvas / L times the positions, and is exact), or what was computed when the
active block opened: of the `prefix` (a replica is the block and all masks after it), or of all but the block (`dual`:
a replica is the block)."""


@dataclass(frozen=True)
class TargetSpec:
    """The facts about a target that decoding, shards and drafters depend on.

    mask_id is never emitted; forbidden_ids (which holds mask_id) can't be best or drawn; any of stop_ids ends a row.
    max_positions: longest sequence, prompt included, in tokens. exact_prefix_cache: what is cached, if anything is, is
    what a full forward would compute, so drafted decoding can be lossless. grid_origin: where the block grid starts,
    position 0 (`absolute`) or the prompt's end (`prompt`). logit_shift: 1 where the logits at position i predict token
    i + 1. config_hash: sha256 of the target's config.
    """

    name: str
    block_length: int
    vocab_size: int
    mask_id: int
    stop_ids: tuple[int, ...]
    forbidden_ids: tuple[int, ...]
    max_positions: int
    exact_prefix_cache: bool = True
    grid_origin: Literal["absolute", "prompt"] = "absolute"
    cache: CacheKind = "exact"
    logit_shift: int = 0
    dtype: str = "float32"
    revision: str | None = None
    config_hash: str = ""
    tokenizer_hash: str = ""
    template_hash: str = ""

    def first_block(self, prompt_length: int) -> int:
        """Where the block that decoding opens with starts."""
        return prompt_length if self.grid_origin == "prompt" else prompt_length // self.block_length * self.block_length

    def blocks_end(self, prompt_length: int, max_new_tokens: int) -> int:
        """End of the last block that decoding may open."""
        start = self.first_block(prompt_length)
        return start - (start - prompt_length - max_new_tokens) // self.block_length * self.block_length


class PrefixCache(Protocol):
    """Keys and values of every row's finished blocks, and a scratch region for the last forward's replicas."""

    lengths: list[int]

    def add_row(self) -> int:
        """An empty row at the end; returns its index."""
        ...

    def drop_row(self, row: int) -> None:
        """Remove `row`; the last row takes its index."""
        ...

    def store(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Make the first `lengths[n]` positions of the last forward's sequence n the prefix of the empty `rows[n]`."""
        ...

    def promote(self, row: int, packed: Packed, state: int) -> None:
        """Append the keys and values that the last forward (`packed`) computed for `state` to `row`'s prefix."""
        ...


class Target(Protocol):
    """A diffusion language model that decodes block by block."""

    spec: TargetSpec
    tokenizer: Any

    @property
    def device(self) -> torch.device:
        """Where packed forwards run."""
        ...

    def new_cache(self) -> PrefixCache:
        """A prefix cache with no rows."""
        ...

    def prefill(self, cache: PrefixCache, rows: Sequence[int], prefixes: Sequence[Sequence[int]]) -> None:
        """Encode whole blocks of prompt (each a multiple of the block length, possibly empty) into empty rows."""
        ...

    def forward(self, packed: Packed, cache: PrefixCache) -> Tensor:
        """Hidden states [M, H] that predict `packed`'s masked slots; the replicas' keys stay in the scratch region."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary projection [m, V] of hidden states [m, H], float32 or better. Called in chunks."""
        ...


@runtime_checkable
class CanvasTarget(Target, Protocol):
    """A target with full attention: a block opens with a forward of the whole canvas, and no block is ever written."""

    def open_blocks(self, cache: PrefixCache, canvases: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        """Every row's canvas, masks to its end, and where its active block starts, before a forward."""
        ...

    def pack(self, rows: Sequence[RowStates], cache: PrefixCache, layout: Layout, pad_states: int) -> Packed:
        """Lay out the rows' replicas for `forward`."""
        ...
