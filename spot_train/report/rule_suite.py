"""The `rule` suite: a row a resolution of the commit rule, from the finest to the coarsest. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spot_infer.transition import CommitRule
from spot_train.report import measures
from spot_train.report.cells import (
    ABSENT,
    DRAFT_FREE,
    Pooled,
    grouped,
    method_rank,
    pool_seeds,
    rule_name,
    setting,
    styles,
    variant_namer,
)
from spot_train.report.compare_cells import Bars, Content, Name, tables_by_setting
from spot_train.report.document import Plot, Table
from spot_train.report.scope import setting_title
from spot_train.report.tables import Layout, Measure
from spot_train.results import Cell

FOREIGN = "*"


def rule(cells: Sequence[Cell]) -> Content:
    """Forwards by resolution, then the draft-free answers by prompt family, then both in one picture a budget."""
    pools = sorted(pool_seeds(cells), key=lambda one: (method_rank(one.first.method), one.first.budget, _width(one)))
    name = variant_namer(pools)
    layout = Layout(
        row_names=("resolution",),
        row=lambda one: (rule_name(one.first.rule),),
        group=lambda one: f"{name(one)}, D {one.first.budget}" if _drafts(one) else name(one),
        measures=(Measure("NFE", _forwards), Measure("reduction", _reduction), measures.ACCURACY),
        block=lambda one: "",
    )
    tables = [table.without_empty_columns(ABSENT) for table in tables_by_setting(pools, layout)]
    notes = [
        "A number e ties all slots of probability 1 - e and more, bfloat16 those that round alike, and ties go left to "
        "right. Each resolution is an exact decoder of its own: reductions are against its own draft-free run, and "
        "forwards of two rows compare two decoders. "
        f"{FOREIGN} the drafter was trained under another rule."
    ]
    return Content([*tables, *_answers(pools)], _pictures(pools, name), notes)


def _answers(pools: Sequence[Pooled]) -> list[Table]:
    """Share of prompts that draft-free decoding solves, of all and by family."""
    scored = [one for one in pools if not _drafts(one) and one.first.accuracy is not None]
    families = sorted({name for one in scored for row in one.rows for name in row.accuracy_by_family or ()})
    layout = Layout(
        row_names=("resolution",),
        row=lambda one: (rule_name(one.first.rule),),
        group=lambda one: "draft-free: share of prompts solved",
        measures=(
            Measure("all", lambda one: measures.number(one.mean("accuracy"), 3)),
            *(Measure(family, _solved(family)) for family in families),
        ),
        block=lambda one: "",
    )
    return tables_by_setting(scored, layout)


def _solved(family: str) -> Name:
    def text(pool: Pooled) -> str:
        shares = [share for row in pool.rows if (share := (row.accuracy_by_family or {}).get(family)) is not None]
        return measures.number(sum(shares) / len(shares), 3) if shares else ABSENT

    return text


def _pictures(pools: Sequence[Pooled], name: Name) -> list[Plot]:
    """Bars a resolution, one a method, a plot each setting and budget; a resolution's name says what it solves."""
    cells = [one.first for one in pools]
    bars = Bars(
        x_label="resolution of the commit rule",
        y_label="target forwards a prompt",
        category=lambda one: rule_name(one.first.rule),
        y=lambda one: one.nfe,
        line=name,
        style=styles(pools, name),
    )
    plots: list[Plot] = []
    for same in grouped(pools, lambda one: setting(one.first)).values():
        solved = {rule_name(one.first.rule): one.mean("accuracy") for one in same if not _drafts(one)}
        ordered = [rule_name(one.first.rule) for one in sorted(same, key=_width)]
        shown = {one: _category(one, solved.get(one)) for one in ordered}
        for budget in sorted({one.first.budget for one in same if _drafts(one)}):
            title = f"{setting_title(same[0].first, cells)}, D {budget}"
            members = [one for one in same if one.first.budget in (0, budget)]
            plots.append(bars.plot(f"rule-{len(plots) + 1}", title, members, shown, max(one.nfe for one in same)))
    return plots


def _category(name: str, solved: float | None) -> str:
    return name if solved is None else f"{name}, solves {solved:.1%}"


def _drafts(pool: Pooled) -> bool:
    return pool.first.method != DRAFT_FREE


def _width(pool: Pooled) -> float:
    return CommitRule.from_dict(pool.first.rule).tie_width


def _forwards(pool: Pooled) -> str:
    return measures.number(pool.nfe, 2) + FOREIGN * any("warning" in row.provenance for row in pool.rows)


def _reduction(pool: Pooled) -> str:
    return measures.number(pool.reduction, 2, "x") if _drafts(pool) else ABSENT
