"""Throughput of collection by batch size and by workers, and its peak memory; `-m figures -s` prints the tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, median, stdev

import pytest
import torch

from spot_infer.decode import decode
from spot_train.collect.collect import collect, decode_settings, load_recipe_target, shared_attributes
from spot_train.collect.leases import Forwards, decode_lease, lease_requests, split_leases
from spot_train.collect.methods import named_method
from spot_train.compare.compare import settings_of
from spot_train.prompts import Prompt, load_prompts
from spot_train.recipe.recipe import Recipe, load_recipe
from spot_train.shards.files import StoredTrajectory, write_shard

pytestmark = pytest.mark.figures

SIZES = (100, 1_000, 10_000)
ALLOWED_MB = 40
PROMPTS = 64


def test_peak_memory_of_collection_is_flat(tmp_path: Path) -> None:
    peaks = {}
    for size in SIZES:
        command = [sys.executable, str(Path(__file__).parent / "collect_child.py"), str(size), str(tmp_path)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        peaks[size] = float(done.stdout.split()[-1])
        print(f"collect: {size:,} trajectories, peak {peaks[size]:.0f} MB")
    assert peaks[SIZES[-1]] < peaks[SIZES[0]] + ALLOWED_MB


def tiny_recipe(rows: int, lease: int) -> Recipe:
    settings = {"prompts.limit": PROMPTS, "collect.batch_size": rows, "collect.lease_prompts": lease}
    return load_recipe("builtin:recipes/tiny.yaml", settings)


@pytest.mark.parametrize("threads", [1, 2])
def test_throughput_by_batch_size(threads: int, tmp_path: Path) -> None:
    """The tiny target's first prompts in one lease: wall time, and CPU time, which a busy machine disturbs less."""
    target = load_recipe_target(tiny_recipe(1, PROMPTS))
    rates = {}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    for rows in (1, 2, 4, 8, 16, 32, 64):
        cpu, wall = time.process_time(), time.perf_counter()
        tally = collect(tiny_recipe(rows, PROMPTS), tmp_path / str(rows), target).tally
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        rates[rows] = tally.commits / cpu
        print(
            f"{threads} threads, batch size {rows:2}: {tally.commits / wall:.0f} commits/s, {rates[rows]:.0f} a CPU "
            f"second, {tally.forwards.nfe / tally.forwards.calls:.1f} rows a forward"
        )
    torch.set_num_threads(before)
    assert max(rates.values()) > rates[1]


def test_recording_adds_little_to_drafted_decoding(tmp_path: Path) -> None:
    """CPU time in pairs, four prompts each and in turns first; a shard's writing apart, since its part depends on the
    lease."""
    recipe = tiny_recipe(4, 4)
    target = load_recipe_target(recipe)
    method = named_method(recipe, target, "builtin:data/tiny-sdar-drafter", None, None)
    prompts, report = load_prompts(recipe, target)
    settings = decode_settings(recipe)

    def decoded(lease: list[Prompt]) -> list[object]:
        return list(decode(target, lease_requests(lease, 0), settings_of(method, settings), method.drafter))

    def recorded(lease: list[Prompt]) -> list[StoredTrajectory]:
        return [stored for _, stored, _ in decode_lease(target, lease, settings, method, 0, Forwards())]

    leases = 3 * split_leases(prompts, 4)[:10]
    stored = recorded(leases[0])
    shares = []
    for index, lease in enumerate(leases):
        spent = {}
        for way in (decoded, recorded) if index % 2 else (recorded, decoded):
            before = time.process_time()
            way(lease)  # type: ignore[operator]
            spent[way] = time.process_time() - before
        shares.append(spent[recorded] / spent[decoded] - 1)
    error = stdev(shares) / len(shares) ** 0.5
    print(f"recording adds {mean(shares):+.1%} ± {error:.1%}, median {median(shares):+.1%} of {len(shares)} pairs")
    attributes = {**shared_attributes(recipe, target, report), "lease": {"index": 0}}
    for times in (1, 16):
        before = time.process_time()
        write_shard(tmp_path / f"{times}.zarr", stored * times, attributes)
        print(f"writing {4 * times} trajectories: {time.process_time() - before:.2f} s")
    assert median(shares) < 0.05


def test_throughput_by_workers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spot_train.cli", "collect", "builtin:recipes/tiny.yaml"]
    settings = (f"prompts.limit={PROMPTS}", "collect.batch_size=8", "collect.lease_prompts=8")
    flags = [word for one in settings for word in ("--set", one)]
    for workers in ("1", "2"):
        done = subprocess.run(
            [*command, *flags, "--out", str(tmp_path / workers), "--workers", workers],
            check=True,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        found = re.findall(r"([\d,]+) commits/s", done.stderr)
        print(f"{workers} workers of one thread: {found[-1]} commits/s, their start included")
