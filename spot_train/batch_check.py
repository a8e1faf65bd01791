"""How much batching moves what a target decodes: every prompt alone against the same prompts in batches.

In float64 both agree exactly. In float32 and below another batch shape moves logits by rounding and a near-tie can
flip; this counts the flips and measures their gaps. Knows nothing about shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from spot_infer.divergence import Divergence
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets.protocol import Target
from spot_train.agreement import agreement
from spot_train.recording import decoded_trajectories


@dataclass(frozen=True)
class BatchReport:
    """What batches of `batch_size` changed against batches of one.

    identical: of `prompts`, how many committed the same steps in the same order; steps: compared, up to each first
    difference; flips: the first difference of each other prompt, with its gap; largest_shift: largest change of a
    log-odds over the compared steps' tables.
    """

    dtype: str
    batch_size: int
    prompts: int
    identical: int
    steps: int
    flips: tuple[tuple[int, Divergence], ...]
    largest_shift: float

    @property
    def flip_rate(self) -> float:
        """Flips a compared step."""
        return len(self.flips) / max(1, self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, a flip's commits left out."""
        flips = [{"prompt": at, "step": flip.step, "kind": flip.kind, "gap": flip.gap} for at, flip in self.flips]
        return {**asdict(replace(self, flips=())), "flips": flips, "flip_rate": self.flip_rate}

    def sentence(self) -> str:
        """The report in one line."""
        gaps = sorted(flip.gap for _, flip in self.flips)
        largest = f", gaps up to {gaps[-1]:.2e}" if gaps else ""
        return (
            f"{self.dtype}, batches of {self.batch_size} against 1: {self.identical} of {self.prompts} prompts "
            f"identical, {len(gaps)} flips in {self.steps} steps ({self.flip_rate:.2e} a step{largest}); "
            f"log-odds moved by at most {self.largest_shift:.2e}"
        )


def compare_batch(target: Target, requests: Sequence[Request], settings: DecodeSettings) -> BatchReport:
    """Decode `requests` draft-free in batches of `settings.batch_size` and one by one, and compare."""
    batched, alone = (
        decoded_trajectories(target, requests, replace(settings, budget=0, batch_size=size))
        for size in (settings.batch_size, 1)
    )
    found = agreement(target, requests, alone, batched, settings)
    return BatchReport(
        target.spec.dtype,
        settings.batch_size,
        found.prompts,
        found.identical,
        found.steps,
        found.flips,
        found.log_odds_shift,
    )
