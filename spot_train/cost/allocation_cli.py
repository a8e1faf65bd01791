"""`spot-train allocation`: parse, call, print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from spot_train.cli_options import JsonOption, SplitOption


def allocation(
    data: Annotated[Path, typer.Option("--data", help="Folder of shards that collect wrote.", show_default=False)],
    drafter: Annotated[
        str, typer.Option("--drafter", help="Exported drafter: folder, hub id or builtin:.", show_default=False)
    ],
    curve: Annotated[
        list[str] | None, typer.Option("--curve", help="File of profile, or a named curve. Repeatable; default all.")
    ] = None,
    split: SplitOption = "heldout",
    prompts: Annotated[int | None, typer.Option(min=2, help="Most trajectories; default all.")] = None,
    budget: Annotated[list[int] | None, typer.Option("--budget", min=1, help="Of the grid. Repeatable.")] = None,
    floor: Annotated[list[float] | None, typer.Option("--floor", min=0, max=1, help="Of the grid. Repeatable.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict what budget auto gives beside the best fixed budget and floor, tuned on the other half of the data."""
    from rich.console import Console

    from spot_infer.checkpoint import load_drafter
    from spot_infer.cost import NAMED_CURVES, load_curve
    from spot_train.cost.allocation import BUDGETS, FLOORS, against_grid
    from spot_train.recipe.recipe import resolve_path
    from spot_train.shards.store import named_split, open_shards

    chosen = named_split(split)
    curves = [load_curve(name) for name in curve or NAMED_CURVES]
    shards = open_shards(data)
    trajectories = list(islice(filter(len, shards.trajectories(chosen)), prompts))
    order = load_drafter(resolve_path(drafter, Path.cwd()))
    with Console(stderr=True).status("allocation") as status:
        rows = against_grid(
            order,
            trajectories,
            curves,
            shards.sampling.temperature,
            budget or BUDGETS,
            floor or FLOORS,
            status.update,
        )
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        _print(Console(), rows, len(trajectories))


def _print(console: Any, rows: Sequence[dict[str, Any]], trajectories: int) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("curve", "best fixed", "fixed", "auto", "share", "NFE fixed", "NFE auto", "replicas"):
        table.add_column(title, justify="left" if title == "curve" else "right")
    for row in rows:
        table.add_row(
            row["curve"] + ("" if row["drafter_included"] else " *"),
            f"D{row['budget']} γ{row['floor']:g}",
            f"{row['fixed']:.2f}x",
            f"{row['auto']:.2f}x",
            f"{row['share']:.3f}",
            f"{row['fixed_nfe']:.1f}",
            f"{row['auto_nfe']:.1f}",
            f"{row['auto_replicas']:.1f}",
        )
    console.print(table)
    console.print(
        f"Throughput over draft-free decoding, predicted on {rows[0]['n']} of {trajectories} trajectories; the fixed "
        "cell was chosen on the others, auto on none. * the curve does not know what the drafter takes.",
        soft_wrap=True,
        highlight=False,
    )
