"""The two-minute bench on the tiny target, a kill in the middle of a run, and two processes against one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_bench import bench_options, cells, run_bench, save_bench_files, untimed
from small_target import REPO

from spot_train.bench.materials import BenchOptions
from spot_train.results import RESULTS, read_rows
from spot_train.suites import SUITES

pytestmark = pytest.mark.slow


def test_every_suite_on_the_tiny_target(tmp_path: Path) -> None:
    rows = run_bench(
        list(SUITES),
        BenchOptions(
            recipe="builtin:recipes/tiny.yaml",
            out=tmp_path / "out",
            drafters=(("shipped", "builtin:data/tiny-sdar-drafter-one-call"),),
            budgets=(8,),
            temperatures=(1.0,),
            prompts_replay=4,
            prompts_real=1,
        ),
    )
    assert {row.suite for row in rows} == set(SUITES)
    for cell in cells(rows):
        if cell.suite == "main" and cell.method != "draft-free":
            assert cell.reduction > 1, (cell.method, cell.mode)
        if cell.verifier == "coupled" and cell.identical is not None:
            assert cell.identical + len(cell.divergences or ()) == cell.n
    rate = {
        cell.method: cell.reduction
        for cell in cells(rows)
        if cell.suite == "oracle" and cell.rule["resolution"] == "float32" and not cell.ignore_stop
    }
    assert rate["chain"] < rate["spot"] < rate["position_oracle"] <= rate["joint_oracle"]


def test_a_bench_killed_by_the_system_resumes_on_the_command_line(tmp_path: Path) -> None:
    recipe = save_bench_files(tmp_path)
    suites = ["oracle", "coverage", "transfer"]
    whole = run_bench(suites, bench_options(recipe, tmp_path / "whole"))
    out = tmp_path / "killed"
    chosen = bench_options(recipe, out)
    command = [sys.executable, "-m", "spot_train.cli", "bench", *suites, "--recipe", str(recipe), "--out", str(out)]
    command += [part for name, path in chosen.drafters for part in ("--drafter", f"{name}={path}")]
    command += ["--path", str(chosen.task_path), "--budget", "4", "--prompts-replay", "2", "--prompts-real", "2"]
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    for _ in range(3):
        child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = _size(out / RESULTS)
        while child.poll() is None and _size(out / RESULTS) == before:
            time.sleep(0.05)
        child.send_signal(signal.SIGKILL)
        child.wait()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert untimed(read_rows(out / RESULTS)) == untimed(whole)


def test_two_workers_give_the_rows_of_one(tmp_path: Path) -> None:
    recipe = save_bench_files(tmp_path)
    one = run_bench(["oracle", "coverage"], bench_options(recipe, tmp_path / "one"))
    two = run_bench(["oracle", "coverage"], bench_options(recipe, tmp_path / "two", workers=2))
    assert untimed(two) == untimed(one)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
