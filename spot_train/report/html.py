"""A report as one HTML page that needs nothing else: style and pictures are inside, and no script is.

Text from the results file is escaped. A table wider than the screen scrolls inside its own box; pictures shrink.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape as _escape
from importlib import resources

from spot_train.report.document import Plot, Report, Section, Table, Value


def render_html(report: Report, pictures: Mapping[str, bytes]) -> str:
    """The page. pictures: PNG bytes by plot name."""
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    links = "".join(f'<li><a href="#{escape(one.name)}">{escape(one.title)}</a></li>' for one in report.sections)
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(report.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>",
        f"<h1>{escape(report.title)}</h1>\n<p>{escape(report.opening)}</p>",
        f"<nav><ul>{links}</ul></nav>",
        *(_section(section, pictures) for section in report.sections),
        "<footer>" + "".join(f"<p>{escape(sentence)}</p>" for sentence in report.closing) + "</footer>",
        "</main>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def escape(text: str) -> str:
    """Text as it is, in an element or in a quoted attribute."""
    return _escape(text, quote=True)


def render_table(table: Table) -> str:
    """A table with its caption, inside a box that scrolls."""
    head = ""
    if table.groups:
        spans = "".join(f'<th colspan="{span}" scope="colgroup">{escape(text)}</th>' for text, span in table.groups)
        head += f'<tr class="groups">{spans}</tr>'
    head += "<tr>" + "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns) + "</tr>"
    body = "\n".join(_row(row, index in table.breaks) for index, row in enumerate(table.rows))
    return (
        f'<figure class="table"><figcaption>{escape(table.title)}</figcaption>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f"<table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div></figure>"
    )


def _section(section: Section, pictures: Mapping[str, bytes]) -> str:
    parts = [f'<section id="{escape(section.name)}">\n<h2>{escape(section.title)}</h2>']
    parts += [f"<p>{escape(section.opening)}</p>"]
    parts += [render_table(table) for table in section.tables]
    if section.plots:
        parts += ['<div class="plots">', *(_picture(plot, pictures[plot.name]) for plot in section.plots), "</div>"]
    parts += [f'<p class="note">{escape(note)}</p>' for note in section.notes]
    if section.commands:
        commands = "\n".join(map(escape, section.commands))
        parts += [f"<p>Made by:</p>\n<pre><code>{commands}</code></pre>"]
    return "\n".join([*parts, "</section>"])


def _row(row: tuple[Value, ...], opens: bool) -> str:
    """The first value names the row; on a narrow screen it breaks after underscores."""
    name, *rest = row
    values = "".join(f"<td>{_value(value)}</td>" for value in rest)
    shown = _value(name).replace("_", "_<wbr>")
    return f'<tr{" class=opens" if opens else ""}><th scope="row">{shown}</th>{values}</tr>'


def _value(value: Value) -> str:
    return f"<strong>{escape(value.text)}</strong>" if value.best else escape(value.text)


def _picture(plot: Plot, png: bytes) -> str:
    data = base64.b64encode(png).decode("ascii")
    return f'<figure class="plot"><img alt="{escape(plot.title)}" src="data:image/png;base64,{data}"></figure>'
