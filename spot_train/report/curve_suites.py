"""The suites of curves: `coverage` as lines, `calibration` as a reliability diagram and stacked shares. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spot_train.report.cells import ABSENT, grouped, rule_name, stop_name
from spot_train.report.compare_cells import Content
from spot_train.report.document import Plot, PlotKind, Series, Table, Value, texts
from spot_train.results import Curve

ATTRIBUTION = frozenset(("position", "token", "budget"))


def curves(suite: str, found: Sequence[Curve]) -> Content:
    """A plot and a table for every set of curves that share their axes and their condition."""
    content = Content()
    for same in grouped(found, _axes).values():
        title = _title(same[0], found)
        content.plots.append(_plot(f"{suite}-{len(content.plots) + 1}", title, same))
        content.tables.append(_table(title, same))
    return content


def _axes(curve: Curve) -> tuple[object, ...]:
    return (
        *(curve.task, curve.target, curve.drafter, rule_name(curve.rule), curve.temperature, curve.ignore_stop),
        *(curve.x_label, curve.y_label, curve.n),
    )


def _title(curve: Curve, curves: Sequence[Curve]) -> str:
    parts = [curve.task]
    for name in ("target", "drafter"):
        if len({getattr(one, name) for one in curves}) > 1 and getattr(curve, name):
            parts.append(str(getattr(curve, name)))
    parts += [f"rule {rule_name(curve.rule)}", f"T = {curve.temperature:g}", stop_name(curve.ignore_stop)]
    return f"{curve.y_label}, by {curve.x_label} ({', '.join(parts)}, {curve.n} prompts)"


def _kind(same: Sequence[Curve]) -> PlotKind:
    if {one.series for one in same} <= ATTRIBUTION:
        return "stacked"
    return "reliability" if "mass" in same[0].x_label else "lines"


def _plot(name: str, title: str, same: Sequence[Curve]) -> Plot:
    kind = _kind(same)
    labels = list(dict.fromkeys(str(x) for one in same for x in one.x))
    categories = tuple(labels) if any(isinstance(x, str) for one in same for x in one.x) else ()
    series = tuple(
        Series(one.series, tuple(float(labels.index(str(x))) if categories else float(x) for x in one.x), tuple(one.y))
        for one in same
    )
    share = kind == "stacked" or all(0 <= y <= 1 for one in same for y in one.y if y is not None)
    y_range = (0.0, 1.0 if kind == "stacked" else 1.05) if share else None
    return Plot(name, title, kind, same[0].x_label, same[0].y_label, series, categories, y_range=y_range)


def _table(title: str, same: Sequence[Curve]) -> Table:
    """Series down, x across."""
    places = list(dict.fromkeys(x for one in same for x in one.x))
    places = places if any(isinstance(x, str) for x in places) else sorted(places)
    rows = []
    for one in same:
        values = dict(zip(one.x, one.y, strict=True))
        rows.append((Value(one.series), *texts(_number(values.get(x)) for x in places)))
    columns = (same[0].x_label, *(x if isinstance(x, str) else f"{x:.3g}" for x in places))
    return Table(title, columns, tuple(rows))


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3f}" if abs(value) <= 1 else f"{value:.2f}"
