"""Markdown, HTML and terminal of a report: nothing in a results file can break them, and all say the same."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_results import COARSE, cell, made_up_rows, real_cell
from rich.console import Console

from spot_train.report.document import Report, Section, Table, Value, texts
from spot_train.report.html import render_html
from spot_train.report.html import render_table as html_table
from spot_train.report.markdown import escape as markdown_escape
from spot_train.report.markdown import render_markdown
from spot_train.report.markdown import render_table as markdown_table
from spot_train.report.sections import build_report
from spot_train.report.terminal import print_summary

HOSTILE = "<script>alert(1)</script> | `x` **b** [l](javascript:x) \\ &amp; \"q\" 'q' </td></style>"


class Page(HTMLParser):
    """Collects the tags and the texts of table cells."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.cells: list[str] = []
        self._inside = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag in ("td", "th"):
            self._inside = True
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.cells[-1] += data


def cells_of(line: str) -> list[str]:
    """The cells of a Markdown table's line, read as the dialect does: an escaped pipe ends none."""
    return [part.strip() for part in re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1]]


def unescaped(text: str) -> str:
    text = re.sub(r"\\([\\`*_\[\]|~])", r"\1", text)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


TEXT = st.text(min_size=1, max_size=30).filter(lambda text: text.strip() and "\x00" not in text and "\r" not in text)


@settings(max_examples=60, deadline=None)
@given(names=st.lists(TEXT, min_size=2, max_size=2), title=TEXT)
def test_any_text_survives_both_formats(names, title):
    table = Table(title, ("method", names[0]), (texts((names[1], "1")), (Value(names[0], True), Value("2"))))
    page = Page(html_table(table))
    assert page.cells == ["method", names[0], names[1], "1", names[0], "2"]
    assert ("aria-label", title) in page.attributes
    assert set(page.tags) <= {
        "figure",
        "figcaption",
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "strong",
        "wbr",
    }
    lines = markdown_table(table).split("\n")
    assert len(lines) == 4
    assert all(line.count("|") - len(re.findall(r"\\\|", line)) >= 3 for line in lines)


@settings(max_examples=100, deadline=None)
@given(text=TEXT)
def test_markdown_escapes_can_be_undone_and_leave_no_tag_and_no_bare_pipe(text):
    escaped = markdown_escape(text)
    assert unescaped(escaped) == " ".join(text.split())
    assert "<" not in escaped and ">" not in escaped
    assert not re.search(r"(?<!\\)(?:\\\\)*\|", escaped)


def test_a_hostile_name_breaks_no_format():
    report = build_report([real_cell(HOSTILE, task=HOSTILE), real_cell(task=HOSTILE)])
    page = render_html(report, {plot.name: b"" for plot in report.plots})
    found = Page(page)
    assert HOSTILE in found.cells
    assert "script" not in found.tags and page.count("</style>") == 1
    markdown = render_markdown(report)
    assert "<" not in re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    for block in re.findall(r"(?:^\|.*\n)+", markdown, flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_a_hostile_command_stays_inside_its_code_block():
    made = {"argv": ["spot-train", "bench", "```\n# not a heading", "</pre><b>"], "versions": {}}
    report = build_report([cell(provenance=made)])
    assert "````sh\n" in render_markdown(report)
    assert "b" not in Page(render_html(report, {plot.name: b"" for plot in report.plots})).tags


def test_the_page_needs_nothing_outside_and_no_script():
    report = build_report(made_up_rows())
    page = render_html(report, {plot.name: b"png" for plot in report.plots})
    found = Page(page)
    assert not {"script", "link", "iframe", "object"} & set(found.tags)
    sources = [value or "" for name, value in found.attributes if name in ("src", "href", "srcset")]
    assert sources and all(value.startswith(("data:image/png;base64,", "#")) for value in sources)
    assert "http" not in page and "@import" not in page and "url(" not in page


def test_both_formats_print_every_value_of_every_table():
    report = build_report(made_up_rows())
    page = Page(render_html(report, {plot.name: b"" for plot in report.plots}))
    tables = [table for section in report.sections for table in section.tables]
    expected = [one.text for table in tables for row in table.rows for one in row]
    bodies = [text for text in page.cells if text in set(expected)]
    assert len(bodies) >= len(expected)
    markdown = render_markdown(report)
    assert all(markdown_table(table) in markdown for table in tables)


def test_spanning_headers_cover_all_columns_and_stand_in_front_of_markdown_names():
    for section in build_report(made_up_rows()).sections:
        for table in section.tables:
            assert not table.groups or sum(span for _, span in table.groups) == len(table.columns)
            assert all(len(row) == len(table.columns) for row in table.rows)
    one, both = (render_markdown(build_report(rows)) for rows in ([cell()], [cell(), cell(rule=COARSE)]))
    assert "replayed; rule float32**" in one and "| NFE |" in one
    assert "| rule float32: NFE |" in both


def test_dropping_empty_columns_keeps_the_headers_over_their_columns():
    table = Table("t", ("m", "a", "b", "c"), (texts(("x", "–", "1", "–")),), (("", 1), ("left", 2), ("right", 1)))
    kept = table.without_empty_columns("–")
    assert kept.columns == ("m", "b") and kept.groups == (("", 1), ("left", 1))


@pytest.mark.parametrize("width", [80, 140])
def test_the_terminal_shows_the_main_table_uncut(width):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_summary(console, build_report(made_up_rows()))
    printed = console.export_text()
    assert "…" not in printed
    assert "2.35x (2.00–2.70)" in printed or "2.42x (2.00–2.70)" in printed
    assert "spot has it in" in printed


def test_without_a_main_suite_the_terminal_says_what_there_is():
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_summary(console, build_report([cell(suite="oracle")]))
    assert "Oracles" in console.export_text()


def test_an_empty_report_page_is_still_a_page():
    report = Report("t", "o", (Section("a", "A", "o."),))
    assert Page(render_html(report, {})).tags[0] == "html"
