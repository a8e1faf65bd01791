"""From the paper's decoder to this one, a step at a time, and what is left to the oracles (`docs/decoding.md`).

Steps: the paper's tree with a forward a boundary, states merged, boundaries fused, the prompt's as well, responses
read, blocks foreseen, a budget that pays on a cost curve. Counted at T = 0 with stop tokens honoured and ignored and at
T = 1, by replay where that can, and timed on real forwards.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spot_infer.allocate import MOST_STATES
from spot_train.bench.conditions import counted, places, timed, trained
from spot_train.bench.materials import RESOLUTIONS, Materials
from spot_train.bench.plan import DRAFT_FREE, CellGroup, Condition, Group, Wanted, options
from spot_train.suites.oracle import ORACLES

SUITE = "ladder"
STEPS: dict[str, dict[str, Any]] = {
    "paper": {"merged": False, "boundary": "separate", "response": 0.0, "ahead": False},
    "merged": {"boundary": "separate", "response": 0.0, "ahead": False},
    "fused": {"boundary": "fused", "response": 0.0, "ahead": False},
    "seamless": {"response": 0.0, "ahead": False},
    "responses": {"ahead": False},
    "ahead": {},
}
"""Options of `spot` by step; the paper's first, the default last."""
DECODED = ("responses", "ahead")
"""Steps that read what nobody records, like `auto` behind them."""
CURVE = "paper-gsm8k"


def groups(materials: Materials) -> list[Group]:
    """The smallest and the largest budget, under every rule of the bench."""
    budgets = sorted({min(materials.options.budgets), max(materials.options.budgets)})
    asked: list[Group] = []
    if not materials.drafters:
        materials.note("ladder: its steps are of a trained drafter, and there is none; give --drafter")
    for target, rule in places(materials, RESOLUTIONS):
        changes: tuple[dict[str, Any], ...] = ({}, {"ignore_stop": True}, {"temperature": 1.0})
        for_forwards = [counted(materials, target, rule, **each) for each in changes]
        for_time = [timed(materials, target, rule, temperature=temperature) for temperature in (0.0, 1.0)]
        asked += [CellGroup(one, tuple(_steps(materials, one, budgets))) for one in (*for_forwards, *for_time)]
        decoded = [replace(one, mode="real") for one in for_forwards]
        asked += [CellGroup(one, tuple(_decoded(materials, one, budgets))) for one in decoded]
    return asked


def _decoded(materials: Materials, condition: Condition, budgets: list[int]) -> list[Wanted]:
    """The steps that replay can't count."""
    steps = [trained(SUITE, materials, condition, budgets, **STEPS[name]) for name in DECODED]
    steps.append(_auto(materials, condition))
    return [Wanted(SUITE, DRAFT_FREE), *(wanted for step in steps for wanted in step)]


def _auto(materials: Materials, condition: Condition) -> list[Wanted]:
    return trained(SUITE, materials, condition, [MOST_STATES], curve=CURVE)


def _steps(materials: Materials, condition: Condition, budgets: list[int]) -> list[Wanted]:
    wanted = [Wanted(SUITE, DRAFT_FREE)]
    for name, chosen in STEPS.items():
        if name not in DECODED or condition.mode == "real":
            wanted += trained(SUITE, materials, condition, budgets, **chosen)
    if condition.mode == "real":
        wanted += _auto(materials, condition)
    if condition.mode == "replay" and not condition.sampling.temperature:
        wanted += [
            Wanted(SUITE, oracle, budget, options(boundary=boundary))
            for oracle in ORACLES
            for boundary in ("separate", "fused", None)
            for budget in budgets
        ]
    return wanted
