"""What a report is made of: sections of sentences, tables and plots. Knows no format and no results file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

PlotKind = Literal["lines", "bars", "stacked", "reliability"]


@dataclass(frozen=True)
class Value:
    """One table value, as plain text. `best` is printed bold."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A titled table. The first column names the row.

    groups: spanning headers over the columns, (text, columns spanned), left to right; empty where there are none.
    breaks: indexes of the rows that open a new group of rows.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    groups: tuple[tuple[str, int], ...] = ()
    breaks: frozenset[int] = frozenset()

    def without_empty_columns(self, absent: str) -> Table:
        """The table less the columns in which every row says `absent`."""
        kept = [i for i in range(len(self.columns)) if i == 0 or any(row[i].text != absent for row in self.rows)]
        spans: list[tuple[str, int]] = []
        first = 0
        for text, span in self.groups:
            left = sum(first <= index < first + span for index in kept)
            first += span
            spans += [(text, left)] if left else []
        return replace(
            self,
            columns=tuple(self.columns[index] for index in kept),
            rows=tuple(tuple(row[index] for index in kept) for row in self.rows),
            groups=tuple(spans),
        )


@dataclass(frozen=True)
class Series:
    """Points under one label; a None in y is a gap.

    error: half-width of each point's bar. style: what it looks like, so that one method looks the same in all plots;
    None takes the series' place in its plot.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    error: tuple[float, ...] = ()
    style: int | None = None


@dataclass(frozen=True)
class Plot:
    """One figure with one pair of axes.

    name: its file's name, without suffix. categories: names of x = 0, 1, … for bars; empty where x is a quantity.
    reference: a horizontal line, (height, what it is). y_range: fixed limits, so that neighbours share a scale.
    """

    name: str
    title: str
    kind: PlotKind
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    categories: tuple[str, ...] = ()
    reference: tuple[float, str] | None = None
    y_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Section:
    """One suite: the sentence that says what it answers and of what, then its tables, plots, notes and commands."""

    name: str
    title: str
    opening: str
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """Everything that is rendered."""

    title: str
    opening: str
    sections: tuple[Section, ...]
    closing: tuple[str, ...] = ()

    @property
    def plots(self) -> tuple[Plot, ...]:
        return tuple(plot for section in self.sections for plot in section.plots)


def texts(values: Iterable[str]) -> tuple[Value, ...]:
    """A row of values that are not best."""
    return tuple(Value(value) for value in values)
