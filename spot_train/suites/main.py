"""How many forwards, and how fast, against draft-free decoding: methods by budget (paper tables 2, 8-13, 18, 19).

Both resolutions of the commit rule, side by side, and how many outputs they share: a coarser rule makes every drafter
better and is not a better drafter. Stop tokens honoured, and apart the paper's way, ignored. The short form counts
forwards by replay at both temperatures, and decodes only what has to be timed: the smallest and the largest budget at
T = 0, the smallest at T = 1, rejection sampling among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spot_train.bench.conditions import CHAIN_DEPTH, STOPS, counted, few, line_up, places, some, timed
from spot_train.bench.curves import curve
from spot_train.bench.materials import RESOLUTIONS, Materials
from spot_train.bench.plan import CellGroup, Condition, CurveGroup, Group, Wanted, options
from spot_train.bench.recorded import outputs
from spot_train.results import Curve

SUITE = "main"


def groups(materials: Materials) -> list[Group]:
    """T = 0 counted and timed, T = 1 for every seed; the rules' outputs compared."""
    budgets = materials.options.budgets
    asked: list[Group] = []
    for target, rule in places(materials, RESOLUTIONS):
        for ignore_stop in STOPS:
            at_zero = counted(materials, target, rule, ignore_stop=ignore_stop)
            prompts = few(materials) if ignore_stop else some(materials)
            sampled = [
                counted(materials, target, rule, temperature=1.0, seed=seed, ignore_stop=ignore_stop, prompts=prompts)
                for seed in materials.options.seeds
            ]
            asked += [_cells(materials, condition, budgets) for condition in (at_zero, *sampled)]
            if rule.resolution != "float32":
                asked.append(CurveGroup(SUITE, replace(at_zero, mode="replay"), shared_outputs))
        at_ends = budgets if materials.options.full else sorted({min(budgets), max(budgets)})
        asked.append(_cells(materials, timed(materials, target, rule), at_ends))
        at_start = budgets if materials.options.full else at_ends[:1]
        for seed in materials.options.seeds:
            asked.append(_cells(materials, timed(materials, target, rule, temperature=1.0, seed=seed), at_start))
    return asked


def _cells(materials: Materials, condition: Condition, budgets: Sequence[int]) -> CellGroup:
    wanted = line_up(SUITE, materials, condition, budgets)
    sampled = condition.sampling.temperature > 0 and condition.mode == "real"
    if sampled and materials.allows(condition, "rejection"):
        depth = options(depth=CHAIN_DEPTH)
        wanted += [Wanted(SUITE, "chain", budget, depth, "rejection") for budget in budgets]
    return CellGroup(condition, tuple(wanted))


def shared_outputs(materials: Materials, condition: Condition) -> list[Curve]:
    """Share of prompts whose output is the same under this rule and under float32, and the accuracy of each."""
    fine = replace(condition, rule=replace(condition.rule, resolution="float32"))
    target = materials.target(condition.target, condition.block_length)
    both = [outputs(materials, each) for each in (fine, condition)]
    same = sum(one == other for one, other in zip(*both, strict=True)) / len(both[0])
    accuracies = [materials.scores(target, one).accuracy for one in both]
    name = str(condition.rule.resolution)
    labels = "draft-free outputs of the two rules", "share of prompts"
    x = ["identical outputs", "accuracy, float32", f"accuracy, {name}"]
    return [curve(materials, condition, SUITE, f"{name} beside float32", labels, x, [same, *accuracies])]
