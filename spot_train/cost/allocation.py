"""The budget that pays for itself against the best fixed one: a grid of (D, floor) tuned on other prompts, per curve.

Everything is replayed and predicted from a cost curve, so the figures are the same every time. Half of the trajectories
choose the grid's best cell for each curve, the other half measure it beside the budget that was tuned on nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spot_infer.allocate import MOST_STATES
from spot_infer.cost import CostCurve
from spot_infer.errors import SpotError
from spot_infer.graph import Drafter
from spot_train.bench.score_memory import ScoreMemory
from spot_train.cost.simulate import Rounds, predict, replay_rounds
from spot_train.trajectory import Trajectory

BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 20)
FLOORS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


def against_grid(
    drafter: Drafter,
    trajectories: Sequence[Trajectory],
    curves: Sequence[CostCurve],
    temperature: float = 0.0,
    budgets: Sequence[int] = BUDGETS,
    floors: Sequence[float] = FLOORS,
    progress: Callable[[str], None] = lambda done: None,
) -> list[dict[str, Any]]:
    """One row a curve: the grid's best budget and floor on the first half, and on the second half throughput ratio and
    NFE of that cell (`fixed`), of the budget that pays for itself (`auto`), their share, and the grid's best there."""
    half = len(trajectories) // 2
    if not half:
        raise SpotError("one trajectory can't both choose and measure; give at least two")
    tuning, measuring = trajectories[:half], trajectories[half:]
    remembered = [ScoreMemory().remembered(drafter) for _ in range(2)]
    grids: list[Mapping[tuple[int, float], Rounds]] = []
    for one, part in zip(remembered, (tuning, measuring), strict=True):
        grid = {}
        for budget in budgets:
            progress(f"budget {budget} of {len(part)} trajectories")
            for floor in floors:
                grid[budget, floor] = replay_rounds(one, part, budget, floor, False, temperature)
        grids.append(grid)
    rows = []
    for curve in curves:
        progress(f"auto on {curve.name}")
        auto = replay_rounds(remembered[1], measuring, MOST_STATES, 0.0, False, temperature, curve=curve)
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
