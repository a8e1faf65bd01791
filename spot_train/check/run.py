"""The whole check of one subject, and its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spot_infer.drafters import ChainDrafter
from spot_infer.errors import SpotError
from spot_infer.graph import Drafter
from spot_infer.targets import with_float32_head
from spot_infer.transition import CommitRule
from spot_infer.verify import distribution_preserving
from spot_train.check.decoding import (
    BitwiseAudit,
    DecodingAudit,
    DecodingPlan,
    Progress,
    Resolution,
    audit_bitwise,
    audited,
    draft_free,
)
from spot_train.check.probes import choose_probes
from spot_train.check.structure import Line, audit_structure
from spot_train.check.subject import Subject
from spot_train.check.suggestions import Remedy, measure_remedies

_PROBES = 4


@dataclass
class Check:
    """What was found. bitwise_refused: why the mode can't be had, where it was asked for."""

    subject: Subject
    drafter: str
    lines: list[Line] = field(default_factory=list)
    audits: dict[str, DecodingAudit] = field(default_factory=dict)
    remedies: list[Remedy] = field(default_factory=list)
    bitwise: dict[str, BitwiseAudit] = field(default_factory=dict)
    bitwise_refused: str = ""

    @property
    def holds(self) -> bool:
        """Whether every line holds, rounding explains every flip, and bitwise runs, if any, agree to the bit."""
        parts: Sequence[Any] = [*self.lines, *self.audits.values(), *self.bitwise.values()]
        return all(part.holds for part in parts) and not self.bitwise_refused

    def to_dict(self) -> dict[str, Any]:
        target, settings = self.subject.target, self.subject.settings
        verdict, reason = distribution_preserving(target.spec, settings)
        return {
            "target": self.subject.name,
            "dtype": target.spec.dtype,
            "device": str(target.device),
            "block_length": target.spec.block_length,
            "drafter": self.drafter,
            "prompts": len(self.subject.requests),
            "max_new_tokens": settings.max_new_tokens,
            "batch_size": settings.batch_size,
            "budget": settings.budget,
            "layout": settings.layout,
            "boundary": settings.boundary,
            "pad": settings.pad,
            "distribution_preserving": verdict,
            "reason": reason,
            "holds": self.holds,
            "structure": [line.to_dict() for line in self.lines],
            "decoding": {name: audit.to_dict() for name, audit in self.audits.items()},
            "remedies": [remedy.to_dict() for remedy in self.remedies],
            "bitwise": {name: audit.to_dict() for name, audit in self.bitwise.items()},
            "bitwise_refused": self.bitwise_refused,
        }


def check(
    subject: Subject,
    drafter: Drafter | None = None,
    bitwise: bool = False,
    name: str = "chain",
    progress: Progress = lambda done: None,
) -> Check:
    """Audit the subject's structure, then its decoding under every resolution and, where anything flipped, what helps.

    With `bitwise` the decoding audited is that of bitwise mode, and nothing else. Without a `drafter` the untrained
    chain drafts.
    """
    target, settings = subject.target, subject.settings
    found = Check(subject, name)

    def drafter_of(resolution: Resolution) -> Drafter:
        return drafter or ChainDrafter(CommitRule(resolution=resolution))

    plan = DecodingPlan(subject.requests, settings, drafter_of, subject.resolutions)
    progress("structure")
    some = subject.requests[: 2 * _PROBES]
    runs = draft_free(target, some, settings)
    probes = choose_probes(target.spec, some, runs, settings.max_new_tokens, _PROBES)
    if not probes:
        raise SpotError("no prompt was decoded for two steps of one block; give longer ones or raise --max-new-tokens")
    found.lines = audit_structure(target, probes, settings.budget)
    if bitwise:
        try:
            for one in plan.resolutions:
                found.bitwise[str(one)] = audit_bitwise(target, plan, one, progress)
        except SpotError as error:
            found.bitwise_refused = str(error)
        return found
    found.audits = audited(target, plan, progress)
    if any(audit.batches.flips or audit.drafted.flips for audit in found.audits.values()):
        found.remedies = measure_remedies(target, plan, found.audits, with_float32_head, progress)
    return found
