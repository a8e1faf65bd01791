"""How much there is to gain at other block lengths (paper table 7's b16 rows, table 15).

`target.block_length` is overridden. Trained drafters and draft graphs run where one was made for that block length;
what is left out is said. A target decoded at a block length it was not trained for answers worse: read the accuracy.
"""

from __future__ import annotations

from spot_train.bench.conditions import calibrated, counted, places, some, trained, untrained
from spot_train.bench.materials import Materials
from spot_train.bench.plan import CellGroup, Group, Wanted
from spot_train.suites.oracle import ORACLES

SUITE = "block"
LENGTHS = (8, 16, 32)


def groups(materials: Materials) -> list[Group]:
    """The smallest and largest budget at every block length, T = 0, stop tokens honoured."""
    budgets = sorted({min(materials.options.budgets), max(materials.options.budgets)})
    asked: list[Group] = []
    for target, rule in places(materials):
        for length in LENGTHS:
            condition = counted(materials, target, rule, block_length=length, prompts=some(materials))
            if not materials.fits(condition):
                materials.note(f"block: a block length of {length} doesn't fit {target}; left out")
                continue
            spot = trained(SUITE, materials, condition, budgets)
            if not spot:
                materials.note(f"block: no drafter was trained for block length {length}; spot is left out there")
            wanted = [
                *untrained(SUITE, budgets),
                *(Wanted(SUITE, oracle, budget) for oracle in ORACLES for budget in budgets),
                *calibrated(SUITE, materials, condition, budgets),
                *spot,
            ]
            asked.append(CellGroup(condition, tuple(wanted)))
    return asked
