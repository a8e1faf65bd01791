"""Curves as tables and plots: lines, stacked shares, reliability diagrams. Pure.

One table for all curves with the same axes; one plot for each condition they were measured under.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from spot_train.report.cells import grouped, rule_name, stop_name
from spot_train.report.compare_cells import Content
from spot_train.report.document import Plot, PlotKind, Series, Table, Value, texts
from spot_train.report.measures import number
from spot_train.results import Curve

ATTRIBUTION = frozenset(("position", "token", "budget"))
FACTS: dict[str, Callable[[Curve], str]] = {
    "task": lambda curve: curve.task,
    "target": lambda curve: curve.target,
    "drafter": lambda curve: curve.drafter or "",
    "rule": lambda curve: rule_name(curve.rule),
    "T": lambda curve: f"{curve.temperature:g}",
    "stop": lambda curve: stop_name(curve.ignore_stop).removeprefix("stop "),
    "prompts": lambda curve: str(curve.n),
}
TOLD = ("task", "rule", "T", "stop", "prompts")
"""Facts that a title tells even where all curves of a suite share them."""


def curves(suite: str, found: Sequence[Curve]) -> Content:
    """Tables and plots of a suite's curves."""
    content = Content()
    for same in grouped(found, lambda curve: (curve.x_label, curve.y_label)).values():
        content.tables += [_table(members, same) for members in grouped(same, _places(same)).values()]
        kind = _kind(same)
        if kind is None:
            continue
        for members in grouped(same, _condition).values():
            content.plots.append(_plot(f"{suite}-{len(content.plots) + 1}", kind, members, same))
    return content


def _kind(same: Sequence[Curve]) -> PlotKind | None:
    """How curves are drawn; None for what a table says better: named quantities, and how many states a bin holds."""
    if _named(same):
        return None
    if {one.series for one in same} <= ATTRIBUTION:
        return "stacked"
    if same[0].x_label.startswith("mass"):
        return "reliability" if _are_shares(same) else None
    return "lines"


def _plot(name: str, kind: PlotKind, members: Sequence[Curve], same: Sequence[Curve]) -> Plot:
    """A condition's curves; `same` are those of all conditions, with which it shares the height of its axes."""
    told = {fact: _word(fact, members[0]) for fact in FACTS if fact in TOLD or _varies(fact, same)}
    top = max((y for one in same for y in one.y if y is not None), default=0.0)
    limit = 1.0 if kind == "stacked" else 1.05 if _are_shares(same) else 1.05 * top
    return Plot(
        name=name,
        title=f"{members[0].y_label} ({', '.join(word for word in told.values() if word)})",
        kind=kind,
        x_label=members[0].x_label,
        y_label=members[0].y_label,
        series=tuple(Series(one.series, tuple(map(float, one.x)), tuple(one.y)) for one in members),
        y_range=(0.0, limit) if limit > 0 else None,
    )


def _places(same: Sequence[Curve]) -> Callable[[Curve], Hashable]:
    """What curves of one table have in common: measured x differ from condition to condition, counted x don't."""
    counted = _named(same) or all(float(x).is_integer() for one in same for x in one.x)
    return (lambda curve: None) if counted else _condition


def _table(same: Sequence[Curve], every: Sequence[Curve]) -> Table:
    """Curves down, with whatever facts tell them apart; x across. `every` are all curves with these axes."""
    varying = [fact for fact in FACTS if _varies(fact, same)]
    titled = [fact for fact in FACTS if fact not in varying and (fact in TOLD or _varies(fact, every))]
    told = [word for fact in titled if (word := _word(fact, same[0]))]
    places = list(dict.fromkeys(x for one in same for x in one.x))
    if not _named(same):
        places.sort(key=float)
    decimals = _decimals(every)
    rows: list[tuple[Value, ...]] = []
    breaks: set[int] = set()
    last = _condition(same[0])
    for one in same:
        condition = _condition(one)
        if condition != last:
            breaks.add(len(rows))
        last = condition
        values = dict(zip(one.x, one.y, strict=True))
        rows.append(
            texts(
                (
                    one.series,
                    *(FACTS[fact](one) for fact in varying),
                    *(number(values.get(x), decimals) for x in places),
                )
            )
        )
    leading = 1 + len(varying)
    named = _named(same)
    title = f"{same[0].x_label}: {same[0].y_label}" if named else same[0].y_label
    return Table(
        title=f"{title} ({', '.join(told)})" if told else title,
        columns=("curve", *varying, *(x if isinstance(x, str) else f"{x:.3g}" for x in places)),
        rows=tuple(rows),
        groups=(("", leading), (same[0].x_label, len(places))) if places and not named else (),
        breaks=frozenset(breaks),
    )


def _condition(curve: Curve) -> tuple[str, ...]:
    return tuple(fact(curve) for fact in FACTS.values())


def _named(same: Sequence[Curve]) -> bool:
    """Whether x is names instead of numbers."""
    return any(isinstance(x, str) for one in same for x in one.x)


def _are_shares(same: Sequence[Curve]) -> bool:
    return "share" in same[0].y_label or all(0 <= y <= 1 for one in same for y in one.y if y is not None)


def _varies(fact: str, same: Sequence[Curve]) -> bool:
    return len({FACTS[fact](one) for one in same}) > 1


def _word(fact: str, curve: Curve) -> str:
    """A fact as a title says it."""
    text = FACTS[fact](curve)
    return {"rule": f"rule {text}", "T": f"T = {text}", "stop": f"stop {text}", "prompts": f"{text} prompts"}.get(
        fact, text
    )


def _decimals(every: Sequence[Curve]) -> int:
    """Decimals for all curves of a table: shares get three, counts none."""
    values = [y for one in every for y in one.y if y is not None]
    if all(float(y).is_integer() for y in values) and any(abs(y) > 1 for y in values):
        return 0
    return 3 if all(abs(y) <= 1 for y in values) else 2
