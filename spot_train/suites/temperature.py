"""What sampling does to verification: temperature by verifier by drafter (paper section 3.2, tables 1, 21, 22).

Forwards, and what was committed: a verifier that keeps the target's law leaves the share of argmax commits and the
mean committed probability at draft-free's values. Apart from any drafter, how often a proposal for the right slot
survives, by the number of steps it was made ahead. The short form drafts at the smallest budget alone, without the
confidence tree.
"""

from __future__ import annotations

from dataclasses import replace

from spot_infer.requests import Verifier
from spot_train.bench.conditions import CHAIN_DEPTH, calibrated, places, timed, trained
from spot_train.bench.curves import curve
from spot_train.bench.materials import Materials
from spot_train.bench.plan import DRAFT_FREE, CellGroup, Condition, CurveGroup, Group, Wanted, options
from spot_train.bench.recorded import recorded
from spot_train.compare.coupling import agreement, recorded_pairs
from spot_train.results import Curve

SUITE = "temperature"
VERIFIERS: tuple[Verifier, ...] = ("coupled", "uncoupled", "greedy")
OF_CHAINS: tuple[Verifier, ...] = ("coupled", "rejection")
AHEAD = range(1, 9)
SURVIVAL = {"coupled": "coupled", "bound": "coupled, at least", "uncoupled": "uncoupled", "rejection": "rejection"}
"""Fields of `coupling.Agreement` and what their curves are called."""


def groups(materials: Materials) -> list[Group]:
    """Every temperature and seed, decoded, stop tokens honoured; chains also under rejection sampling. Survival is read
    off the draft-free control's trajectories."""
    chosen = materials.options
    budgets = chosen.budgets if chosen.full else chosen.budgets[:1]
    asked: list[Group] = []
    for target, rule in places(materials):
        for temperature in chosen.temperatures:
            for seed in chosen.seeds:
                condition = timed(materials, target, rule, temperature=temperature, seed=seed, tables=True)
                drafted = [
                    *(Wanted(SUITE, "confidence_tree", budget) for budget in budgets if chosen.full),
                    *calibrated(SUITE, materials, condition, budgets),
                    *trained(SUITE, materials, condition, budgets),
                ]
                wanted = [
                    Wanted(SUITE, one.method, one.budget, one.options, verifier, one.drafter)
                    for one in drafted
                    for verifier in VERIFIERS
                ]
                depth = options(depth=CHAIN_DEPTH)
                chains = [Wanted(SUITE, "chain", budget, depth) for budget in budgets]
                chains += trained(SUITE, materials, condition, budgets, chain=True)
                wanted += [replace(one, verifier=verifier) for one in chains for verifier in OF_CHAINS]
                able = [one for one in wanted if materials.allows(condition, one.verifier)]
                asked.append(CellGroup(condition, (Wanted(SUITE, DRAFT_FREE), *able)))
                if temperature > 0 and seed == chosen.seeds[0]:
                    asked.append(CurveGroup(SUITE, replace(condition, mode="replay", tables=False), survival))
    return asked


def survival(materials: Materials, condition: Condition) -> list[Curve]:
    """Mean probability that the token proposed for a commit's slot is the one committed, by steps ahead and verifier.

    Laws are those of the recorded tables, 32 tokens each (`coupling.recorded_pairs`).
    """
    trajectories = recorded(materials, condition).trajectories
    found = [
        agreement(pair for one in trajectories for pair in recorded_pairs(one, condition.sampling, age)).means()
        for age in AHEAD
    ]
    labels = "steps between proposal and commit", "the proposed token is the one committed"
    return [
        curve(materials, condition, SUITE, name, labels, list(AHEAD), [means.get(field) for means in found])
        for field, name in SURVIVAL.items()
    ]
