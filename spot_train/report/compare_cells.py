"""What every suite of cells shares: one table or plot a setting, pools in reading order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spot_train.report.cells import DRAFT_FREE, Pooled, grouped, method_rank, rule_name, setting, styles
from spot_train.report.document import Plot, Series, Table
from spot_train.report.scope import setting_title
from spot_train.report.tables import Layout, lay_out

Number = Callable[[Pooled], float | None]
Name = Callable[[Pooled], str]


@dataclass
class Content:
    """Tables, plots and notes of one suite, in order."""

    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Curves:
    """How pools become lines: y over x, a line each `line`, a plot each `apart`, with or without error bars."""

    x_label: str
    y_label: str
    x: Number
    y: Number
    line: Name
    apart: Name = lambda pool: f"rule {rule_name(pool.first.rule)}"
    intervals: bool = False
    reference: tuple[float, str] | None = None


@dataclass(frozen=True)
class Bars:
    """How pools become bars: a bar each `line`, `y` high, over the category that `category` names."""

    x_label: str
    y_label: str
    category: Name
    y: Callable[[Pooled], float]
    line: Name
    style: Mapping[str, int] = field(default_factory=dict)

    def plot(self, name: str, title: str, pools: Sequence[Pooled], shown: Mapping[str, str], highest: float) -> Plot:
        """One plot of `pools`. shown: the categories in order, and what stands below each; highest: the axis' last
        bar."""
        places = {category: float(place) for place, category in enumerate(shown)}
        series = tuple(
            Series(
                label,
                tuple(places[self.category(one)] for one in same),
                tuple(self.y(one) for one in same),
                style=self.style.get(label),
            )
            for label, same in grouped(pools, self.line).items()
        )
        return Plot(
            name=name,
            title=title,
            kind="bars",
            x_label=self.x_label,
            y_label=self.y_label,
            series=series,
            categories=tuple(shown.values()),
            y_range=(0.0, 1.05 * highest),
        )


def in_order(pools: Iterable[Pooled]) -> list[Pooled]:
    """By method, untrained ones first and oracles last; within a method by budget, then by setting, so that settings
    stand in one order whichever was measured first."""

    def place(one: Pooled) -> tuple[float, ...]:
        cell = one.first
        return method_rank(cell.method), cell.budget, cell.temperature, cell.ignore_stop, cell.mode == "real", -cell.n

    return sorted(pools, key=place)


def by_budget(pools: Iterable[Pooled]) -> list[Pooled]:
    """Draft-free first, then budget by budget."""
    return sorted(pools, key=lambda one: one.first.budget)


def budget_name(pool: Pooled) -> str:
    if pool.first.method == DRAFT_FREE:
        return ""
    return "auto" if "curve" in pool.first.options else str(pool.first.budget)


def tables_by_setting(pools: Sequence[Pooled], layout: Layout, beside: Iterable[str] = ()) -> list[Table]:
    """One table a setting; the fields in `beside` stand in rows or columns, so they tell no settings apart."""
    cells = [pool.first for pool in pools]
    apart = tuple(beside)
    return [
        lay_out(setting_title(same[0].first, cells, apart), same, layout)
        for same in grouped(pools, lambda one: setting(one.first, *apart)).values()
    ]


def plots_by_setting(suite: str, pools: Sequence[Pooled], curves: Curves, beside: Iterable[str] = ()) -> list[Plot]:
    """One plot a setting and rule; plots of one setting share the height of their axes."""
    cells = [pool.first for pool in pools]
    apart = tuple(beside)
    style = styles(pools, curves.line)
    plots: list[Plot] = []
    for same in grouped(pools, lambda one: setting(one.first, *apart)).values():
        heights = [y + (_error(one) if curves.intervals else 0.0) for one in same if (y := curves.y(one)) is not None]
        if not heights:
            continue
        heights += [curves.reference[0]] if curves.reference else []
        for which, members in grouped(same, curves.apart).items():
            title = f"{setting_title(same[0].first, cells, apart)}, {which}"
            series = _lines(members, curves, style)
            if series:
                plots.append(
                    Plot(
                        name=f"{suite}-{len(plots) + 1}",
                        title=title,
                        kind="lines",
                        x_label=curves.x_label,
                        y_label=curves.y_label,
                        series=series,
                        reference=curves.reference,
                        y_range=(0.0, 1.05 * max(heights)),
                    )
                )
    return plots


def _lines(pools: Sequence[Pooled], curves: Curves, style: Mapping[str, int]) -> tuple[Series, ...]:
    found = []
    for label, same in grouped(pools, curves.line).items():
        points = sorted(
            (x, y, _error(one)) for one in same if (x := curves.x(one)) is not None and (y := curves.y(one)) is not None
        )
        if points:
            across, up, error = (tuple(axis) for axis in zip(*points, strict=True))
            found.append(Series(label, across, up, error if curves.intervals and any(error) else (), style[label]))
    return tuple(found)


def _error(pool: Pooled) -> float:
    """Half the width of the reduction's interval, 0 without one."""
    return 0.0 if pool.interval is None else (pool.interval[1] - pool.interval[0]) / 2
