"""Plots as PNG bytes, drawn by matplotlib without a display. Equal plots give equal bytes.

Sized to be read on a phone: one pair of axes a picture, 5 inches wide, with the legend below it. Colours are Okabe and
Ito's, which colour-blind readers tell apart; line styles, markers and hatches repeat what the colours say.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from spot_train.report.document import Plot, Series

WIDTH_IN, HEIGHT_IN, DPI = 5.0, 3.6, 160
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"),
    *("#000000", "#56B4E9", "#8C8C8C", "#7A4A1F", "#B5A800"),
    *("#332288", "#882255", "#44AA99"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "h", "<", ">")
DODGE = 0.008
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "///", "...", "xx", "\\\\\\", "++")
TITLE_CHARACTERS, ACROSS_CHARACTERS, UP_CHARACTERS, NAME_CHARACTERS, LEGEND_CHARACTERS = 56, 38, 32, 22, 28
FEW_POINTS, MOST_NAMES = 6, 8
DIAGONAL = "predicted = realised"


def draw(plot: Plot) -> bytes:
    """The plot as a PNG."""
    figure = compose(plot)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
    return out.getvalue()


def compose(plot: Plot) -> Figure:
    """The plot as a laid-out figure."""
    legend = _legend_labels(plot)
    figure = Figure(figsize=(WIDTH_IN, _height(plot, legend)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    {"lines": _lines, "reliability": _lines, "bars": _bars, "stacked": _stacked}[plot.kind](axes, plot)
    if plot.kind == "reliability":
        axes.plot([0, 1], [0, 1], color="#555555", linewidth=1, linestyle=":", label=DIAGONAL)
    if plot.reference is not None:
        axes.axhline(plot.reference[0], color="#555555", linewidth=1, linestyle=":", label=_legend(plot.reference[1]))
    _finish(axes, plot)
    figure.suptitle(_filled(plot.title, TITLE_CHARACTERS), fontsize=10.5, x=0.01, ha="left")
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    shown = [handles[label] for label in legend]
    figure.legend(shown, legend, loc="outside lower center", ncols=_legend_columns(legend), fontsize=9, frameon=False)
    return figure


def _height(plot: Plot, legend: Sequence[str]) -> float:
    """Inches: more for many bars and for a long legend."""
    lines = -(-sum(label.count("\n") + 1 for label in legend) // _legend_columns(legend))
    names = sum(name.count("\n") + 1.5 for name in _wrapped(plot.categories, NAME_CHARACTERS))
    bars = max(0.14 * len(plot.series) * len(plot.categories), 0.17 * names)
    return (1.4 + bars if plot.kind == "bars" else HEIGHT_IN) + 0.19 * lines


def _lines(axes: Axes, plot: Plot) -> None:
    """Lines with markers; those with error bars stand a little apart, so that no bar hides another."""
    places = [x for one in plot.series for x in one.x]
    width = max(places, default=0.0) - min(places, default=0.0)
    for index, one in enumerate(plot.series):
        points = [(x, y, i) for i, (x, y) in enumerate(zip(one.x, one.y, strict=True)) if y is not None]
        aside = DODGE * width * (index - (len(plot.series) - 1) / 2) if one.error else 0.0
        style = index if one.style is None else one.style
        axes.errorbar(
            [x + aside for x, _, _ in points],
            [y for _, y, _ in points],
            yerr=[one.error[i] for _, _, i in points] if one.error else None,
            color=COLOURS[style % len(COLOURS)],
            marker=MARKERS[style % len(MARKERS)],
            linestyle=LINES[style % len(LINES)],
            elinewidth=1,
            linewidth=1.6,
            markersize=5,
            capsize=2,
            label=_legend(one.label),
        )


def _bars(axes: Axes, plot: Plot) -> None:
    """Horizontal bars, a group a category, so that long names have room; the first category is on top."""
    width = 0.8 / max(1, len(plot.series))
    for index, one in enumerate(plot.series):
        offset = (index - (len(plot.series) - 1) / 2) * width
        places = [x + offset for x in one.x]
        error = one.error or None
        axes.barh(places, _heights(one), width, xerr=error, capsize=2, label=_legend(one.label), **_fill(index))
    axes.invert_yaxis()


def _stacked(axes: Axes, plot: Plot) -> None:
    """Bars on top of each other, in the order of the series."""
    places = sorted({x for one in plot.series for x in one.x})
    step = min((b - a for a, b in pairwise(places)), default=1.0)
    floor = dict.fromkeys(places, 0.0)
    for index, one in enumerate(plot.series):
        heights = _heights(one)
        axes.bar(one.x, heights, 0.8 * step, bottom=[floor[x] for x in one.x], label=_legend(one.label), **_fill(index))
        for x, height in zip(one.x, heights, strict=True):
            floor[x] += height


def _fill(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "hatch": HATCHES[index % len(HATCHES)],
        "edgecolor": "white",
        "linewidth": 0.5,
        "ecolor": "#1a1a1a",
    }


def _heights(series: Series) -> list[float]:
    return [y or 0.0 for y in series.y]


def _finish(axes: Axes, plot: Plot) -> None:
    """Labels, limits, ticks. Bars lie: their values run along x."""
    lying = plot.kind == "bars"
    across, up = (plot.y_label, plot.x_label) if lying else (plot.x_label, plot.y_label)
    axes.set_xlabel(_filled(across, ACROSS_CHARACTERS), fontsize=10)
    axes.set_ylabel(_filled(up, UP_CHARACTERS), fontsize=10)
    axes.tick_params(labelsize=9)
    axes.grid(axis="x" if lying else "y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if plot.kind == "reliability":
        axes.set(xlim=(0, 1), ylim=(0, 1))
    elif plot.y_range is not None:
        (axes.set_xlim if lying else axes.set_ylim)(*plot.y_range)
    elif lying:
        axes.set_xlim(left=0)
    elif plot.kind == "stacked" or axes.get_ylim()[0] < 0 <= _least(plot.series):
        axes.set_ylim(bottom=0)
    _ticks(axes, plot)


def _ticks(axes: Axes, plot: Plot) -> None:
    """A tick a category; else one a point where there are few and they have room, whole numbers for whole points."""
    places = sorted({x for one in plot.series for x in one.x})
    if plot.kind == "bars":
        axes.set_yticks(range(len(plot.categories)), _wrapped(plot.categories, NAME_CHARACTERS))
    elif plot.categories:
        names = _wrapped(plot.categories, max(4, ACROSS_CHARACTERS // len(plot.categories)))
        kept = range(0, len(names), -(-len(names) // MOST_NAMES))
        axes.set_xticks(list(kept), [names[index] for index in kept])
    elif plot.kind == "reliability":
        return
    elif len(places) <= FEW_POINTS and _apart(places):
        axes.set_xticks(places, [f"{x:g}" for x in places])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=all(float(x).is_integer() for x in places)))


def _wrapped(names: Sequence[str], characters: int) -> list[str]:
    return [_filled(name, characters) for name in names]


def _apart(places: Sequence[float]) -> bool:
    """Whether tick labels at these places have room."""
    width = (places[-1] - places[0]) if places else 0.0
    return all(b - a >= 0.07 * width for a, b in pairwise(places))


def _least(series: Sequence[Series]) -> float:
    return min((y for one in series for y in one.y if y is not None), default=0.0)


def _legend_labels(plot: Plot) -> list[str]:
    """Legend texts in order: the series, then what the guide lines are."""
    guides = [DIAGONAL] if plot.kind == "reliability" else []
    guides += [_legend(plot.reference[1])] if plot.reference is not None else []
    return [*dict.fromkeys(_legend(one.label) for one in plot.series), *guides]


def _legend_columns(labels: Sequence[str]) -> int:
    return 2 if len(labels) > 1 else 1


def _legend(text: str) -> str:
    """A legend's text: wrapped, and not hidden for its first letter."""
    wrapped = _filled(text, LEGEND_CHARACTERS)
    return " " + wrapped if wrapped.startswith("_") else wrapped


def _filled(text: str, characters: int) -> str:
    """Text in lines of at most this many characters, drawn as it is: no formula between dollars."""
    return textwrap.fill(text, characters, break_on_hyphens=False).replace("$", r"\$")
