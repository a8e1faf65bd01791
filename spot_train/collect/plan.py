"""What a collection will do, known before its first forward: shards, prompts, bytes. Knows nothing about decoding."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spot_infer.errors import SpotError
from spot_infer.table import TOP_K
from spot_infer.targets.protocol import TargetSpec
from spot_train.collect.methods import DRAFT_FREE, method_label, method_record
from spot_train.prompts import Prompt, PromptReport
from spot_train.recipe.recipe import Recipe
from spot_train.shards.files import shard_bytes
from spot_train.shards.store import shard_name


@dataclass(frozen=True)
class Plan:
    """projected_bytes: most that the missing shards can take, or what they will take at the finished ones' bytes a
    trajectory; methods: of the finished shards, how many each method decoded; milestones: leases before which a drafter
    is fitted."""

    leases: int
    kept: int
    trajectories: int
    kept_trajectories: int
    projected_bytes: int
    measured: bool
    repaired: tuple[str, ...]
    prompts: PromptReport
    batch_size: int = 0
    methods: Mapping[str, int] = field(default_factory=dict)
    milestones: tuple[int, ...] = ()


def make_plan(
    recipe: Recipe,
    spec: TargetSpec,
    leases: Sequence[Sequence[Prompt]],
    report: PromptReport,
    finished: Mapping[str, Mapping[str, Any]],
    repaired: Sequence[str],
    milestones: tuple[int, ...],
) -> Plan:
    """`finished`: attributes of the sound shards by name."""
    missing = [lease for index, lease in enumerate(leases) if shard_name(index) not in finished]
    kept = sum(attributes["counts"]["trajectories"] for attributes in finished.values())
    prompts = sum(map(len, missing))
    if kept:
        projected = sum(map(shard_bytes, finished.values())) * prompts // kept
    else:
        projected = sum(_most_bytes(recipe, spec, prompt) for lease in missing for prompt in lease)
    unsaid = method_record(DRAFT_FREE, spec)
    return Plan(
        leases=len(leases),
        kept=len(finished),
        trajectories=report.used,
        kept_trajectories=kept,
        projected_bytes=projected,
        measured=bool(kept),
        repaired=tuple(repaired),
        prompts=report,
        batch_size=int(recipe.collect.batch_size),
        methods=Counter(method_label(one["lease"].get("method", unsaid)) for one in finished.values()),
        milestones=milestones,
    )


def check_space(folder: Path, plan: Plan, margin_bytes: int) -> None:
    """Raise SpotError where the disk is too small for what is planned."""
    free = shutil.disk_usage(folder).free
    if plan.kept < plan.leases and free < plan.projected_bytes + margin_bytes:
        raise SpotError(
            f"{folder} has {free:,} bytes free, {plan.projected_bytes + margin_bytes:,} are needed "
            f"({plan.projected_bytes:,} projected and collect.free_space_margin_bytes {margin_bytes:,}); free space or "
            "lower prompts.limit or collect.max_new_tokens"
        )


def _most_bytes(recipe: Recipe, spec: TargetSpec, prompt: Prompt) -> int:
    """Bytes of one trajectory, uncompressed and decoded to its limit, one commit a step."""
    length = spec.block_length
    row = 1 + TOP_K * (1 + 4) + 4 + (6 if recipe.sampling.temperature > 0 else 0)
    step = 8 + 8 + 4 + 4 + 2
    end = len(prompt.prompt_ids) + recipe.collect.max_new_tokens
    total = 0
    for start in range(spec.first_block(len(prompt.prompt_ids)), end, length):
        masked = length - max(0, len(prompt.prompt_ids) - start)
        total += masked * (masked + 1) // 2 * row + masked * step + 4 * length
    return total
