"""`spot-train report`: results files to Markdown, PNG figures and one self-contained HTML page. Runs nothing.

Every number comes off the results files, so a table can be rendered again without a run, and comes out the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spot_infer.atomic import new_folder, write_file
from spot_infer.errors import SpotError
from spot_train.report.document import Report
from spot_train.report.figures import draw
from spot_train.report.html import render_html
from spot_train.report.markdown import render_markdown
from spot_train.report.sections import build_report
from spot_train.results import RESULTS, Row, read_rows

MARKDOWN, HTML, FIGURES = "report.md", "report.html", "figures"


def read_results(paths: Sequence[Path]) -> list[Row]:
    """The rows of all files, in order; of a folder, the file that bench wrote there.

    Raises SpotError for a file that is torn, empty or no results file.
    """
    rows: list[Row] = []
    for place in paths:
        path = place / RESULTS if place.is_dir() else place
        found = read_rows(path)
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            raise SpotError(f"results file {path} ends in a torn line; let bench resume it, which cuts the line")
        if not found:
            raise SpotError(f"results file {path} holds no rows; give a file that bench has written rows to")
        rows += found
    return rows


def write_report(paths: Sequence[Path], out: Path) -> Report:
    """Render results files to `out`/report.md, report.html and figures/*.png, whole or not at all.

    A report that stood there is replaced. Raises SpotError for bad rows, and where `out` is a file or holds anything
    that no report wrote.
    """
    report = build_report(read_results(paths))
    out = out.resolve()
    _refuse_foreign(out)
    pictures = {plot.name: draw(plot) for plot in report.plots}
    with new_folder(out) as folder:
        (folder / FIGURES).mkdir()
        for name, png in pictures.items():
            write_file(folder / FIGURES / f"{name}.png", png)
        write_file(folder / MARKDOWN, render_markdown(report, FIGURES).encode())
        write_file(folder / HTML, render_html(report, pictures).encode())
    return report


def _refuse_foreign(out: Path) -> None:
    """Raise SpotError if replacing `out` would delete something that is not a report's."""
    if not out.exists():
        return
    foreign = [] if out.is_dir() else [out]
    if out.is_dir():
        foreign += [one for one in out.iterdir() if one.name not in (MARKDOWN, HTML, FIGURES)]
        foreign += [one for one in (out / FIGURES).glob("*") if one.suffix != ".png"]
    if foreign:
        raise SpotError(f"--out would replace {foreign[0]}, which no report wrote; give a new folder")
