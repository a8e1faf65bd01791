"""A report as Markdown (GitHub's dialect). Text from the results file is escaped; pictures are linked, not embedded."""

from __future__ import annotations

import re

from spot_train.report.document import Plot, Report, Section, Table, Value

_SPECIAL = re.compile(r"[\\`*\[\]|~]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")


def render_markdown(report: Report, folder: str = "figures") -> str:
    """The whole report; pictures are `folder`/NAME.png."""
    parts = [f"# {escape(report.title)}", escape(report.opening)]
    for section in report.sections:
        parts += _section(section, folder)
    parts += [escape(sentence) for sentence in report.closing]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line, in a table or outside."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(lambda found: "\\" + found[0], text)


def render_table(table: Table) -> str:
    """A pipe table; spanning headers go in front of their columns' names, since pipe tables have none. One that spans
    all columns but the names is left to `table_title`."""
    names = list(table.columns)
    first = 0
    for text, span in table.groups:
        for index in range(first, first + span) if text and text != _spanning(table) else ():
            names[index] = f"{text}: {names[index]}"
        first += span
    rule = "|".join([" --- ", *[" ---: "] * (len(names) - 1)])
    lines = [f"| {' | '.join(map(escape, names))} |", f"|{rule}|"]
    lines += [f"| {' | '.join(map(_value, row))} |" for row in table.rows]
    return "\n".join(lines)


def table_title(table: Table) -> str:
    """The table's title, with the spanning header that all its figures stand under."""
    return f"{table.title}; {text}" if (text := _spanning(table)) else table.title


def _spanning(table: Table) -> str:
    """The only spanning header there is, or nothing."""
    headers = [text for text, _ in table.groups if text]
    return headers[0] if len(headers) == 1 else ""


def _section(section: Section, folder: str) -> list[str]:
    parts = [f"## {escape(section.title)}", escape(section.opening)]
    for table in section.tables:
        parts += [f"**{escape(table_title(table))}**", render_table(table)]
    parts += [_picture(plot, folder) for plot in section.plots]
    parts += [escape(note) for note in section.notes]
    return parts + [_code(command) for command in section.commands]


def _picture(plot: Plot, folder: str) -> str:
    return f"![{escape(plot.title)}]({folder}/{plot.name}.png)"


def _value(value: Value) -> str:
    text = escape(value.text)
    return f"**{text}**" if value.best and text else text


def _code(command: str) -> str:
    longest = max((len(run) for run in re.findall("`+", command)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{command}\n{fence}"
