"""What sampling does to verification: temperature by verifier by drafter (paper section 3.2, tables 1, 21, 22).

Forwards, and what was committed: a verifier that keeps the target's law leaves the share of argmax commits and the
mean committed probability at draft-free's values. The short form drafts at the smallest budget alone.
"""

from __future__ import annotations

from spot_infer.requests import Verifier
from spot_train.bench.conditions import CHAIN_DEPTH, calibrated, places, timed, trained
from spot_train.bench.materials import Materials
from spot_train.bench.plan import DRAFT_FREE, CellGroup, Group, Wanted, options

SUITE = "temperature"
VERIFIERS: tuple[Verifier, ...] = ("coupled", "uncoupled", "greedy")


def groups(materials: Materials) -> list[Group]:
    """Every temperature and seed, decoded, stop tokens honoured; chains also under rejection sampling."""
    chosen = materials.options
    budgets = chosen.budgets if chosen.full else chosen.budgets[:1]
    asked: list[Group] = []
    for target, rule in places(materials):
        for temperature in chosen.temperatures:
            for seed in chosen.seeds:
                condition = timed(materials, target, rule, temperature=temperature, seed=seed, tables=True)
                drafted = [
                    *(Wanted(SUITE, "confidence_tree", budget) for budget in budgets),
                    *calibrated(SUITE, materials, condition, budgets),
                    *trained(SUITE, materials, condition, budgets),
                ]
                wanted = [
                    Wanted(SUITE, one.method, one.budget, one.options, verifier, one.drafter)
                    for one in drafted
                    for verifier in VERIFIERS
                ]
                depth = options(depth=CHAIN_DEPTH)
                chains: tuple[Verifier, ...] = ("coupled", "rejection")
                wanted += [Wanted(SUITE, "chain", budget, depth, verifier) for budget in budgets for verifier in chains]
                able = [one for one in wanted if materials.allows(condition, one.verifier)]
                asked.append(CellGroup(condition, (Wanted(SUITE, DRAFT_FREE), *able)))
    return asked
