"""Tables of cost curves, predictions and calibrated floors. Measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from spot_infer.cost import CostCurve


def print_curve(console: Console, curve: CostCurve) -> None:
    """The curve, what a round costs beside the forward, and what the drafter takes."""
    setup = curve.setup
    table = _table("replicas", "c(replicas)", "round ms", "forward ms", "spread")
    for size, seconds, forward, spread in zip(
        curve.replicas, curve.seconds, setup["forward_s"], setup["spread"], strict=True
    ):
        table.add_row(
            str(size), f"{curve.ratio(size):.2f}", f"{1e3 * seconds:.2f}", f"{1e3 * forward:.2f}", f"{spread:.0%}"
        )
    console.print(table)
    outside = curve.seconds[0] - setup["forward_s"][0]
    lines = [
        f"{curve.name}: {setup['rows']} rows, prefix {setup['prefix_tokens']} tokens, layout {setup['layout']}, "
        f"{setup['dtype']}, {curve.machine['torch_threads']} threads, {setup['clock']} time, "
        f"{setup['rounds_measured']} rounds",
        f"a draft-free round spends {1e3 * outside:.2f} ms outside the forward, a drafted one "
        f"{1e3 * curve.round_extra:.2f} ms more; encoding the prompt takes {1e3 * curve.prefill:.2f} ms",
    ]
    if curve.drafter is not None:
        one = curve.drafter
        lines.append(
            f"drafter {one.name}: {1e3 * one.proposal:.2f} ms a proposal, {1e3 * one.call:.2f} ms a network call, "
            f"{1e3 * one.state:.3f} ms a scored state"
        )
    for budget, parts in setup.get("round_parts", {}).items():
        shown = {name: f"{1e3 * seconds:.2f}" for name, seconds in parts.items()}
        lines.append(
            f"a round at D{budget}, in real decoding, ms: drafter's network {shown['network']}, search around it "
            f"{shown['search']}, target's forward {shown['target']}, answers over the vocabulary {shown['answers']}, "
            f"packing, verification and bookkeeping {shown['rest']}"
        )
    lines.append("Spread is the interquartile range of repeats over the median, c(1) the draft-free round.")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def print_packed(console: Console, rows: Sequence[Mapping[str, Any]], clock: str) -> None:
    """One line a number of replicas: the plain forward, and each layout's over it."""
    layouts = list(dict.fromkeys(row["layout"] for row in rows))
    table = _table("replicas", "positions", "plain ms", *(f"{layout} / plain" for layout in layouts))
    for size in dict.fromkeys(row["replicas"] for row in rows):
        own = {row["layout"]: row for row in rows if row["replicas"] == size}
        first = own[layouts[0]]
        ratios = [f"{own[layout]['ratio']:.2f}" for layout in layouts]
        table.add_row(str(size), str(first["positions"]), f"{1e3 * first['plain']:.2f}", *ratios)
    console.print(table)
    console.print(
        f"medians in {clock} time behind {rows[0]['prefix_tokens']} tokens; plain is the model on as many rows, each "
        "behind a cached prefix of its own.",
        highlight=False,
        soft_wrap=True,
    )


def print_rehearsal(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """One line a method and budget: forwards, throughput against draft-free, and the split of the time."""
    table = _table("method", "D", "NFE", "reduction", "throughput", "ms a prompt", "target", "drafter", "rest", left=1)
    for row in rows:
        shares = [f"{row['shares'][name]:.0%}" for name in ("target", "drafter", "rest")]
        factors = [f"{row['reduction']:.2f}x", f"{row['throughput_ratio']:.2f}x", f"{1e3 * row['seconds']:.0f}"]
        table.add_row(row["method"], str(row["budget"]), f"{row['nfe']:.1f}", *factors, *shares)
    console.print(table)
    console.print(
        f"n = {rows[0]['n']} recorded trajectories, batch size 1, temperature 0; outputs equal to the recording: "
        + ", ".join(f"{row['identical']} of {row['n']}" for row in rows),
        highlight=False,
        soft_wrap=True,
    )


def print_predictions(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """One line a curve, method, budget and floor; measured figures where rows hold them."""
    checked = "measured_ratio" in rows[0]
    names = ["D", "floor", "NFE", "reduction", "replicas", "positions", "predicted"]
    table = _table("curve", "method", *names, *(("measured", "wall", "gap") if checked else ()), left=2)
    for row in rows:
        cells = [
            row["curve"],
            row["drafter"],
            str(row["budget"]),
            f"{row['floor']:g}",
            f"{row['nfe']:.1f}",
            f"{row['reduction']:.2f}x",
            f"{row['replicas']:.1f}",
            f"{row['positions']:,.0f}",
            f"{row['throughput_ratio']:.2f}x" + ("" if row["drafter_included"] else "*"),
        ]
        if checked:
            cells += [f"{row['measured_ratio']:.2f}x", f"{row['wall_ratio']:.2f}x", f"{row['gap']:+.1%}"]
        table.add_row(*cells)
    console.print(table)
    lines = [
        f"{rows[0]['n']} prompts. predicted is throughput over draft-free's; replicas a forward and positions a prompt "
        "are means."
    ]
    if not all(row["drafter_included"] for row in rows):
        lines.append("* without the drafter's own time, which this curve does not know.")
    if checked:
        lines.append(f"measured and gap are in {rows[0]['clock']} time, wall is the same ratio in wall time.")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def print_floors(console: Console, grid: Mapping[str, Mapping[str, Mapping[str, float]]], floor: float) -> None:
    """Throughput ratios by floor and budget, the chosen floor marked."""
    budgets = list(next(iter(grid.values())))
    table = _table("floor", *budgets, "mean", "NFE " + budgets[-1])
    for name, row in grid.items():
        ratios = [one["throughput_ratio"] for one in row.values()]
        mark = " <" if float(name) == floor else ""
        table.add_row(
            name,
            *(f"{ratio:.2f}x" for ratio in ratios),
            f"{sum(ratios) / len(ratios):.2f}x{mark}",
            f"{row[budgets[-1]]['nfe']:.1f}",
        )
    console.print(table)


def _table(*names: str, left: int = 0) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index < left else "right")
    return table
