"""Every drafter on every target it can drive, the target's own one marked `native` (paper tables 3, 14).

A drafter runs where the block length is its own, under the rule of the bench, whatever rule it was trained under.
"""

from __future__ import annotations

from spot_train.bench.conditions import counted, places, some
from spot_train.bench.materials import RESOLUTIONS, Materials
from spot_train.bench.plan import DRAFT_FREE, CellGroup, Group, Wanted

SUITE = "transfer"


def groups(materials: Materials) -> list[Group]:
    """The smallest budget, T = 0, stop tokens honoured."""
    budget = min(materials.options.budgets)
    asked: list[Group] = []
    for target, rule in places(materials, RESOLUTIONS):
        condition = counted(materials, target, rule, prompts=some(materials))
        length = materials.block_length(condition)
        wanted = [Wanted(SUITE, DRAFT_FREE), Wanted(SUITE, "chain", budget)]
        for name, drafter in materials.drafters.items():
            own = drafter.model.config.block_length
            if own == length:
                wanted.append(Wanted(SUITE, "spot", budget, drafter=name))
            else:
                materials.note(f"transfer: {name} was trained for block length {own}, {target} decodes {length}")
        asked.append(CellGroup(condition, tuple(wanted)))
    return asked
