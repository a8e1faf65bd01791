"""The stale table: the target's conditionals at the masked slots of one state, rounded once to what shards hold.

Live drafters, training and replay all read tables made by `stale_table`, so none of them sees more precision than
another. Log-odds keep float32: rounded probabilities saturate and lose the order of certain slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spot_infer.logprob_levels import rounded

TOP_K = 32


@dataclass(frozen=True)
class StaleTable:
    """One state's table over its m masked slots, in ascending slot order.

    slots uint8 [m]; top_logprob float16 [m, 32], rounded to `logprob_levels`, and top_token int32 [m, 32], most
    probable first (-inf and -1 where the vocabulary is smaller, forbidden tokens left out); log_odds float32 [m] of the
    best allowed token; drawn_token int32 [m] and drawn_logprob float16 [m] at temperature > 0, else None.
    """

    slots: NDArray[np.uint8]
    top_logprob: NDArray[np.float16]
    top_token: NDArray[np.int32]
    log_odds: NDArray[np.float32]
    drawn_token: NDArray[np.int32] | None = None
    drawn_logprob: NDArray[np.float16] | None = None


class Tables(NamedTuple):
    """T tables laid end to end over M rows, what drafters read of them: table t is rows start[t]..start[t + 1].

    start i64 [T + 1], slot u8 [M], top_logprob f16 [M, 32], log_odds f32 [M], best i32 [M] (the likeliest token).
    """

    start: NDArray[np.int64]
    slot: NDArray[np.uint8]
    top_logprob: NDArray[np.float16]
    log_odds: NDArray[np.float32]
    best: NDArray[np.int32]

    def take(self, tables: NDArray[np.int64]) -> Tables:
        """The tables [T'] with these numbers, laid end to end; an empty one for -1."""
        first = self.start[np.maximum(tables, 0)]
        lengths = np.where(tables < 0, 0, self.start[np.maximum(tables, 0) + 1] - first)
        start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        rows = np.repeat(first - start[:-1], lengths) + np.arange(start[-1])
        return Tables(start, self.slot[rows], self.top_logprob[rows], self.log_odds[rows], self.best[rows])


def lay_tables(tables: Sequence[StaleTable | None]) -> Tables:
    """Tables laid end to end; None is an empty one."""
    lengths = [0 if table is None else len(table.slots) for table in tables]
    known = [table for table in tables if table is not None]
    return Tables(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([np.zeros(0, np.uint8), *(table.slots for table in known)]),
        np.concatenate([np.zeros((0, TOP_K), np.float16), *(table.top_logprob for table in known)]),
        np.concatenate([np.zeros(0, np.float32), *(table.log_odds for table in known)]),
        np.concatenate([np.zeros(0, np.int32), *(table.top_token[:, 0] for table in known)]),
    )


def stale_table(
    slots: Tensor,
    logits: Tensor,
    log_odds: Tensor,
    best: Tensor,
    log_normaliser: Tensor,
    forbidden_ids: Tensor,
    drawn: tuple[Tensor, Tensor] | None = None,
) -> StaleTable:
    """Round one state's answers into a table.

    slots [m]; logits [m, V]; log_odds, best, log_normaliser [m] from `transition.confidence`; drawn is
    (token [m], log-probability [m]) from `transition.draw`. The first column is always `best`.
    """
    allowed = logits.index_fill(-1, forbidden_ids, -torch.inf)
    allowed = allowed.scatter(-1, best[:, None], torch.inf)
    width = min(TOP_K, logits.shape[-1])
    order = allowed.topk(width, dim=-1).indices
    logprob = logits.index_fill(-1, forbidden_ids, -torch.inf).gather(-1, order) - log_normaliser[:, None]
    token = torch.where(torch.isfinite(logprob), order, -1)
    pad = (0, TOP_K - width)
    padded = torch.nn.functional.pad(logprob, pad, value=-torch.inf)
    return StaleTable(
        slots=slots.to(torch.uint8).cpu().numpy(),
        top_logprob=rounded(padded.to(torch.float16).cpu().numpy()),
        top_token=torch.nn.functional.pad(token, pad, value=-1).to(torch.int32).cpu().numpy(),
        log_odds=log_odds.to(torch.float32).cpu().numpy(),
        drawn_token=None if drawn is None else drawn[0].to(torch.int32).cpu().numpy(),
        drawn_logprob=None if drawn is None else drawn[1].to(torch.float16).cpu().numpy(),
    )


def split_table(table: StaleTable, counts: Sequence[int]) -> list[StaleTable]:
    """Cut a table over the concatenated slots of several states into one a state."""
    ends = np.cumsum(counts)
    parts = []
    for start, end in zip(ends - np.asarray(counts), ends, strict=True):
        rows = slice(int(start), int(end))
        parts.append(
            StaleTable(
                slots=table.slots[rows],
                top_logprob=table.top_logprob[rows],
                top_token=table.top_token[rows],
                log_odds=table.log_odds[rows],
                drawn_token=None if table.drawn_token is None else table.drawn_token[rows],
                drawn_logprob=None if table.drawn_logprob is None else table.drawn_logprob[rows],
            )
        )
    return parts
