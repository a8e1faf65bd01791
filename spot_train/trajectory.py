"""One recorded trajectory of a target: a table and a step at every state it visited, ragged over masked slots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spot_infer.blocks import Commit, Step
from spot_infer.table import StaleTable


@dataclass(frozen=True)
class Trajectory:
    """N steps over M masked slots in all; row t holds the table computed AT state t, and step t is its own commit.

    prompt_length in tokens; returned_tokens: how many generated tokens the user gets (stop and limit applied).
    block_start int32 [N]: absolute position of the block that step t belongs to.
    step_start int64 [N + 1]: table t is rows step_start[t]..step_start[t + 1] of slot [M], top_logprob [M, 32],
    top_token [M, 32], log_odds [M] and, at temperature > 0, drawn_token [M] and drawn_logprob [M] (dtypes as in
    `StaleTable`). commit_start int64 [N + 1] does the same for commit_position and commit_token int32 [C].
    block_tokens int32 [blocks, L]: final tokens of the decoded blocks, the mask id where a row finished before a slot
    was filled; the first block starts at prompt_length // L * L, or at prompt_length under full attention. writes: a
    finished block costs a forward that writes it to the cache, which it does not under full attention. max_new_tokens:
    the limit it was decoded under, on which it depends whether a block may follow another; None where unknown.
    stop_ids: tokens that ended it, none where they were ignored.
    """

    prompt_hash: str
    prompt_length: int
    seed: int
    finish_reason: str
    returned_tokens: int
    block_start: NDArray[np.int32]
    step_start: NDArray[np.int64]
    slot: NDArray[np.uint8]
    top_logprob: NDArray[np.float16]
    top_token: NDArray[np.int32]
    log_odds: NDArray[np.float32]
    commit_start: NDArray[np.int64]
    commit_position: NDArray[np.int32]
    commit_token: NDArray[np.int32]
    block_tokens: NDArray[np.int32]
    drawn_token: NDArray[np.int32] | None = None
    drawn_logprob: NDArray[np.float16] | None = None
    writes: bool = True
    max_new_tokens: int | None = None
    stop_ids: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.block_start)

    def table(self, step: int) -> StaleTable:
        """The table computed at state `step`."""
        rows = slice(self.step_start[step], self.step_start[step + 1])
        drawn = self.drawn_token is not None and self.drawn_logprob is not None
        return StaleTable(
            slots=self.slot[rows],
            top_logprob=self.top_logprob[rows],
            top_token=self.top_token[rows],
            log_odds=self.log_odds[rows],
            drawn_token=self.drawn_token[rows] if drawn else None,  # type: ignore[index]
            drawn_logprob=self.drawn_logprob[rows] if drawn else None,  # type: ignore[index]
        )

    def step(self, step: int) -> Step:
        """What the target committed at state `step`."""
        rows = slice(self.commit_start[step], self.commit_start[step + 1])
        positions, tokens = self.commit_position[rows].tolist(), self.commit_token[rows].tolist()
        return frozenset(Commit(position, token) for position, token in zip(positions, tokens, strict=True))
