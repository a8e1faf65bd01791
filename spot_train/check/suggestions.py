"""What makes runs agree where they do not: every remedy, and what flips under it on the same prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from spot_infer.errors import SpotError
from spot_infer.packing import resolve_layout
from spot_infer.targets.protocol import CanvasTarget, Target
from spot_train.check.decoding import (
    DecodingAudit,
    DecodingPlan,
    Progress,
    audit_bitwise,
    audited,
    drafted_flips,
)
from spot_train.check.flips import Flips


@dataclass(frozen=True)
class Remedy:
    """How runs agree under one remedy. setting: its name in `docs/check.md`, which says how it is switched on; batches,
    drafted: flips by resolution, where the remedy bears on them; refused: why it does not apply here."""

    setting: str
    batches: dict[str, Flips]
    drafted: dict[str, Flips]
    refused: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "setting": self.setting,
            "batches": {name: flips.to_dict() for name, flips in self.batches.items()},
            "drafted": {name: flips.to_dict() for name, flips in self.drafted.items()},
            "refused": self.refused,
        }


def measure_remedies(
    target: Target,
    plan: DecodingPlan,
    plain: dict[str, DecodingAudit],
    float32_head: Callable[[Target], Target | None],
    progress: Progress = lambda done: None,
) -> list[Remedy]:
    """The plan as it is, then padded, in the other layout, with its logits and confidences in float32, in bitwise mode.

    `float32_head` makes a target whose head computes in float32, or None where it does already.
    """
    found = [_remedy("as it is", plain)]
    layout = resolve_layout(plan.settings.layout, target.device)
    other = "concat" if layout == "batch" else "batch"
    for setting, changes in (("pad", {"pad": True}), (f"layout {other}", {"layout": other})):
        progress(setting)
        found.append(Remedy(setting, {}, _drafted(target, replace(plan, settings=replace(plan.settings, **changes)))))
    if (finer := float32_head(target)) is not None:
        setting = "float32 head"
        found.append(_remedy(setting, audited(finer, plan, progress)))
    if not isinstance(target, CanvasTarget):
        found.append(_bitwise(target, plan, progress))
    return found


def _remedy(setting: str, audits: dict[str, DecodingAudit]) -> Remedy:
    return Remedy(
        setting,
        {name: audit.batches for name, audit in audits.items()},
        {name: audit.drafted for name, audit in audits.items()},
    )


def _drafted(target: Target, plan: DecodingPlan) -> dict[str, Flips]:
    """Drafted against draft-free, both as the plan says."""
    return {str(one): drafted_flips(target, plan, one, plan.under(one)) for one in plan.resolutions}


def _bitwise(target: Target, plan: DecodingPlan, progress: Progress) -> Remedy:
    setting = "bitwise"
    try:
        runs = {str(one): audit_bitwise(target, plan, one, progress).flips for one in plan.resolutions}
    except SpotError as error:
        return Remedy(setting, {}, {}, str(error))
    return Remedy(setting, {}, runs)
