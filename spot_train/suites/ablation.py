"""What each part of the drafter is worth, and what the loop's two knobs trade (paper table 17, and its tau sweep).

Structure (merged graph, the paper's tree, a chain of the trained order, an untrained chain), token hedge and tau by
forwards; padding and floor by wall time too.
"""

from __future__ import annotations

from typing import Any

from spot_train.bench.conditions import counted, places, some, timed, trained
from spot_train.bench.materials import Materials
from spot_train.bench.plan import DRAFT_FREE, CellGroup, Condition, Group, Wanted

SUITE = "ablation"
STRUCTURE: tuple[dict[str, Any], ...] = (
    {},
    {"merged": False},
    {"runner_up_below": 0.0},
    {"merged": False, "runner_up_below": 0.0},
    {"chain": True},
    {"tau": 0.7},
    {"tau": 1.5},
)
FLOORS = (0.02, 0.05, 0.1, 0.2)
LOOP: tuple[dict[str, Any], ...] = (
    {"pad": False},
    {"pad": True},
    {"floor": 0.1},
    {"floor": 0.1, "pad": True},
)


def groups(materials: Materials) -> list[Group]:
    """The smallest and the largest budget, T = 0, stop tokens honoured; the short form times the smallest alone."""
    full = materials.options.full
    budgets = sorted({min(materials.options.budgets), max(materials.options.budgets)})
    asked: list[Group] = []
    for target, rule in places(materials):
        condition = counted(materials, target, rule, prompts=some(materials))
        variants = [*STRUCTURE, *({"floor": floor} for floor in FLOORS)]
        asked.append(_cells(materials, condition, budgets, variants))
        asked.append(_cells(materials, timed(materials, target, rule), budgets if full else budgets[:1], list(LOOP)))
    return asked


def _cells(materials: Materials, condition: Condition, budgets: list[int], variants: list[dict[str, Any]]) -> CellGroup:
    wanted = [Wanted(SUITE, DRAFT_FREE)]
    for variant in variants:
        wanted += trained(SUITE, materials, condition, budgets, **variant)
    wanted += [Wanted(SUITE, "chain", budget) for budget in budgets]
    return CellGroup(condition, tuple(wanted))
