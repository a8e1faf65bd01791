"""Whether a drafter's masses are probabilities, and why rounds end (paper fig. 5, F.9; fig. 4 right).

Realised acceptance by mass bin; the first rejection of every drafted round put down to position, token or budget, by
block; accepted drafts a round by block for every method. Read off replay at the largest budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from spot_infer.drafters import OrderDrafter
from spot_train.bench.cells import make_cell_drafter
from spot_train.bench.conditions import STOPS, calibrated, counted, places, some, trained, untrained
from spot_train.bench.curves import curve
from spot_train.bench.materials import Materials
from spot_train.bench.plan import DRAFT_FREE, CellGroup, Condition, CurveGroup, Group, Wanted
from spot_train.bench.recorded import recorded
from spot_train.replay.replay import Drafted, replay
from spot_train.results import Curve

SUITE = "calibration"
BINS = 10
CAUSES = ("position", "token", "budget")
BLOCK = "block of the answer, from 0"


def groups(materials: Materials) -> list[Group]:
    """T = 0, stop tokens honoured and ignored."""
    asked: list[Group] = []
    for target, rule in places(materials):
        for stop in STOPS:
            condition = counted(materials, target, rule, ignore_stop=stop, prompts=some(materials))
            about = tuple(str(one.run) for one in _watched(materials, condition))
            asked.append(CurveGroup(SUITE, replace(condition, mode="replay"), measure, about))
    return asked


def _watched(materials: Materials, condition: Condition) -> list[Wanted]:
    """Every method that drafts, at the largest budget."""
    budgets = [max(materials.options.budgets)]
    methods = [
        *untrained(SUITE, budgets),
        *calibrated(SUITE, materials, condition, budgets),
        *trained(SUITE, materials, condition, budgets),
    ]
    return [one for one in methods if one.method != DRAFT_FREE]


def measure(materials: Materials, condition: Condition) -> list[Curve]:
    """Replay every method once, watching its rounds."""
    control = recorded(materials, condition)
    curves = []
    for one in _watched(materials, condition):
        drafter, loop = make_cell_drafter(materials, CellGroup(condition, (one,)), one, control)
        assert drafter is not None
        rounds: list[Drafted] = []
        replay(drafter, control.trajectories, one.budget, boundary=loop["boundary"], observe=rounds.append)
        curves.append(_accepted(materials, condition, one, rounds))
        if isinstance(drafter, OrderDrafter):
            curves += _acceptance(materials, condition, one, rounds)
            curves += _attribution(materials, condition, one, rounds, drafter)
    return curves


def _accepted(materials: Materials, condition: Condition, one: Wanted, rounds: Sequence[Drafted]) -> Curve:
    accepted, count = Counter[int](), Counter[int]()
    for each in rounds:
        if len(each.graph):
            accepted[each.block] += len(each.nodes) - 1
            count[each.block] += 1
    blocks = range(max(count, default=-1) + 1)
    y = [accepted[block] / count[block] if count[block] else None for block in blocks]
    labels = BLOCK, f"accepted drafts a drafted round, D {one.budget}"
    shape = ", ".join(f"{name}={value}" for name, value in one.options)
    series = one.drafter or (f"{one.method}, {shape}" if shape else one.method)
    return curve(materials, condition, SUITE, series, labels, blocks, y)


def _acceptance(materials: Materials, condition: Condition, one: Wanted, rounds: Sequence[Drafted]) -> list[Curve]:
    """Acceptance by mass bin, and how many drafted states each bin holds."""
    masses = np.concatenate([np.empty(0), *(np.array(each.graph.masses[1:]) for each in rounds)])
    passed = np.concatenate([np.empty(0), *(np.isin(range(1, len(each.graph) + 1), each.nodes) for each in rounds)])
    at = np.minimum((masses * BINS).astype(int), BINS - 1)
    filled = [number for number in range(BINS) if (at == number).any()]
    x = [float(masses[at == number].mean()) for number in filled]
    labels = "mass of a drafted state (mean of its bin)", "share of drafted states accepted"
    counted_labels = labels[0], "drafted states"
    series = f"{one.drafter}, D {one.budget}"
    return [
        curve(
            materials,
            condition,
            SUITE,
            series,
            labels,
            x,
            [passed[at == number].mean() for number in filled],
            one.drafter,
        ),
        curve(
            materials,
            condition,
            SUITE,
            series,
            counted_labels,
            x,
            [(at == number).sum() for number in filled],
            one.drafter,
        ),
    ]


def _attribution(
    materials: Materials, condition: Condition, one: Wanted, rounds: Sequence[Drafted], drafter: OrderDrafter
) -> list[Curve]:
    """Why rounds ended, by block; those that ended in the next block, for which there was no table, are left out."""
    causes: dict[int, Counter[str]] = {}
    for each in rounds:
        end = each.context.state.start + len(each.context.state.tokens)
        rejected = each.graph.child(each.nodes[-1], each.following) is None
        if len(each.following) == 1 and rejected and min(each.following).position < end:
            causes.setdefault(each.block, Counter())[first_rejection(each, drafter)] += 1
    blocks = range(max(causes, default=-1) + 1)
    labels = BLOCK, f"share of first rejections, D {one.budget}"
    return [
        curve(
            materials,
            condition,
            SUITE,
            cause,
            labels,
            blocks,
            [causes[block][cause] / causes[block].total() if block in causes else None for block in blocks],
            one.drafter,
        )
        for cause in CAUSES
    ]


def first_rejection(drafted: Drafted, drafter: OrderDrafter) -> str:
    """Why the target's step at the last accepted state was not drafted: token, if its slot was drafted there with
    another token; budget, if the order model ranks its slot first and no state was left for it; else position."""
    context, graph, node = drafted.context, drafted.graph, drafted.nodes[-1]
    ((position, _),) = drafted.following
    path = graph.commits[node]
    if any(
        commits > path and len(commits) == len(path) + 1 and position in {at for at, _ in commits - path}
        for commits in graph.commits
    ):
        return "token"
    start = context.state.start
    slots = [at - start for at, _ in path]
    (probabilities,) = drafter.score([context])([(0, tuple(slots), len(path))])
    first = int(context.tables[0].slots[int(probabilities.argmax())])
    return "budget" if first == position - start else "position"
