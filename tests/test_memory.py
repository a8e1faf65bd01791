"""Peak memory of reading, verifying and fitting does not grow with the trajectories; `-m figures -s` prints it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_shards import SHARED, stored

from spot_train.shards.files import attributes_digest, read_attributes, write_shard
from spot_train.shards.store import shard_name, write_manifest
from spot_train.trajectory import Trajectory

pytestmark = pytest.mark.figures

L = 16
A_SHARD = 50
SIZES = (100, 1_000, 10_000)
RESIDENT = 2
OWN = {"block_length": L, "decoding": {"max_new_tokens": L}}
ALLOWED_MB = 40
"""Noise of the allocator. 10,000 trajectories take 270 MB, what training reads of them 94, that of two shards 1."""


def wide_trajectory(seed: int) -> Trajectory:
    """One block of 16 commits with random tables."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(L)
    open_slots = [np.sort(order[step:]) for step in range(L)]
    rows = sum(map(len, open_slots))
    return Trajectory(
        prompt_hash=rng.bytes(32).hex(),
        prompt_length=L,
        seed=seed,
        finish_reason="length",
        returned_tokens=L,
        block_start=np.full(L, L, np.int32),
        step_start=np.concatenate([[0], np.cumsum([len(slots) for slots in open_slots])]).astype(np.int64),
        slot=np.concatenate(open_slots).astype(np.uint8),
        top_logprob=-np.sort(rng.exponential(4, (rows, 32))).astype(np.float16),
        top_token=rng.integers(0, 1000, (rows, 32)).astype(np.int32),
        log_odds=rng.normal(0, 4, rows).astype(np.float32),
        commit_start=np.arange(L + 1, dtype=np.int64),
        commit_position=(L + order).astype(np.int32),
        commit_token=rng.integers(0, 1000, L).astype(np.int32),
        block_tokens=rng.integers(0, 1000, (1, L)).astype(np.int32),
    )


def repeated_set(folder: Path, first: Path, trajectories: int) -> Path:
    """A set of `trajectories`, its shards the one at `first` over and over, each under a lease of its own."""
    attributes = read_attributes(first)
    written = {}
    for index in range(trajectories // A_SHARD):
        name = shard_name(index)
        own = {**attributes, "lease": {"index": index}}
        own["sha256"] = attributes_digest(own)
        for file in attributes["files"]:
            (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
            os.link(first / file, folder / name / file)
        root = json.loads((first / "zarr.json").read_text())
        (folder / name / "zarr.json").write_text(json.dumps({**root, "attributes": own}))
        written[name] = own
    write_manifest(folder, {**SHARED, **OWN}, {}, {}, len(written), written)
    return folder


@pytest.mark.parametrize("action", ["read", "verify", "fit"])
def test_peak_memory_is_flat(action: str, tmp_path: Path) -> None:
    items = stored(tuple(wide_trajectory(seed) for seed in range(A_SHARD)))
    write_shard(tmp_path / "first", items, {**SHARED, **OWN, "lease": {"index": 0}})
    peaks = {}
    for size in SIZES:
        folder = repeated_set(tmp_path / str(size), tmp_path / "first", size)
        child = Path(__file__).parent / "memory_child.py"
        command = [sys.executable, str(child), action, str(folder), str(tmp_path / f"out-{size}"), str(RESIDENT)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        peaks[size] = float(done.stdout.split()[-1])
        print(f"{action}: {size:,} trajectories, peak {peaks[size]:.0f} MB")
    assert peaks[SIZES[-1]] < peaks[SIZES[0]] + ALLOWED_MB
