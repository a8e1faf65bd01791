"""The budget that pays for itself against the best fixed one: a grid of (D, floor) tuned on other prompts, per curve.

Rounds are counted, by replay or by decoding, and their time is predicted from a cost curve, so the figures are the same
every time. Half of the prompts choose the grid's best cell for each curve, the other half measure it beside the budget
that was tuned on nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from spot_infer.allocate import MOST_STATES
from spot_infer.cost import CostCurve
from spot_infer.errors import SpotError
from spot_infer.graph import Drafter
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets.protocol import Target
from spot_train.bench.score_memory import ScoreMemory
from spot_train.compare.compare import Method, run_methods
from spot_train.cost.simulate import Rounds, decoded_rounds, predict, replay_rounds
from spot_train.trajectory import Trajectory

Prompt = TypeVar("Prompt")
BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 20)
FLOORS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


class Counted(Protocol):
    def __call__(self, budget: int, floor: float = 0.0, curve: CostCurve | None = None) -> Rounds:
        """What a drafter does on some prompts under a budget and floor, or with the budget that pays on `curve`."""


def replayed(drafter: Drafter, trajectories: Sequence[Trajectory], temperature: float) -> tuple[Counted, Counted]:
    """Both halves of `trajectories` by replay, which knows neither responses nor tables of the next block."""
    first, second = _halves(trajectories)
    return (
        partial(replay_rounds, ScoreMemory().remembered(drafter), first, temperature=temperature),
        partial(replay_rounds, ScoreMemory().remembered(drafter), second, temperature=temperature),
    )


def decoded(
    drafter: Drafter, target: Target, requests: Sequence[Request], settings: DecodeSettings
) -> tuple[Counted, Counted]:
    """Both halves of `requests` by decoding, each request by itself where drafts have to pay."""
    first, second = _halves(requests)
    return partial(_decoded, drafter, target, first, settings), partial(_decoded, drafter, target, second, settings)


def _halves(prompts: Sequence[Prompt]) -> tuple[Sequence[Prompt], Sequence[Prompt]]:
    half = len(prompts) // 2
    if not half:
        raise SpotError("one prompt can't both choose and measure; give at least two")
    return prompts[:half], prompts[half:]


def _decoded(
    drafter: Drafter,
    target: Target,
    requests: Sequence[Request],
    settings: DecodeSettings,
    budget: int,
    floor: float = 0.0,
    curve: CostCurve | None = None,
) -> Rounds:
    method = Method("drafted", budget, drafter, floor, curve=curve)
    alone = settings if curve is None else replace(settings, batch_size=1)
    (run,) = run_methods(target, requests, [method], alone)
    return decoded_rounds(run, requests, target.spec.block_length)


def against_grid(
    tuning: Counted,
    measuring: Counted,
    curves: Sequence[CostCurve],
    budgets: Sequence[int] = BUDGETS,
    floors: Sequence[float] = FLOORS,
    progress: Callable[[str], None] = lambda done: None,
) -> list[dict[str, Any]]:
    """One row a curve: the grid's best budget and floor on the prompts of `tuning`, and on those of `measuring`
    throughput ratio and NFE of that cell (`fixed`), of the budget that pays for itself (`auto`), their share, and the
    grid's best there."""
    grids: list[Mapping[tuple[int, float], Rounds]] = []
    for name, counted in (("tuning", tuning), ("measuring", measuring)):
        grid = {}
        for budget in budgets:
            progress(f"{name}: budget {budget}")
            for floor in floors:
                grid[budget, floor] = counted(budget, floor)
        grids.append(grid)
    rows = []
    for curve in curves:
        progress(f"auto on {curve.name}")
        auto = measuring(MOST_STATES, curve=curve)
        best, ceiling = (max(grid, key=lambda cell: _ratio(curve, grid[cell])) for grid in grids)
        fixed = grids[1][best]
        rows.append(
            {
                "curve": curve.name,
                "n": fixed.rows,
                "budget": best[0],
                "floor": best[1],
                "fixed": _ratio(curve, fixed),
                "auto": _ratio(curve, auto),
                "share": _ratio(curve, auto) / _ratio(curve, fixed),
                "share_of_best_here": _ratio(curve, auto) / _ratio(curve, grids[1][ceiling]),
                "fixed_nfe": fixed.nfe / fixed.rows,
                "auto_nfe": auto.nfe / auto.rows,
                "auto_replicas": sum(size * count for size, count in auto.sizes.items()) / auto.nfe,
                "drafter_included": curve.drafter is not None,
            }
        )
    return rows


def _ratio(curve: CostCurve, rounds: Rounds) -> float:
    return predict(curve, rounds).throughput_ratio
