"""The suites that carry the claim: `main`, methods by budget, and `oracle`, what could be had. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spot_train.report import measures
from spot_train.report.cells import (
    ABSENT,
    DRAFT_FREE,
    GRAPH,
    POSITION_ORACLE,
    SPOT,
    Pooled,
    grouped,
    lowest,
    pool_seeds,
    rule_name,
    setting,
    stop_name,
    variant_namer,
)
from spot_train.report.compare_cells import (
    Bars,
    Content,
    Curves,
    Name,
    budget_name,
    by_budget,
    in_order,
    plots_by_setting,
    tables_by_setting,
)
from spot_train.report.document import Plot, Table
from spot_train.report.scope import setting_title
from spot_train.report.tables import Layout, Measure, lay_out
from spot_train.results import Cell

SPOT_FACTS: dict[str, Name] = {
    "D": lambda one: str(one.first.budget),
    "task": lambda one: one.first.task,
    "target": lambda one: one.first.target,
    "T": lambda one: f"{one.first.temperature:g}",
    "stop": lambda one: stop_name(one.first.ignore_stop).removeprefix("stop "),
    "prompts": lambda one: f"{one.first.n}, {one.first.mode}",
}
"""What a row of spot's own table says of its setting, where settings differ in it."""


def main(cells: Sequence[Cell]) -> Content:
    """Methods by budget, both rules side by side; what spot reaches beside the graph and the position oracle."""
    pools = in_order(pool_seeds(cells))
    name = variant_namer(pools)
    reduction = Curves(
        x_label="budget D (drafted states a round)",
        y_label="reduction of target forwards (draft-free = 1x)",
        x=lambda one: one.first.budget,
        y=lambda one: one.reduction,
        line=name,
        intervals=True,
    )
    drafted = [one for one in pools if one.first.method != DRAFT_FREE]
    return Content(
        tables=[*share_tables(pools, name), *main_tables(pools, name)],
        plots=plots_by_setting("main", drafted, reduction),
        notes=[_lowest_note(pools)],
    )


def plain(cells: Sequence[Cell]) -> Content:
    """The tables of `main` alone, for cells of a suite that has no table of its own."""
    pools = in_order(pool_seeds(cells))
    return Content(main_tables(pools, variant_namer(pools)))


def main_tables(pools: Sequence[Pooled], name: Name) -> list[Table]:
    """One table a setting: methods by budget, the rules side by side."""
    layout = Layout(
        row_names=("method", "D"),
        row=lambda one: (name(one), budget_name(one)),
        group=lambda one: f"rule {rule_name(one.first.rule)}",
        measures=(
            measures.NFE,
            measures.REDUCTION,
            measures.THROUGHPUT,
            measures.ACCURACY,
            measures.IDENTICAL,
        ),
        block=lambda one: one.first.budget,
        best=lowest,
    )
    return [table.without_empty_columns(ABSENT) for table in tables_by_setting(by_budget(pools), layout)]


def oracle(cells: Sequence[Cell]) -> Content:
    """Ceilings by budget, as NFE and reduction, and the share of the position oracle's that spot recovers."""
    pools = in_order(pool_seeds(cells))
    name = variant_namer(pools)
    drafted = [one for one in pools if one.first.method != DRAFT_FREE]
    layout = Layout(
        row_names=("method",),
        row=lambda one: (name(one),),
        group=lambda one: f"rule {rule_name(one.first.rule)}, D {one.first.budget}",
        measures=(measures.PLAIN_NFE, measures.PLAIN_REDUCTION, measures.THROUGHPUT),
        block=lambda one: "",
    )
    ordered = sorted(drafted, key=lambda one: (rule_name(one.first.rule) != "float32", one.first.budget))
    return Content(
        tables=[
            *(table.without_empty_columns(ABSENT) for table in tables_by_setting(ordered, layout)),
            *share_tables(pools, name),
        ],
        plots=_ceilings(drafted, name),
    )


def _ceilings(drafted: Sequence[Pooled], name: Name) -> list[Plot]:
    """Bars a method, one a budget, a plot each setting and rule."""
    cells = [one.first for one in drafted]
    bars = Bars(
        x_label="method",
        y_label="reduction of target forwards (draft-free = 1x)",
        category=name,
        y=lambda one: one.reduction,
        line=lambda one: f"D {one.first.budget}",
    )
    highest = max((one.reduction for one in drafted), default=0.0)
    plots: list[Plot] = []
    for same in grouped(drafted, lambda one: (setting(one.first), rule_name(one.first.rule))).values():
        methods = {name(one): name(one) for one in same}
        title = f"{setting_title(same[0].first, cells)}, rule {rule_name(same[0].first.rule)}"
        ascending = sorted(same, key=lambda one: one.first.budget)
        plots.append(bars.plot(f"oracle-{len(plots) + 1}", title, ascending, methods, highest))
    return plots


def share_tables(pools: Sequence[Pooled], name: Name) -> list[Table]:
    """Every spot row beside `calibrated_graph` and the position oracle of its setting, rule and budget."""
    beside = {
        (id(one), method): _beside(one, same, method)
        for same in grouped(pools, _cell_of).values()
        for one in same
        for method in (GRAPH, POSITION_ORACLE)
    }

    def ahead(one: Pooled) -> str:
        graph = beside[id(one), GRAPH]
        return ABSENT if graph is None else f"{1 - one.nfe / graph.nfe:.1%}"

    def share(one: Pooled) -> str:
        oracle = beside[id(one), POSITION_ORACLE]
        return ABSENT if oracle is None else f"{one.reduction / oracle.reduction:.0%}"

    ours = [one for one in pools if one.first.method == SPOT]
    facts = [fact for fact in SPOT_FACTS if fact == "D" or len({SPOT_FACTS[fact](one) for one in ours}) > 1]
    layout = Layout(
        row_names=("method", *facts),
        row=lambda one: (name(one), *(SPOT_FACTS[fact](one) for fact in facts)),
        group=lambda one: f"rule {rule_name(one.first.rule)}",
        measures=(
            measures.PLAIN_REDUCTION,
            Measure("below graph", ahead),
            Measure("of oracle", share),
        ),
        block=lambda one: setting(one.first),
    )
    by_setting = [one for same in grouped(ours, lambda one: setting(one.first)).values() for one in by_budget(same)]
    title = "spot: NFE below calibrated_graph's, and share of the position oracle's reduction"
    table = lay_out(title, by_setting, layout)
    return [table.without_empty_columns(ABSENT)] if ours else []


def _beside(one: Pooled, same: Iterable[Pooled], method: str) -> Pooled | None:
    """The method's row of the same verifier; the one with the fewest forwards where it has several."""
    able = [other for other in same if other.first.method == method and other.first.verifier == one.first.verifier]
    return min(able, key=lambda other: other.nfe, default=None)


def _cell_of(pool: Pooled) -> tuple[str, str, int]:
    """What a "cell" of the main table is: setting, rule and budget."""
    return setting(pool.first), rule_name(pool.first.rule), pool.first.budget


def _lowest_note(pools: Sequence[Pooled]) -> str:
    """In how many cells spot has the lowest NFE."""
    contested = [same for same in grouped(pools, _cell_of).values() if sum(one.competes for one in same) > 1]
    ours = [same for same in contested if any(one.first.method == SPOT for one in same)]
    won = sum(any(one.first.method == SPOT for one in lowest(same)) for same in ours)
    return (
        f"Bold: lowest NFE among the methods that see no future, at one budget and rule. spot has it in {won} of "
        f"{len(ours)} such cells. A coarser rule makes every method better; compare methods within a rule."
    )
