"""A bench on a small random target in float64, where replayed and decoded forwards must agree exactly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from small_target import REPO, save_small_target

from spot_infer.checkpoint import DrafterInfo, PretrainedDrafter, save_drafter
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_infer.transition import CommitRule
from spot_train.bench.materials import BenchOptions
from spot_train.bench.run import bench
from spot_train.results import Cell, Row, read_rows

TIMED = frozenset(("provenance", "wall_s", "drafter_s", "throughput_ratio", "spread"))


class Quiet:
    """A progress that counts groups and, where `stop_after` is set, dies like a killed bench would."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.done = 0
        self.kept = 0
        self.notes: Sequence[str] = ()

    def planned(self, groups: int, kept: int, notes: Sequence[str]) -> None:
        self.kept, self.notes = kept, notes

    def finished(self, sentence: str, rows: int, seconds: float) -> None:
        self.done += rows > 0
        if self.done == self.stop_after:
            raise KeyboardInterrupt


def save_bench_files(folder: Path) -> Path:
    """A target, one drafter of each rule, a pool of four prompts and a recipe; returns the recipe."""
    save_small_target(folder / "target")
    for seed, resolution in enumerate(("float32", "bfloat16")):
        torch.manual_seed(seed)
        config = OrderModelConfig(
            block_length=8, d_model=16, heads=2, layers=1, d_max=7, rule=CommitRule(resolution=resolution)
        )
        save_drafter(
            PretrainedDrafter(OrderModel(config), info=DrafterInfo(target={})), folder / f"drafter-{resolution}"
        )
    rows = (REPO / "data" / "pools" / "eval.jsonl").read_text().splitlines()
    chosen = [row for row in rows if json.loads(row)["family"] != "code"][:4]
    (folder / "pool.jsonl").write_text("\n".join(chosen) + "\n")
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "target: {path_or_id: ./target, dtype: float64, device: cpu}\n"
        "prompts: {sources: [{path_or_id: pool.jsonl}]}\n"
        "collect: {max_new_tokens: 12}\n"
    )
    return recipe


def bench_options(recipe: Path, out: Path, **changes: Any) -> BenchOptions:
    """Two prompts, one budget."""
    folder = recipe.parent
    fields: dict[str, Any] = {
        "drafters": tuple((name, str(folder / f"drafter-{name}")) for name in ("float32", "bfloat16")),
        "task_path": str(folder / "pool.jsonl"),
        "budgets": (4,),
        "temperatures": (1.0,),
        "prompts_replay": 2,
        "prompts_real": 2,
    }
    return BenchOptions(recipe=str(recipe), out=out, **fields | changes)


def run_bench(suites: Sequence[str], options: BenchOptions, progress: Quiet | None = None) -> list[Row]:
    """Every row of the results file after running the suites."""
    return read_rows(bench(suites, options, progress or Quiet()))


def untimed(rows: Sequence[Row]) -> list[str]:
    """The rows without what differs from run to run, in a fixed order."""
    return sorted(row.model_dump_json(exclude=set(TIMED)) for row in rows)


def cells(rows: Sequence[Row]) -> list[Cell]:
    return [row for row in rows if isinstance(row, Cell)]
