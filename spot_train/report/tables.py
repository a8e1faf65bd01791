"""Pooled rows to table values: which methods stand in a row, which conditions side by side, which figures of each.

Pure. One engine for every suite's table; a suite says what its rows, groups and figures are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from spot_train.report.cells import ABSENT, Pooled, grouped
from spot_train.report.document import Table, Value, texts

Best = Callable[[Sequence[Pooled]], Iterable[Pooled]]
"""Of pools that are compared with each other, those to print bold."""


@dataclass(frozen=True)
class Measure:
    """A column under every group: its name and what it prints of a pool. bold: whether the best one stands out."""

    name: str
    text: Callable[[Pooled], str]
    bold: bool = False


@dataclass(frozen=True)
class Layout:
    """How pools become a table.

    row: a pool's names in the leading columns, which `row_names` head; group: the spanning header its measures stand
    under; block: pools of one block and group are compared for `best`, and blocks are ruled off.
    """

    row_names: tuple[str, ...]
    row: Callable[[Pooled], tuple[str, ...]]
    group: Callable[[Pooled], str]
    measures: tuple[Measure, ...]
    block: Callable[[Pooled], Hashable]
    best: Best = lambda pools: ()


def lay_out(title: str, pools: Sequence[Pooled], layout: Layout) -> Table:
    """The table, rows and groups in order of first appearance.

    Where two pools share a place, both are printed: a figure is never dropped.
    """
    groups = list(dict.fromkeys(map(layout.group, pools)))
    compared = grouped(pools, lambda one: (layout.block(one), layout.group(one)))
    best = {id(one) for same in compared.values() for one in layout.best(same)}
    by_row = grouped(pools, lambda one: (layout.block(one), layout.row(one)))
    rows: list[tuple[Value, ...]] = []
    breaks: set[int] = set()
    last: Hashable = None
    for (block, names), members in by_row.items():
        if rows and block != last:
            breaks.add(len(rows))
        last = block
        by_group = grouped(members, layout.group)
        figures = [_value(measure, by_group.get(group, ()), best) for group in groups for measure in layout.measures]
        rows.append((*texts(names), *figures))
    return Table(
        title=title,
        columns=(*layout.row_names, *(measure.name for _ in groups for measure in layout.measures)),
        rows=tuple(rows),
        groups=(("", len(layout.row_names)), *((group, len(layout.measures)) for group in groups)),
        breaks=frozenset(breaks),
    )


def _value(measure: Measure, members: Sequence[Pooled], best: set[int]) -> Value:
    if not members:
        return Value(ABSENT)
    text = " / ".join(measure.text(one) for one in members)
    return Value(text, measure.bold and text != ABSENT and any(id(one) in best for one in members))
