"""Two runs of the same prompts, compared commit by commit: what flipped, how near it was, how far log-odds moved.

In float64 both agree exactly. In float32 and below another shape of a forward moves logits by rounding and a near-tie
can flip; this counts the flips, names them and tells near-ties from faults. Knows nothing about shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from spot_infer.divergence import Divergence
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets.protocol import Target
from spot_infer.transition import CommitRule, ranking_values
from spot_train.agreement import agreement
from spot_train.check.rounding import allowed_shift, needed_shift
from spot_train.trajectory import Trajectory


@dataclass(frozen=True)
class Flip:
    """Where one prompt's runs first differ. needed: how far the two quantities that decided must move for either
    choice; allowed: how far rounding may move them."""

    prompt: int
    divergence: Divergence
    needed: float
    allowed: float

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains it."""
        return self.needed <= self.allowed

    def to_dict(self) -> dict[str, Any]:
        one = self.divergence
        return {
            "prompt": self.prompt,
            "step": one.step,
            "kind": one.kind,
            "control": [list(commit) for commit in sorted(one.control)],
            "other": [list(commit) for commit in sorted(one.other)],
            "gap": one.gap,
            "log_odds": list(one.log_odds),
            "needed": self.needed,
            "allowed": self.allowed,
            "near_tie": self.near_tie,
        }


@dataclass(frozen=True)
class Flips:
    """identical: of `prompts`, how many committed the same steps in the same order; steps: compared, up to each first
    difference; flips: the first difference of each other prompt; largest_shift: largest change of a log-odds over the
    compared steps' tables."""

    prompts: int
    identical: int
    steps: int
    flips: tuple[Flip, ...]
    largest_shift: float

    @property
    def rate(self) -> float:
        """Flips a compared step."""
        return len(self.flips) / max(1, self.steps)

    @property
    def same_bits(self) -> bool:
        """Whether the runs agree to the bit in what they committed and in every log-odds behind it."""
        return self.identical == self.prompts and self.largest_shift == 0

    @property
    def faults(self) -> tuple[Flip, ...]:
        """Flips that rounding does not explain."""
        return tuple(flip for flip in self.flips if not flip.near_tie)

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompts": self.prompts,
            "identical": self.identical,
            "steps": self.steps,
            "rate": self.rate,
            "largest_shift": self.largest_shift,
            "flips": [flip.to_dict() for flip in self.flips],
        }


def compare_runs(
    target: Target,
    requests: Sequence[Request],
    control: Sequence[Trajectory],
    other: Sequence[Trajectory],
    settings: DecodeSettings,
) -> Flips:
    """Compare two recorded runs of `requests` under the rule, sampling and length of `settings`."""
    found = agreement(target, requests, control, other, settings)
    flips = [
        Flip(prompt, one, needed_shift(one, settings.rule), allowed_shift(one, target.spec.dtype))
        for prompt, one in found.flips
    ]
    return Flips(found.prompts, found.identical, found.steps, tuple(flips), found.log_odds_shift)


def count_ties(trajectories: Sequence[Trajectory], rule: CommitRule) -> tuple[int, int]:
    """Steps at which two masked slots or more share the largest ranking value, and steps that had two or more.

    The rule ranks by probability.
    """
    tied = asked = 0
    for one in trajectories:
        values = ranking_values(torch.from_numpy(one.log_odds), rule).numpy()
        for first, end in zip(one.step_start[:-1].tolist(), one.step_start[1:].tolist(), strict=True):
            asked += end - first > 1
            tied += int(np.count_nonzero(values[first:end] == values[first:end].max())) > 1
    return tied, asked
