"""What knowing the order, the tokens or both is worth, and how much of it spot recovers (paper fig. 2a, table 7).

Oracles look up the control's recorded trajectory, so no look-ahead has to be subtracted.
"""

from __future__ import annotations

from spot_train.bench.conditions import STOPS, calibrated, counted, places, trained
from spot_train.bench.materials import RESOLUTIONS, Materials
from spot_train.bench.plan import DRAFT_FREE, CellGroup, Group, Wanted

SUITE = "oracle"
ORACLES = ("position_oracle", "token_oracle", "joint_oracle")


def groups(materials: Materials) -> list[Group]:
    """The three oracles beside what they bound, T = 0, stop tokens honoured and ignored."""
    budgets = materials.options.budgets
    asked: list[Group] = []
    for target, rule in places(materials, RESOLUTIONS):
        for ignore_stop in STOPS:
            condition = counted(materials, target, rule, ignore_stop=ignore_stop)
            wanted = [
                Wanted(SUITE, DRAFT_FREE),
                *(Wanted(SUITE, oracle, budget) for oracle in ORACLES for budget in budgets),
                *(Wanted(SUITE, "chain", budget) for budget in budgets),
                *calibrated(SUITE, materials, condition, budgets),
                *trained(SUITE, materials, condition, budgets),
            ]
            asked.append(CellGroup(condition, tuple(wanted)))
    return asked
