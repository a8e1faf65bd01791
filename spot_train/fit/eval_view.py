"""What `spot-train eval` prints: accuracy by depth and replayed NFE, the drafter beside the untrained orders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

_NAMES = {"model": "order model", "stale_confidence": "stale confidence", "left_to_right": "left to right"}
_SCOPES = {"before_stop": "before the stop token", "all": "everything decoded"}
_DEPTHS = (0, 1, 3, 7, 15)


def print_measures(console: Console, measures: Mapping[str, Any]) -> None:
    """Print what `evaluate` measured."""
    console.print(f"{measures['trajectories']} trajectories, {measures['steps']} steps", highlight=False)
    for scope, orders in measures["orders"].items():
        console.print(_accuracy(_SCOPES.get(scope, scope), orders))
    if measures["replayed"]:
        console.print(_replay(measures))
    if "warning" in measures:
        console.print(measures["warning"], soft_wrap=True, highlight=False)


def _accuracy(title: str, orders: Mapping[str, Any]) -> Table:
    last = max(len(order["by_depth"]) for order in orders.values())
    depths = [depth for depth in _DEPTHS if depth < last]
    table = Table(title=f"next-commit accuracy, {title}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("order")
    for name in ("all", "top-3", *(f"depth {depth}" for depth in depths)):
        table.add_column(name, justify="right")
    for name, order in orders.items():
        figures = [order["accuracy"], order["top3"], *(order["by_depth"][depth] for depth in depths)]
        table.add_row(_NAMES.get(name, name), *map(_share, figures))
    return table


def _replay(measures: Mapping[str, Any]) -> Table:
    title = f"replayed NFE, {measures['replayed']} trajectories"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("drafter")
    for name in ("budget", "NFE", "reduction", "accepted a round"):
        table.add_column(name, justify="right")
    for name, budgets in measures["replay"].items():
        for budget, one in budgets.items():
            figures = (f"{one['nfe']:.1f}", f"{one['reduction']:.2f}x", f"{one['accepted_per_round']:.2f}")
            table.add_row(name, budget, *figures)
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
