"""The commit rules of published generation loops, as values: what reproduces their ids, draft-free.

Their defaults are a number of steps, spread over the slots they fill; a `CommitRule` takes that as a quota by step.
"""

from __future__ import annotations

import math

from spot_infer.errors import SpotError


def even_quotas(slots: int, steps: int) -> tuple[int, ...]:
    """SDAR, LLaDA2.0 and LLaDA: `slots` over `steps` as evenly as possible, the remainder in the first steps."""
    if not 1 <= steps <= slots:
        raise SpotError(f"{steps} steps can't fill {slots} slots; use 1 to {slots} steps")
    each, more = divmod(slots, steps)
    return (each + 1,) * more + (each,) * (steps - more)


def linear_quotas(slots: int, steps: int, last_time: float = 1e-3) -> tuple[int, ...]:
    """Dream: time falls linearly from 1 to `last_time`; a step from t to s commits the floor of its share 1 - s/t of
    the masks left, the last step all of them. Steps that commit nothing change nothing and are left out."""
    if steps < 1:
        raise SpotError(f"{steps} steps can't fill {slots} slots; use at least 1")
    times = [1 - (1 - last_time) * step / steps for step in range(steps + 1)]
    left, quotas = slots, []
    for step in range(steps):
        share = 1 - times[step + 1] / times[step]
        quotas.append(math.floor(left * share) if step < steps - 1 else left)
        left -= quotas[-1]
    return tuple(quota for quota in quotas if quota)
