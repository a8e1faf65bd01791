"""The block grid, block states and commits (paper section 4.1). Knows nothing about models or tokenizers.

Letters: L is the block length. A slot is 0..L-1 inside a block, a position is absolute; the grid starts at position 0,
so the tail of a prompt shares its block with the first generated tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Commit(NamedTuple):
    """One token written by the target at an absolute position."""

    position: int
    token: int


Step = frozenset[Commit]
"""What one application of the transition writes: one commit under the default rule, several under a threshold."""


@dataclass(frozen=True)
class BlockState:
    """The active block: `tokens` of length L at absolute positions `start`.., `mask_id` where nothing is committed."""

    start: int
    tokens: tuple[int, ...]
    mask_id: int

    @cached_property
    def masked_slots(self) -> tuple[int, ...]:
        return tuple(slot for slot, token in enumerate(self.tokens) if token == self.mask_id)

    @property
    def finished(self) -> bool:
        return self.mask_id not in self.tokens

    def with_commits(self, commits: Iterable[Commit]) -> BlockState:
        """The state after `commits`; every one must fall on a masked slot of this block."""
        tokens = list(self.tokens)
        for position, token in commits:
            slot = position - self.start
            if not 0 <= slot < len(tokens) or tokens[slot] != self.mask_id:
                raise ValueError(f"position {position} is not a masked position of the block at {self.start}")
            tokens[slot] = token
        return BlockState(self.start, tuple(tokens), self.mask_id)

    def following(self) -> BlockState:
        """The block after this one, all masked: the state that a finished block leads to."""
        length = len(self.tokens)
        return BlockState(self.start + length, (self.mask_id,) * length, self.mask_id)


def unfold(root: BlockState, commits: Iterable[Commit], end: int) -> tuple[BlockState, ...] | None:
    """The state that `commits` lead to from `root`, behind the blocks that they finish on the way, first block first.

    A finished block's state is the all-masked block after it. None where no state is: decoding stops in the block that
    holds `end` - 1, the last position it may fill, never commits beyond a block that is not finished, and never on a
    position that is not masked.
    """
    blocks: list[BlockState] = []
    state, rest = root, set(commits)
    while True:
        after = state.start + len(state.tokens)
        here = {commit for commit in rest if commit.position < after}
        rest -= here
        try:
            state = state.with_commits(here)
        except ValueError:
            return None
        if not state.finished:
            return None if rest else (*blocks, state)
        if after >= end:
            return None
        blocks.append(state)
        state = state.following()


def open_block(canvas: Sequence[int], start: int, block_length: int, mask_id: int) -> BlockState:
    """The block at `start`: what `canvas` (prompt and finished blocks) already holds of it, masks after that."""
    known = tuple(canvas[start : start + block_length])
    return BlockState(start, known + (mask_id,) * (block_length - len(known)), mask_id)


def finished_length(
    generated: Sequence[int], mask_id: int, stop_ids: Collection[int], max_new_tokens: int
) -> int | None:
    """How many generated tokens a row returns once it is finished, or None while it is not.

    `generated` starts at the first position after the prompt and may hold masks. A row finishes when every position
    before the length limit, or up to and including the first stop token, is filled.
    """
    for index in range(max_new_tokens):
        token = generated[index] if index < len(generated) else mask_id
        if token == mask_id:
            return None
        if token in stop_ids:
            return index + 1
    return max_new_tokens
