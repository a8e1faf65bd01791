"""`spot-train replay`: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, get_args

import typer

from spot_infer.errors import SpotError
from spot_train.cli_options import SplitOption


def replay_command(
    data: Annotated[Path, typer.Option("--data", help="Folder of shards that collect wrote.", show_default=False)],
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="Name, or name:option=value,…; default all that can be made. Repeatable."),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option("--budget", help="Most drafted states a round, or auto. Repeatable; default 8, 12, 20."),
    ] = None,
    cost_curve: Annotated[str | None, typer.Option(help="For budget auto: file of profile, or a named curve.")] = None,
    drafter: Annotated[str | None, typer.Option(help="Exported drafter for spot: folder, hub id or builtin:.")] = None,
    graph: Annotated[str | None, typer.Option(help="Calibrated graph for calibrated_graph: file or builtin:.")] = None,
    floor: Annotated[float, typer.Option(min=0, max=1, help="Smallest mass worth verifying.")] = 0.0,
    boundary: Annotated[
        str, typer.Option(help="Block boundaries: seamless, fused or separate; auto is seamless.")
    ] = "auto",
    preset: Annotated[str, typer.Option(help="default, or paper: separate boundaries and trees.")] = "default",
    split: SplitOption = "heldout",
    limit: Annotated[int | None, typer.Option(min=1, help="Most trajectories replayed; default all.")] = None,
    output: Annotated[Path | None, typer.Option(help="Also append the cells to this results file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line a cell.")] = False,
) -> None:
    """Count every method's target forwards from shards alone, exactly, with no target."""
    from itertools import islice

    from rich.console import Console

    from spot_infer.allocate import budget_option
    from spot_infer.atomic import check_place
    from spot_infer.checkpoint import load_drafter
    from spot_infer.cost import load_curve
    from spot_infer.presets import find_preset
    from spot_infer.requests import Boundary
    from spot_train.calibrate.graph import BUDGETS, load_graph
    from spot_train.methods import DrafterSources, parse_method
    from spot_train.recipe.recipe import resolve_path
    from spot_train.replay.run import default_methods, print_cells, replay_cells
    from spot_train.results import append_rows
    from spot_train.shards.store import named_split, open_shards

    part = named_split(split)
    form = find_preset(preset)
    if boundary not in get_args(Boundary):
        raise SpotError(f"--boundary is {boundary!r}; use {', '.join(get_args(Boundary))}")
    if output is not None:
        check_place(output)
    named = [budget_option(one) for one in budget or map(str, BUDGETS)]
    budgets = [one for one in named if one != "auto"]
    if ("auto" in named) != (cost_curve is not None) or any(one < 1 for one in budgets):
        raise SpotError("give --budget auto and --cost-curve together, and other budgets as numbers of at least 1")
    if floor and not budgets:
        raise SpotError("--floor is given, but budget auto drafts what pays; leave --floor out")
    curve = None if cost_curve is None else load_curve(cost_curve)
    shards = open_shards(data)
    trajectories = [one for one in islice(shards.trajectories(part), limit) if len(one)]
    if not trajectories:
        raise SpotError(f"{data} has no trajectory in split {split}; use another --split")
    order = None if drafter is None else load_drafter(resolve_path(drafter, Path.cwd()))
    calibrated = None if graph is None else load_graph(graph, shards.attributes)
    sources = DrafterSources(shards.rule, order, calibrated)
    chosen = [parse_method(text) for text in method or ()] or default_methods(order is not None, graph is not None)
    cells = replay_cells(
        shards,
        trajectories,
        chosen,
        budgets,
        sources,
        floor,
        boundary,  # type: ignore[arg-type]
        form,
        drafter,
        curve,
    )
    if output is not None:
        append_rows(output, cells)
    if as_json:
        for cell in cells:
            typer.echo(json.dumps(cell.model_dump(mode="json")))
        return
    print_cells(Console(), cells, split)
