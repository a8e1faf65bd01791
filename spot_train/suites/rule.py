"""What the resolution of the commit rule is worth: forwards, and what becomes of the answers.

Every resolution is a decoder of its own with its own draft-free run, which drafted runs equal. The question is whether
that decoder answers as well as the float32 rule's, and how much easier it is to foresee. Draft graphs are calibrated a
resolution (`--graph`, repeated); where no drafter was trained under one, that of the nearest resolution runs.
"""

from __future__ import annotations

from dataclasses import replace

from spot_train.bench.conditions import calibrated, counted, trained
from spot_train.bench.curves import curve
from spot_train.bench.materials import Materials
from spot_train.bench.plan import DRAFT_FREE, CellGroup, Condition, CurveGroup, Group, Wanted
from spot_train.bench.recorded import outputs
from spot_train.results import Curve

SUITE = "rule"
FINEST = "float32"
LADDER = (FINEST, "0.001", "bfloat16", "0.01", "0.05", "0.1", "0.2", "0.4")
"""Resolutions from the finest to the coarsest."""
ALL = "all"


def groups(materials: Materials) -> list[Group]:
    """The smallest and the largest budget at every resolution, T = 0, stop tokens honoured; every resolution's outputs
    beside the float32 rule's."""
    budgets = sorted({min(materials.options.budgets), max(materials.options.budgets)})
    rules = materials.rules(LADDER)
    about = tuple(str(rule.resolution) for rule in rules)
    asked: list[Group] = []
    for target in materials.recipes:
        for rule in rules:
            condition = counted(materials, target, rule)
            wanted = [
                Wanted(SUITE, DRAFT_FREE),
                *(Wanted(SUITE, "chain", budget) for budget in budgets),
                *calibrated(SUITE, materials, condition, budgets),
                *trained(SUITE, materials, condition, budgets),
            ]
            asked.append(CellGroup(condition, tuple(wanted)))
        fine = counted(materials, target, replace(rules[0], resolution=FINEST))
        asked.append(CurveGroup(SUITE, replace(fine, mode="replay"), unchanged, about))
    return asked


def unchanged(materials: Materials, fine: Condition) -> list[Curve]:
    """Share of prompts whose draft-free output is that of the condition, of all and by prompt family; a curve each
    other resolution."""
    expected = outputs(materials, fine)
    families = [example.family for example in materials.task.examples[: len(expected)]]
    names = [ALL, *sorted(set(families))]
    labels = "draft-free outputs", "share of prompts"
    curves = []
    for rule in materials.rules(LADDER):
        if rule == fine.rule:
            continue
        condition = replace(fine, rule=rule)
        same = [one == other for one, other in zip(expected, outputs(materials, condition), strict=True)]
        by_family = {name: [one for one, of in zip(same, families, strict=True) if name in (ALL, of)] for name in names}
        shares = [sum(ones) / len(ones) for ones in by_family.values()]
        curves.append(curve(materials, condition, SUITE, f"as under {FINEST}", labels, names, shares))
    return curves
