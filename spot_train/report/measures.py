"""The columns that tables print: each a name and what it says of a pool. Pure."""

from __future__ import annotations

from spot_train.report.cells import ABSENT, Pooled
from spot_train.report.tables import Measure


def number(value: float | None, places: int, unit: str = "") -> str:
    """A figure with its unit, or a dash."""
    return ABSENT if value is None else f"{value:.{places}f}{unit}"


def _reduction_with_interval(pool: Pooled) -> str:
    text = number(pool.reduction, 2, "x")
    interval = pool.interval
    return text if interval is None else f"{text} ({interval[0]:.2f}–{interval[1]:.2f})"


def _identical(pool: Pooled) -> str:
    """n/N outputs equal to draft-free's; where some differ, the largest gap of a first divergence."""
    if pool.identical is None:
        return ABSENT
    same, compared = pool.identical
    gap = pool.largest_gap
    return f"{same}/{compared}" + ("" if same == compared or gap is None else f", gap {gap:.1g}")


def named(title: str, name: str, places: int, unit: str = "", bold: bool = False) -> Measure:
    """A column of a field of the row or of an entry of its `measures`, as the mean over seeds."""
    return Measure(title, lambda pool: number(pool.mean(name), places, unit), bold)


def percent(title: str, name: str) -> Measure:
    """A column of a share, in per cent."""

    def text(pool: Pooled) -> str:
        share = pool.mean(name)
        return ABSENT if share is None else f"{share:.0%}"

    return Measure(title, text)


NFE = named("NFE", "nfe", 1, bold=True)
PLAIN_NFE = named("NFE", "nfe", 1)
REDUCTION = Measure("reduction (95%)", _reduction_with_interval)
PLAIN_REDUCTION = Measure("reduction", lambda pool: number(pool.reduction, 2, "x"))
THROUGHPUT = named("throughput", "throughput_ratio", 2, "x")
BEST_THROUGHPUT = named("throughput", "throughput_ratio", 2, "x", bold=True)
ACCEPTED = named("accepted", "accepted", 2)
ACCURACY = named("accuracy", "accuracy", 3)
IDENTICAL = Measure("identical", _identical)
