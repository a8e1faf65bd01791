"""The two kinds of condition that suites ask under: counted (by replay unless the bench is full) and timed (decoded).

Also the line-up of methods that may run under a condition. Knows no suite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from spot_infer.transition import CommitRule, Sampling
from spot_train.bench.materials import PAPER_FLOOR, Materials
from spot_train.bench.plan import DRAFT_FREE, Condition, Wanted, options

STOPS = (False, True)
CHAIN_DEPTH = 4
"""The published chain's depth (paper D.4)."""
TREE_DEPTH = 2
"""The published trajectory tree's depth, of two branches."""


def counted(materials: Materials, target: str, rule: CommitRule, **changes: Any) -> Condition:
    """A condition for forwards: replayed from the control's trajectories, or decoded under `full`.

    With stop tokens ignored a trajectory is several times as long, so there only `some` prompts are replayed.
    """
    chosen = materials.options
    prompts = some(materials) if changes.get("ignore_stop") else chosen.prompts_replay
    return _condition(materials, target, rule, "real" if chosen.full else "replay", prompts, changes)


def timed(materials: Materials, target: str, rule: CommitRule, **changes: Any) -> Condition:
    """A condition for wall time and for what replay can't know: decoded."""
    return _condition(materials, target, rule, "real", few(materials), changes)


def few(materials: Materials) -> int:
    """Prompts of a timed condition."""
    chosen = materials.options
    return chosen.prompts_replay if chosen.full else chosen.prompts_real


def some(materials: Materials) -> int:
    """Prompts of counted conditions that are dear or beside the main ones: a quarter, to keep a short bench short."""
    chosen = materials.options
    return chosen.prompts_replay if chosen.full else max(few(materials), chosen.prompts_replay // 4)


def _condition(
    materials: Materials, target: str, rule: CommitRule, mode: Any, prompts: int, changes: dict[str, Any]
) -> Condition:
    base = Condition(target, rule, mode, prompts, materials.recipe.collect.max_new_tokens)
    sampling = Sampling(
        changes.pop("temperature", 0.0), materials.recipe.sampling.top_k, materials.recipe.sampling.top_p
    )
    condition = replace(base, sampling=sampling, seed=materials.options.seeds[0])
    condition = replace(condition, **changes)
    return replace(condition, prompts=materials.prompts(condition.prompts))


def places(materials: Materials, resolutions: Sequence[str] = ()) -> Iterator[tuple[str, CommitRule]]:
    """Every target under every commit rule of the bench; these resolutions where the command names none."""
    for target in materials.recipes:
        for rule in materials.rules(resolutions):
            yield target, rule


def untrained(suite: str, budgets: Sequence[int]) -> list[Wanted]:
    """The methods without training or calibration: chains and trajectory trees in their published shape, which does
    not grow with the budget, and in the shape that uses all of it."""
    published = {"chain": options(depth=CHAIN_DEPTH), "trajectory_tree": options(depth=TREE_DEPTH)}
    return [
        Wanted(suite, DRAFT_FREE),
        *(Wanted(suite, name, budget) for name in ("confidence_tree", "odds_tree") for budget in budgets),
        *(
            Wanted(suite, name, budget, shape)
            for name in published
            for shape in (published[name], ())
            for budget in budgets
        ),
    ]


def calibrated(suite: str, materials: Materials, condition: Condition, budgets: Sequence[int]) -> list[Wanted]:
    """The calibrated graph, where there is one for the condition's rule and block length."""
    if materials.graph(condition) is None:
        return []
    return [Wanted(suite, "calibrated_graph", budget) for budget in budgets]


def trained(
    suite: str, materials: Materials, condition: Condition, budgets: Sequence[int], **chosen: Any
) -> list[Wanted]:
    """Every drafter trained for the condition's rule and block length, under some options."""
    names = materials.orders(condition.rule, materials.block_length(condition))
    return [Wanted(suite, "spot", budget, options(**chosen), drafter=name) for name in names for budget in budgets]


def line_up(suite: str, materials: Materials, condition: Condition, budgets: Sequence[int]) -> list[Wanted]:
    """Every method of the comparison at every budget; spot also with a floor."""
    floor = materials.recipe.decode.floor or PAPER_FLOOR
    return [
        *untrained(suite, budgets),
        *calibrated(suite, materials, condition, budgets),
        *trained(suite, materials, condition, budgets),
        *trained(suite, materials, condition, budgets, floor=floor),
    ]
