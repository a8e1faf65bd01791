"""Prompts decoded alone, in batches and drafted, under one resolution of the commit rule: what flipped, what tied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spot_infer.bitwise import bitwise_settings
from spot_infer.graph import Drafter
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets.protocol import Target
from spot_train.check.flips import Flips, compare_runs, count_ties
from spot_train.collect.recording import decoded_trajectories
from spot_train.trajectory import Trajectory

Resolution = str | float
RESOLUTIONS: tuple[Resolution, ...] = ("float32", "bfloat16")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class DecodingPlan:
    """What is decoded: greedily, one commit a step ranked by probability. settings: length, batch, layout and budget of
    the drafted runs; resolutions: of the commit rule, each audited apart."""

    requests: Sequence[Request]
    settings: DecodeSettings
    drafter: Callable[[Resolution], Drafter]
    """The drafter of a resolution."""
    resolutions: Sequence[Resolution] = RESOLUTIONS

    def under(self, resolution: Resolution) -> DecodeSettings:
        """The drafted runs' settings under a resolution."""
        return replace(self.settings, rule=replace(self.settings.rule, resolution=resolution))


@dataclass(frozen=True)
class DecodingAudit:
    """Under one resolution. tied: steps at which slots tie for the next commit, of `asked` with more than one masked;
    batches: draft-free in batches against one by one; drafted: against draft-free in the same batches."""

    resolution: Resolution
    tied: int
    asked: int
    batches: Flips
    drafted: Flips

    @property
    def tie_rate(self) -> float:
        return self.tied / max(1, self.asked)

    @property
    def holds(self) -> bool:
        """Whether rounding explains everything that flipped."""
        return not self.batches.faults and not self.drafted.faults

    def to_dict(self) -> dict[str, Any]:
        return {
            "resolution": self.resolution,
            "tied": self.tied,
            "asked": self.asked,
            "tie_rate": self.tie_rate,
            "batches": self.batches.to_dict(),
            "drafted": self.drafted.to_dict(),
            "holds": self.holds,
        }


@dataclass(frozen=True)
class BitwiseAudit:
    """Drafted against draft-free in bitwise mode, under one resolution."""

    resolution: Resolution
    flips: Flips

    @property
    def holds(self) -> bool:
        return self.flips.same_bits

    def to_dict(self) -> dict[str, Any]:
        return {"resolution": self.resolution, "holds": self.holds, **self.flips.to_dict()}


def draft_free(target: Target, requests: Sequence[Request], settings: DecodeSettings) -> list[Trajectory]:
    """The control: no drafts, finished blocks written by forwards of their own."""
    return decoded_trajectories(target, requests, replace(settings, budget=0, boundary="separate"))


def drafted_flips(target: Target, plan: DecodingPlan, resolution: Resolution, settings: DecodeSettings) -> Flips:
    """Drafted against draft-free decoding, both under `settings`."""
    free = draft_free(target, plan.requests, settings)
    drafted = decoded_trajectories(target, plan.requests, settings, plan.drafter(resolution))
    return compare_runs(target, plan.requests, free, drafted, settings)


def audit_decoding(
    target: Target, plan: DecodingPlan, resolution: Resolution, progress: Progress = lambda done: None
) -> DecodingAudit:
    """Decode the plan's prompts one by one, in batches, and drafted, and compare."""
    settings = plan.under(resolution)
    progress(f"{resolution} rule: one by one")
    alone = draft_free(target, plan.requests, replace(settings, batch_size=1))
    progress(f"{resolution} rule: in batches of {settings.batch_size}")
    free = draft_free(target, plan.requests, settings)
    progress(f"{resolution} rule: drafted")
    drafted = decoded_trajectories(target, plan.requests, settings, plan.drafter(resolution))
    tied, asked = count_ties(free, settings.rule)
    return DecodingAudit(
        resolution,
        tied,
        asked,
        compare_runs(target, plan.requests, alone, free, settings),
        compare_runs(target, plan.requests, free, drafted, settings),
    )


def audited(target: Target, plan: DecodingPlan, progress: Progress = lambda done: None) -> dict[str, DecodingAudit]:
    """The audits of all the plan's resolutions, by name."""
    return {str(one): audit_decoding(target, plan, one, progress) for one in plan.resolutions}


def audit_bitwise(
    target: Target, plan: DecodingPlan, resolution: Resolution, progress: Progress = lambda done: None
) -> BitwiseAudit:
    """Decode the plan's prompts draft-free and drafted in bitwise mode, and compare every bit.

    Raises SpotError where this machine or target rules the mode out.
    """
    instead = replace(plan.under(resolution), layout="batch", boundary="separate", pad=False)
    progress(f"{resolution} rule: bitwise")
    return BitwiseAudit(
        resolution, drafted_flips(target, plan, resolution, bitwise_settings(instead, plan.settings.budget))
    )
