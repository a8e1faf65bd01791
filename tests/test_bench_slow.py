"""The bench's two main suites on the tiny target, a kill in the middle of a run, and two processes against one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from collecting import child_server
from small_bench import bench_options, cells, run_bench, save_bench_files, untimed

from spot_train.bench.materials import BenchOptions
from spot_train.cli import run
from spot_train.results import RESULTS, read_rows

pytestmark = pytest.mark.slow


def test_the_tiny_target_is_sped_up_in_the_order_of_what_each_method_knows(tmp_path: Path) -> None:
    rows = run_bench(
        ["main", "oracle"],
        BenchOptions(
            recipe="builtin:recipes/tiny.yaml",
            out=tmp_path / "out",
            overrides={"collect.max_new_tokens": 64},
            drafters=(("shipped", "builtin:data/tiny-sdar-drafter-one-call"),),
            budgets=(8,),
            temperatures=(1.0,),
            prompts_replay=2,
            prompts_real=1,
        ),
    )
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
    command = ["bench", *suites, "--recipe", str(recipe), "--out", str(out)]
    command += [part for name, path in chosen.drafters for part in ("--drafter", f"{name}={path}")]
    command += ["--path", str(chosen.task_path), "--budget", "4", "--prompts-replay", "2", "--prompts-real", "2"]
    with child_server("small_bench") as server:
        for _ in range(3):
            child = server.Process(target=run, args=(command,))
            child.start()
            before = _size(out / RESULTS)
            while child.is_alive() and _size(out / RESULTS) == before:
                time.sleep(0.02)
            child.kill()
            child.join()
    assert run(command) == 0
    assert untimed(read_rows(out / RESULTS)) == untimed(whole)


def test_two_workers_give_the_rows_of_one(tmp_path: Path) -> None:
    recipe = save_bench_files(tmp_path)
    one = run_bench(["oracle"], bench_options(recipe, tmp_path / "one"))
    two = run_bench(["oracle"], bench_options(recipe, tmp_path / "two", workers=2))
    assert untimed(two) == untimed(one)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
