"""What rounding may do to logits and to a choice between two commits; what it may not is a fault. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spot_infer.divergence import Divergence
from spot_infer.transition import CommitRule, ranking_values


@dataclass(frozen=True)
class Rounding:
    """Shares of the largest logit in magnitude. shapes: most that another shape of a forward may move a logit by before
    it is a wrong computation; flip: most that a logit may have to move by for a flip to count as a near-tie."""

    shapes: float
    flip: float


ROUNDING = {
    "float64": Rounding(1e-9, 1e-12),
    "float32": Rounding(2e-4, 5e-6),
    "float16": Rounding(1e-2, 3e-3),
    "bfloat16": Rounding(5e-2, 2e-2),
}


def rounding_of(dtype: str) -> Rounding:
    """The rounding of weights in `dtype`; coarser ones than those known count as bfloat16."""
    return ROUNDING.get(dtype, ROUNDING["bfloat16"])


def needed_shift(divergence: Divergence, rule: CommitRule) -> float:
    """Least amount by which the two quantities that decided must move, towards each other, for either choice.

    Log-odds of the two slots where the order differs, logits of the two tokens where only they do. Under a coarse
    resolution the ranking itself jumps: a slot that sits at the edge of a step needs to move by next to nothing,
    however far the other one is.
    """
    if divergence.kind == "token" or divergence.gap == float("inf"):
        return divergence.gap / 2
    low, high = sorted(divergence.log_odds)
    near, far = 0.0, (high - low) / 2
    if _reaches(low, high, 0.0, rule):
        return 0.0
    for _ in range(60):
        middle = (near + far) / 2
        near, far = (near, middle) if _reaches(low, high, middle, rule) else (middle, far)
    return far


def allowed_shift(divergence: Divergence, dtype: str) -> float:
    """How far rounding in `dtype` may move what decided: log-odds move by up to twice what a logit does."""
    share = rounding_of(dtype).flip * (1 if divergence.kind == "token" else 2)
    return share * divergence.largest_logit


def _reaches(low: float, high: float, shift: float, rule: CommitRule) -> bool:
    """Whether the lower of two log-odds ranks at least as high as the other once both moved by `shift`."""
    one, other = ranking_values(torch.tensor([low + shift, high - shift], dtype=torch.float64), rule).tolist()
    return one >= other
