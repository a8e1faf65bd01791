"""How far a ratio of sums could move with other prompts: percentile bootstrap. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 1000


def ratio_spread(numerator: Sequence[float], denominator: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """95% interval of sum(numerator) / sum(denominator) when units are drawn again with replacement.

    A unit is a prompt, or a batch for what is only measured a batch. None below two units or where a resampled
    denominator vanishes. The same seed resamples two methods of one table alike.
    """
    above, below = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    if len(above) < 2:
        return None
    drawn = np.random.default_rng(seed).integers(len(above), size=(RESAMPLES, len(above)))
    sums = below[drawn].sum(axis=1)
    if not sums.all():
        return None
    low, high = np.percentile(above[drawn].sum(axis=1) / sums, [2.5, 97.5])
    return float(low), float(high)


def speed_spread(
    control_tokens: Sequence[int], control_s: Sequence[float], tokens: Sequence[int], seconds: Sequence[float]
) -> tuple[float, float] | None:
    """95% interval of the ratio of tokens a second over the control's; every argument holds one value a batch."""
    if len(seconds) < 2:
        return None
    drawn = np.random.default_rng(0).integers(len(seconds), size=(RESAMPLES, len(seconds)))
    rates = [
        np.asarray(count, dtype=float)[drawn].sum(axis=1) / np.asarray(time, dtype=float)[drawn].sum(axis=1)
        for count, time in ((tokens, seconds), (control_tokens, control_s))
    ]
    low, high = np.percentile(rates[0] / rates[1], [2.5, 97.5])
    return float(low), float(high)
