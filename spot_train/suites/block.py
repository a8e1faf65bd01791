"""How much there is to gain at other block lengths (paper table 7's b16 rows, table 15).

A block length is decoded by the targets that were trained for it and, where the bench has none, by the others with
`target.block_length` overridden, which answer worse: read the accuracy. Trained drafters and draft graphs run where one
was made for that block length; what is left out is said.
"""

from __future__ import annotations

from spot_infer.transition import CommitRule
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
    for length in LENGTHS:
        for target, rule in _places(materials, length):
            condition = counted(materials, target, rule, block_length=length, prompts=some(materials))
            if not materials.fits(condition):
                materials.note(f"block: a block length of {length} doesn't fit {target}; left out")
                continue
            wanted = [
                *untrained(SUITE, budgets),
                *(Wanted(SUITE, oracle, budget) for oracle in ORACLES for budget in budgets),
                *calibrated(SUITE, materials, condition, budgets),
                *trained(SUITE, materials, condition, budgets),
            ]
            asked.append(CellGroup(condition, tuple(wanted)))
    return asked


def _places(materials: Materials, length: int) -> list[tuple[str, CommitRule]]:
    """The targets trained for this block length under every rule, every target's where there is none."""
    everywhere = list(places(materials))
    own = [(name, rule) for name, rule in everywhere if materials.target(name).spec.block_length == length]
    return own or everywhere
