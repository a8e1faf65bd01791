"""Throughput of collection by batch size and by workers, and its peak memory; `-m figures -s` prints the tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def commits_a_second(out: Path, rows: int, threads: int, *more: str) -> float:
    """Of collecting the tiny target's first prompts in one lease a worker."""
    settings = {"prompts.limit": PROMPTS, "collect.batch_size": rows, "collect.lease_prompts": PROMPTS}
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "spot_train.cli", "collect", "builtin:recipes/tiny.yaml", "--out", str(out)]
    done = subprocess.run(
        [*command, *flags, *more],
        check=True,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    found = re.findall(r"([\d,]+) commits/s", done.stderr)
    return float(found[-1].replace(",", ""))


def test_throughput_by_batch_size(tmp_path: Path) -> None:
    rates = {}
    for rows in (1, 2, 4, 8, 16, 32, 64):
        rates[rows] = commits_a_second(tmp_path / str(rows), rows, threads=2)
        print(f"batch size {rows:2}: {rates[rows]:.0f} commits/s on two threads")
    assert max(rates.values()) > 1.5 * rates[1]


def test_throughput_by_workers(tmp_path: Path) -> None:
    lease = ("--set", "collect.lease_prompts=8")
    for workers in (1, 2):
        rate = commits_a_second(tmp_path / str(workers), 8, 1, *lease, "--workers", str(workers))
        print(f"{workers} workers of one thread, batch size 8, leases of 8: {rate:.0f} commits/s, start included")
