"""The draft-free control's trajectories on a task's prompts, recorded once and kept as shards beside the results.

A shard is used again only while its checksums hold and everything it records equals what would be recorded now.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spot_infer.blocks import Step
from spot_infer.errors import SpotError
from spot_infer.noise import NOISE_VERSION, prompt_hash
from spot_infer.requests import Request
from spot_infer.table import TOP_K
from spot_train.bench.materials import Materials
from spot_train.bench.plan import Condition
from spot_train.collect.recording import decoded_trajectories
from spot_train.replay.replay import steps_of
from spot_train.shards.files import StoredTrajectory, check_shard, read_shard, write_shard
from spot_train.shards.store import shard_name
from spot_train.trajectory import Trajectory

FOLDER = "recorded"
SHARD_PROMPTS = 20
RECORDING_BATCH = 16


@dataclass(frozen=True)
class Recorded:
    """The control under one condition: requests and their trajectories, in the task's order."""

    requests: Sequence[Request]
    trajectories: Sequence[Trajectory]

    def steps(self) -> dict[int, list[Step]]:
        """Every request's steps, as an oracle reads them."""
        return {index: steps_of(one) for index, one in enumerate(self.trajectories)}


def recorded(materials: Materials, condition: Condition) -> Recorded:
    """The condition's trajectories, decoded now where no sound shard holds them."""
    target = materials.target(condition.target, condition.block_length)
    requests = materials.requests(condition)
    settings = dataclasses.replace(materials.settings(condition), batch_size=RECORDING_BATCH)
    facts = _facts(materials, condition)
    folder = materials.options.out / FOLDER / _digest(facts)
    folder.mkdir(parents=True, exist_ok=True)
    trajectories: list[Trajectory] = []
    for index, first in enumerate(range(0, len(requests), SHARD_PROMPTS)):
        lease = requests[first : first + SHARD_PROMPTS]
        path = folder / shard_name(index)
        attributes = {**facts, "prompt_hashes": [prompt_hash(one.prompt_ids) for one in lease]}
        kept = _kept(path, attributes)
        if kept is None:
            kept = decoded_trajectories(target, lease, settings)
            shutil.rmtree(path, ignore_errors=True)
            write_shard(path, [StoredTrajectory(one, one.prompt_hash, True) for one in kept], attributes)
        writes = target.spec.cache == "exact"
        stop_ids = settings.stops(target.spec)
        trajectories += [
            dataclasses.replace(one, writes=writes, max_new_tokens=condition.max_new_tokens, stop_ids=stop_ids)
            for one in kept[: len(lease)]
        ]
    return Recorded(requests, trajectories)


def generated(trajectory: Trajectory) -> tuple[int, ...]:
    """The generated ids that the user gets, up to and including the stop token."""
    length = trajectory.block_tokens.shape[-1]
    skipped = trajectory.prompt_length % length
    flat = trajectory.block_tokens.reshape(-1)[skipped : skipped + trajectory.returned_tokens]
    return tuple(flat.tolist())


def outputs(materials: Materials, condition: Condition) -> list[tuple[int, ...]]:
    """The generated ids of every prompt of the condition's control, in the task's order."""
    return [generated(one) for one in recorded(materials, condition).trajectories]


def _facts(materials: Materials, condition: Condition) -> dict[str, Any]:
    """All that a recorded trajectory depends on, as JSON."""
    values = {
        **materials.attributes(condition),
        "noise_version": NOISE_VERSION,
        "table_top_k": TOP_K,
        "decoding": {
            "max_new_tokens": condition.max_new_tokens,
            "ignore_stop": condition.ignore_stop,
            "stop": list(materials.settings(condition).stop),
            "batch_size": RECORDING_BATCH,
            "seed": condition.seed,
        },
        "task": materials.task.name,
    }
    return dict(json.loads(json.dumps(values)))


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _kept(path: Path, attributes: Mapping[str, Any]) -> list[Trajectory] | None:
    """The shard's trajectories if it is sound and holds at least these prompts under these facts."""
    try:
        there = check_shard(path)
    except SpotError:
        return None
    wanted = attributes["prompt_hashes"]
    if there["prompt_hashes"][: len(wanted)] != wanted:
        return None
    if any(there.get(key) != value for key, value in attributes.items() if key != "prompt_hashes"):
        return None
    return [stored.trajectory for stored in read_shard(path)]
