"""Figures without overlap, folders whole or not at all, and the page as a browser lays it out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from itertools import combinations
from pathlib import Path

import pytest
from made_up_results import cell, curve, made_up_rows, real_cell
from matplotlib.figure import Figure

from spot_infer.errors import SpotError
from spot_train.cli import run
from spot_train.report import write_report
from spot_train.report.document import Plot, Series
from spot_train.report.figures import compose, draw
from spot_train.report.sections import build_report
from spot_train.results import RESULTS, append_rows

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PHONE_PX = 390
MEASURE = """<!doctype html><meta charset="utf-8"><body>
<iframe style="width: {width}px; height: 800px; border: 0" onload="measure(this)" srcdoc="{page}"></iframe>
<script>
function measure(frame) {{
  const page = frame.contentDocument, edge = frame.contentWindow.innerWidth;
  const wide = [...page.querySelectorAll('body *')].filter(one => !one.closest('.scroll table')
    && one.getBoundingClientRect().right > edge + 0.5).map(one => one.tagName + ' ' + one.className);
  const boxes = [...page.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth).length;
  const pictures = [...page.querySelectorAll('img')].map(one => one.naturalWidth);
  document.body.dataset.measured = JSON.stringify({{edge, wide, boxes, pictures,
    page: page.documentElement.scrollWidth}});
}}
</script></body>"""


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts whose boxes meet, and texts that the picture's edge cuts."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    axes = figure.axes[0]
    frame = axes.get_window_extent(renderer)
    ticks = [
        label
        for axis, low, high in ((axes.xaxis, frame.x0, frame.x1), (axes.yaxis, frame.y0, frame.y1))
        for label, place in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
        if low - 1 <= axes.transData.transform((place, place))[0 if axis is axes.xaxis else 1] <= high + 1
    ]
    legend = [text for one in figure.legends for text in one.get_texts()]
    titles = [*figure.texts, axes.xaxis.label, axes.yaxis.label]
    boxes = [
        (one.get_text(), one.get_window_extent(renderer))
        for one in [*ticks, *legend, *titles]
        if one.get_text().strip()
    ]
    boxes = [(text, box) for text, box in boxes if box.width > 0]
    whole = figure.bbox
    cut = [(text, "edge") for text, box in boxes if box.x0 < -1 or box.x1 > whole.width + 1]
    cut += [(text, "edge") for text, box in boxes if box.y0 < -1 or box.y1 > whole.height + 1]
    covered = [(text.get_text(), "axes") for text in legend if frame.overlaps(text.get_window_extent(renderer))]
    return cut + covered + [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.overlaps(other)]


def odd_plots() -> list[Plot]:
    """Plots at the edges: long names, many points, close points, one point, no legend text, gaps."""
    names = [f"confidence_tree, drawn_confidence=True, a rather long variant {index}" for index in range(9)]
    many = tuple(float(x) for x in range(24))
    reduction = "reduction of target forwards (draft-free = 1x)"
    bars = tuple(Series(f"D {budget}", many[:9], (2.0,) * 9) for budget in (8, 12, 20))
    lines = tuple(Series(name, many, (1.0,) * 24) for name in names)
    close = Series("$a_b$ _x", (0.0, 1.0, 2.0, 20.0), (1.0, None, 2.0, 3.0))
    stack = tuple(Series(name, many, (0.3,) * 24) for name in "abc")
    return [
        Plot("bars", "t" * 30 + " " + "u" * 40, "bars", "method", reduction, bars, tuple(names)),
        Plot("lines", "many", "lines", "budget D (drafted states)", reduction, lines, reference=(1.0, "draft-free")),
        Plot("close", "close", "lines", "D", "x", (close,)),
        Plot("one", "one", "lines", "D", "x", (Series("_hidden", (8.0,), (1.0,), (0.1,)),)),
        Plot("stack", "stack", "stacked", "block", "share", stack),
        Plot("rely", "rely", "reliability", "predicted mass", "accepted", (Series("spot", (0.1, 0.9), (0.2, 0.8)),)),
    ]


def test_no_text_of_a_figure_overlaps_another_or_is_cut():
    for plot in [*build_report(made_up_rows()).plots, *odd_plots()]:
        assert overlaps(compose(plot)) == [], plot.name


def test_every_figure_names_both_axes_and_every_series():
    for plot in [*build_report(made_up_rows()).plots, *odd_plots()]:
        figure = compose(plot)
        axes = figure.axes[0]
        assert axes.get_xlabel() and axes.get_ylabel()
        guides = (plot.reference is not None) + (plot.kind == "reliability")
        assert len(figure.legends[0].get_texts()) == len(plot.series) + guides


def test_equal_plots_give_equal_bytes():
    (plot,) = build_report([curve()]).plots
    assert draw(plot) == draw(plot)
    assert draw(plot).startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("results") / "main.jsonl"
    long = "a-very-long-method-name-without-any-break-in-it-that-a-phone-cannot-hold-on-one-line"
    append_rows(path, [*made_up_rows(), real_cell(long, suite="budget", task=long)])
    return path


def test_the_command_writes_all_formats_and_again_the_same_bytes(results, tmp_path, capsys):
    assert run(["report", str(results), "--out", str(tmp_path / "a")]) == 0
    assert "spot has it in" in capsys.readouterr().out
    written = {
        one.relative_to(tmp_path / "a"): one.read_bytes() for one in (tmp_path / "a").rglob("*") if one.is_file()
    }
    assert {Path("report.md"), Path("report.html")} < set(written)
    markdown = written[Path("report.md")].decode()
    linked = set(re.findall(r"\]\((figures/[^)]+)\)", markdown))
    assert linked == {one.as_posix() for one in written if one.suffix == ".png"}
    folder = tmp_path / "bench"
    folder.mkdir()
    shutil.copy(results, folder / RESULTS)
    write_report([folder], tmp_path / "a")
    assert written == {one: (tmp_path / "a" / one).read_bytes() for one in written}


def bad_files(folder: Path) -> list[tuple[Path, str]]:
    whole = folder / "whole.jsonl"
    append_rows(whole, [cell()])
    (folder / "empty.jsonl").write_text("")
    (folder / "torn.jsonl").write_bytes(whole.read_bytes() + whole.read_bytes()[:50])
    (folder / "newer.jsonl").write_text(json.dumps(cell().model_dump(mode="json") | {"colour": 1}) + "\n")
    (folder / "suite.jsonl").write_text(cell(suite="speed").model_dump_json() + "\n")
    (folder / "bytes.jsonl").write_bytes(b"\xff\xfe\n")
    words = {"empty": "no rows", "torn": "torn", "newer": "colour", "suite": "speed", "bytes": "line 1", "none": "read"}
    (folder / "folder.jsonl").mkdir()
    words["folder"] = RESULTS
    return [(folder / f"{name}.jsonl", word) for name, word in words.items()]


def test_bad_results_are_one_sentence_and_leave_nothing(tmp_path, capsys):
    for path, word in bad_files(tmp_path):
        assert run(["report", str(path), "--out", str(tmp_path / "out")]) == 2, path
        printed = capsys.readouterr().err
        assert printed.startswith("error: ") and word in printed and printed.count("\n") == 1
        assert not list(tmp_path.glob("out*"))


def test_a_folder_with_other_files_is_not_replaced(results, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SpotError, match=r"notes\.txt"):
        write_report([results], tmp_path)
    with pytest.raises(SpotError, match=r"notes\.txt"):
        write_report([results], tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine to open the page in")
def test_no_element_is_wider_than_a_phone(results, tmp_path):
    write_report([results], tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    measured = tmp_path / "measured.html"
    measured.write_text(MEASURE.format(width=PHONE_PX, page=escape(page, quote=True)), encoding="utf-8")
    quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    quiet += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [str(BROWSER), "--headless", "--no-sandbox", *quiet, "--hide-scrollbars", "--dump-dom"]
    done = subprocess.run([*command, measured.as_uri()], capture_output=True, text=True, timeout=240, check=True)
    found = re.search(r'data-measured="([^"]*)"', done.stdout)
    assert found is not None
    figures = json.loads(unescape(found[1]))
    assert figures["edge"] == PHONE_PX
    assert figures["wide"] == [] and figures["page"] <= PHONE_PX
    assert figures["boxes"] > 0
    assert figures["pictures"] and all(width > PHONE_PX for width in figures["pictures"])
