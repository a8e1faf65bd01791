"""How forwards and speed respond to the budget (paper table 20, fig. 3)."""

from __future__ import annotations

from spot_train.bench.conditions import calibrated, counted, places, some, timed, trained, untrained
from spot_train.bench.materials import Materials
from spot_train.bench.plan import DRAFT_FREE, CellGroup, Group, Wanted

SUITE = "budget"
BUDGETS = (1, 2, 4, 6, 8, 12, 16, 20)
TIMED = (1, 4, 8, 12, 20)


def groups(materials: Materials) -> list[Group]:
    """Every method counted; spot also timed, since its best budget is a property of the target's forward."""
    full = materials.options.full
    asked: list[Group] = []
    for target, rule in places(materials):
        condition = counted(materials, target, rule, prompts=some(materials))
        wanted = [
            *untrained(SUITE, BUDGETS),
            *calibrated(SUITE, materials, condition, BUDGETS),
            *trained(SUITE, materials, condition, BUDGETS),
        ]
        asked.append(CellGroup(condition, tuple(wanted)))
        condition = timed(materials, target, rule)
        wanted = [Wanted(SUITE, DRAFT_FREE), *trained(SUITE, materials, condition, BUDGETS if full else TIMED)]
        asked.append(CellGroup(condition, tuple(wanted)))
    return asked
