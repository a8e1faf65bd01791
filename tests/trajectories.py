"""Synthetic trajectories for tests of shards: right in shape and dtype, random in content, no target needed."""

from __future__ import annotations

import hashlib

import numpy as np

from spot_infer.table import TOP_K
from spot_train.shard_files import StoredTrajectory
from spot_train.trajectory import Trajectory


def trajectory(seed: int, blocks: int = 2, block_length: int = 4, drawn: bool = False, quota: int = 1) -> Trajectory:
    """`blocks` blocks filled in a random order, `quota` slots a step, the first with a prompt tail of seed % L tokens."""
    rng = np.random.default_rng(seed)
    tail = seed % block_length
    starts, slots, commits = [], [], []
    for block in range(blocks):
        masked = set(range(tail if block == 0 else 0, block_length))
        while masked:
            chosen = rng.choice(sorted(masked), size=min(quota, len(masked)), replace=False).tolist()
            starts.append(block * block_length)
            slots.append(sorted(masked))
            commits.append([(block * block_length + slot, int(rng.integers(50))) for slot in sorted(chosen)])
            masked -= set(chosen)
    rows = sum(len(each) for each in slots)
    flat = np.array([commit for step in commits for commit in step], dtype=np.int32).reshape(-1, 2)
    return Trajectory(
        prompt_hash=hashlib.sha256(f"prompt {seed}".encode()).hexdigest(),
        prompt_length=tail,
        seed=int(rng.integers(2**63)) * 2 + 1,
        finish_reason="stop" if seed % 2 else "length",
        returned_tokens=len(flat),
        block_start=np.array(starts, dtype=np.int32),
        step_start=np.cumsum([0] + [len(each) for each in slots]).astype(np.int64),
        slot=np.array([slot for each in slots for slot in each], dtype=np.uint8),
        top_logprob=-rng.random((rows, TOP_K)).astype(np.float16),
        top_token=rng.integers(0, 1000, (rows, TOP_K)).astype(np.int32),
        log_odds=rng.normal(size=rows).astype(np.float32),
        commit_start=np.cumsum([0] + [len(each) for each in commits]).astype(np.int64),
        commit_position=np.ascontiguousarray(flat[:, 0]),
        commit_token=np.ascontiguousarray(flat[:, 1]),
        block_tokens=rng.integers(0, 1000, (blocks, block_length)).astype(np.int32),
        drawn_token=rng.integers(0, 1000, rows).astype(np.int32) if drawn else None,
        drawn_logprob=-rng.random(rows).astype(np.float16) if drawn else None,
    )


def stored(seed: int, **shape: int) -> StoredTrajectory:
    """A synthetic trajectory as a shard holds it; every third is held out."""
    return StoredTrajectory(trajectory(seed, **shape), hashlib.sha256(f"{seed}".encode()).hexdigest(), seed % 3 == 0)
