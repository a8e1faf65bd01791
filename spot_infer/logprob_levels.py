"""Log probabilities in eight bits: what every stale table is rounded to, live or recorded.

Level k of 0..254 is the log probability -20 (k / 254)^2: even steps in the root of the log, so that levels are dense
where a token is nearly certain, and -20 is the least that a drafter's features tell apart. Level 255 is no token.
`spot-train shards study` measures what fewer bits cost. Knows nothing about tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_LOGPROB = -20.0
LEVELS = 254
ABSENT = 255
_LOGPROB = np.append(LEAST_LOGPROB * (np.arange(LEVELS + 1) / LEVELS) ** 2, -np.inf).astype(np.float16)


def to_levels(logprob: NDArray[np.float16]) -> NDArray[np.uint8]:
    """The nearest level of each log probability; of -inf, the level of no token. Keeps order, never reverses it.

    Float16 in, so that a table in float16 logs, as earlier releases recorded it, has the levels that it has live.
    """
    share = np.sqrt(np.clip(logprob.astype(np.float32) / np.float32(LEAST_LOGPROB), 0, 1))
    return np.where(np.isfinite(logprob), np.rint(share * np.float32(LEVELS)), ABSENT).astype(np.uint8)


def from_levels(levels: NDArray[Any]) -> NDArray[np.float16]:
    """The log probabilities of levels; -inf where there is no token."""
    return _LOGPROB[levels]


def rounded(logprob: NDArray[np.float16]) -> NDArray[np.float16]:
    """Log probabilities rounded to the nearest level. Rounding twice changes nothing."""
    return from_levels(to_levels(logprob))
