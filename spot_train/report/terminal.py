"""The main tables in a terminal, one commit rule below the other. Knows nothing about pages and pictures."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from spot_train.report.cells import ABSENT
from spot_train.report.document import Report, Section, Table


def print_summary(console: Console, report: Report) -> None:
    """The tables of the `main` suite; without one, what the report holds."""
    for section in report.sections:
        if section.name == "main":
            _print_section(console, section)
            return
    titles = ", ".join(section.title for section in report.sections)
    console.print(Text(f"No main suite in these results; the report holds: {titles}."), soft_wrap=True)


def _print_section(console: Console, section: Section) -> None:
    console.print(Text(section.opening), soft_wrap=True)
    for table in section.tables:
        for part in by_group(table):
            console.print(_rich(part.without_empty_columns(ABSENT)))
    for note in section.notes:
        console.print(Text(note), soft_wrap=True)


def by_group(table: Table) -> Iterator[Table]:
    """The leading columns with the columns of one spanning header at a time, since a terminal is narrow."""
    spans = table.groups or (("", len(table.columns)),)
    leading = spans[0][1]
    first = leading
    for text, span in spans[1:] or (("", 0),):
        kept = [*range(leading), *range(first, first + span)]
        first += span
        yield Table(
            f"{table.title}, {text}" if text else table.title,
            tuple(table.columns[index] for index in kept),
            tuple(tuple(row[index] for index in kept) for row in table.rows),
            breaks=table.breaks,
        )


def _rich(table: Table) -> RichTable:
    shown = RichTable(
        title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for index, name in enumerate(table.columns):
        header = Text(name.replace(" ", "\n"))
        shown.add_column(header, justify="left" if index == 0 else "right", no_wrap=True)
    for index, row in enumerate(table.rows):
        closes = index + 1 in table.breaks
        shown.add_row(*(Text(one.text, style="bold" if one.best else "") for one in row), end_section=closes)
    return shown
