"""`spot-train allocation`: parse, call, print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from spot_infer.errors import SpotError
from spot_train.cli_options import JsonOption, SetOption


def allocation(
    drafter: Annotated[
        str, typer.Option("--drafter", help="Exported drafter: folder, hub id or builtin:.", show_default=False)
    ],
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of shards that collect wrote, to replay.", show_default=False)
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Recipe whose target decodes its calibration prompts instead.", show_default=False),
    ] = None,
    set_: SetOption = None,
    curve: Annotated[
        list[str] | None, typer.Option("--curve", help="File of profile, or a named curve. Repeatable; default all.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Of --data: heldout, train or all; default heldout.", show_default=False)
    ] = None,
    prompts: Annotated[int | None, typer.Option(min=2, help="Most of them; default all.")] = None,
    budget: Annotated[list[int] | None, typer.Option("--budget", min=1, help="Of the grid. Repeatable.")] = None,
    floor: Annotated[list[float] | None, typer.Option("--floor", min=0, max=1, help="Of the grid. Repeatable.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict what budget auto gives beside the best fixed budget and floor, tuned on the other half of the prompts.

    Replay counts without what rejected states tell and without looking ahead; decoding, slower, with both.
    """
    from rich.console import Console

    from spot_infer.checkpoint import load_drafter
    from spot_infer.cost import NAMED_CURVES, load_curve
    from spot_train.calibrate.calibration import calibration_requests
    from spot_train.collect.collect import decode_settings, load_recipe_target
    from spot_train.cost.allocation import BUDGETS, FLOORS, against_grid, decoded, replayed
    from spot_train.recipe.recipe import recipe_from_flags, resolve_path
    from spot_train.shards.store import named_split, open_shards

    if (data is None) == (recipe is None):
        raise SpotError("give either --data, a set to replay, or --recipe, whose prompts are decoded")
    if set_ and recipe is None:
        raise SpotError("--set is given without --recipe, whose keys it sets")
    if split and data is None:
        raise SpotError("--split is given without --data, whose trajectories it chooses from")
    chosen = named_split(split or "heldout")
    curves = [load_curve(name) for name in curve or NAMED_CURVES]
    order = load_drafter(resolve_path(drafter, Path.cwd()))
    if data is not None:
        shards = open_shards(data)
        trajectories = list(islice(filter(len, shards.trajectories(chosen)), prompts))
        halves = replayed(order, trajectories, shards.sampling.temperature)
    else:
        values = recipe_from_flags(str(recipe), set_)
        target = load_recipe_target(values)
        order.check_block_length(target.spec.block_length)
        requests, _ = calibration_requests(values, target)
        halves = decoded(order.to(target.device), target, requests[:prompts], decode_settings(values))
    with Console(stderr=True).status("allocation") as status:
        rows = against_grid(*halves, curves, budget or BUDGETS, floor or FLOORS, status.update)
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        _print(Console(), rows)


def _print(console: Any, rows: Sequence[dict[str, Any]]) -> None:
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
        f"Throughput over draft-free decoding, predicted on {rows[0]['n']} prompts; the fixed cell was chosen on "
        "others, auto on none. * the curve does not know what the drafter takes.",
        soft_wrap=True,
        highlight=False,
    )
