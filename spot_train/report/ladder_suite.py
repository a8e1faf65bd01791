"""The `ladder` suite: one row a step from the paper's decoder to the default, oracles under either boundary. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spot_train.report import measures
from spot_train.report.cells import ABSENT, DRAFT_FREE, SPOT, Pooled, pool_seeds, rule_name, setting, several_drafters
from spot_train.report.compare_cells import Content, budget_name, tables_by_setting
from spot_train.report.tables import Layout, Measure
from spot_train.results import Cell
from spot_train.suites.ladder import CURVE, STEPS

PAPER, *_ = STEPS


def ladder(cells: Sequence[Cell]) -> Content:
    """Steps of one drafter under one rule and budget beside the paper's form of it."""
    pools = sorted(pool_seeds(cells), key=lambda one: (rule_name(one.first.rule) != "float32", _rank(one)))
    replayed = {_place(one) for one in pools if one.first.mode == "replay"}
    pools = [
        one for one in pools if one.first.mode == "replay" or one.first.method == SPOT or _place(one) not in replayed
    ]
    known = {(step_name(one), _place(one)): one for one in pools}

    def fewer(one: Pooled) -> str:
        reference = known.get((PAPER, _place(one)))
        return ABSENT if reference is None or one.first.method != SPOT else f"{reference.nfe / one.nfe:.2f}x"

    def share(oracle: str) -> Callable[[Pooled], str]:
        def shown(one: Pooled) -> str:
            boundary = one.first.options.get("boundary", "seamless")
            ceiling = known.get((f"{oracle}, {boundary}", _place(one, drafter=None)))
            return ABSENT if ceiling is None or one.first.method != SPOT else f"{ceiling.nfe / one.nfe:.0%}"

        return shown

    several = any(map(several_drafters(pools), pools))

    def name(one: Pooled) -> str:
        return f"{step_name(one)}, {one.first.drafter}" if several and one.first.drafter else step_name(one)

    layout = Layout(
        row_names=("step", "D"),
        row=lambda one: (name(one), budget_name(one)),
        group=lambda one: f"rule {rule_name(one.first.rule)}",
        measures=(
            measures.named("NFE", "nfe", 2),
            measures.PLAIN_REDUCTION,
            Measure("fewer than paper", fewer),
            measures.ACCEPTED,
            measures.named("calls", "drafter_calls", 1),
            measures.named("positions", "positions", 0),
            Measure("of position oracle", share("position oracle")),
            Measure("of joint oracle", share("joint oracle")),
            measures.named(f"on {CURVE}", f"throughput_{CURVE}", 2, "x"),
            measures.THROUGHPUT,
        ),
        block=lambda one: one.first.method if one.first.method in (DRAFT_FREE, SPOT) else "oracles",
    )
    notes = [
        "paper: a tree, and a forward a boundary; merged: one block copy a state; fused: no forward spent on a block's "
        "boundary; seamless: nor on the first block's opening, which the prompt's forward takes in (that forward is "
        "not counted in any row); responses: scores follow what rejected states tell; ahead, the default: drafts run "
        "on into the next block (both are decoded, since no replay knows what they read); auto: as many states a round "
        f"as pay on the curve {CURVE}. Shares are of the oracle "
        f"with the same boundaries and budget. On {CURVE}: predicted throughput over draft-free's, no drafter's time "
        "in it; positions: token positions forwarded a prompt, padding left out."
    ]
    tables = tables_by_setting(pools, layout, beside=("mode",))
    return Content([table.without_empty_columns(ABSENT) for table in tables], notes=notes)


def step_name(pool: Pooled) -> str:
    """The step that a row's options are."""
    cell = pool.first
    if "curve" in cell.options:
        return "auto"
    if cell.method == SPOT:
        return next((name for name, own in STEPS.items() if own == cell.options), SPOT)
    boundary = cell.options.get("boundary", "seamless")
    return cell.method if cell.method == DRAFT_FREE else f"{cell.method.replace('_', ' ')}, {boundary}"


def _rank(pool: Pooled) -> tuple[int, ...]:
    cell = pool.first
    names = [*STEPS, "auto"]
    name = step_name(pool)
    oracle = cell.method not in (DRAFT_FREE, SPOT)
    step = names.index(name) if name in names else 0
    return oracle, cell.method == SPOT, name == "auto", cell.budget, step


def _place(pool: Pooled, **other: Any) -> tuple[str, str, int, str | None]:
    """What steps of one drafter share, counted by replay or decoded."""
    one = pool.first.model_copy(update=other)
    return setting(one, "mode"), rule_name(one.rule), one.budget, one.drafter
