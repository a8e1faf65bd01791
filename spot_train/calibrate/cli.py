"""`spot-train calibrate`: what is measured once per target on held-out prompts, written to a small JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from spot_infer.errors import SpotError
from spot_train.cli_options import JsonOption, ThreadsOption, set_threads

calibrate_app = typer.Typer(help="Calibrate on held-out prompts, once per target.", no_args_is_help=True)


@calibrate_app.command()
def graph(
    recipe: Annotated[str, typer.Argument(help="Recipe file, or builtin:recipes/tiny.yaml.", show_default=False)],
    out: Annotated[Path, typer.Option(help="JSON file to write.", show_default=False)],
    data: Annotated[
        Path | None, typer.Option(help="Count on the held-out half of these shards; default decode the recipe's pool.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set a recipe key, as in --set calibrate.graph_size=16. Repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Count which drafted states come true and select a draft graph for `calibrated_graph`."""
    from spot_infer.atomic import check_place
    from spot_train.calibrate.graph import calibrate_graph, record_pool, recorded_shards
    from spot_train.collect.collect import load_recipe_target
    from spot_train.recipe.recipe import recipe_from_flags
    from spot_train.shards.store import open_shards

    check_place(out)
    values = recipe_from_flags(recipe, set_)
    if data is None:
        recorded = record_pool(values, load_recipe_target(values))
    else:
        recorded = recorded_shards(values, open_shards(data))
    result = calibrate_graph(values, recorded, out)
    if as_json:
        typer.echo(json.dumps(result))
        return
    deepest = max(map(len, result["nodes"]))
    typer.echo(f"{out}: {len(result['nodes'])} states, the deepest of {deepest} commits, from {result['roots']} roots")
    for budget, one in result["measured"].items():
        typer.echo(
            f"held out, {budget}: NFE {one['nfe']:.1f}, reduction {one['reduction']:.2f}x, "
            f"{one['accepted_per_round']:.2f} accepted a round"
        )


@calibrate_app.command()
def floor(
    recipe: Annotated[str, typer.Argument(help="Recipe file, or builtin:recipes/tiny.yaml.", show_default=False)],
    drafter: Annotated[
        str, typer.Option("--drafter", help="Exported drafter: folder, hub id or builtin: path.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="JSON file to write.", show_default=False)],
    curve: Annotated[
        str | None, typer.Option("--curve", help="Predict with this cost curve, a file or a name, not by the clock.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="With --curve: replay the held-out half of these shards, decode nothing.")
    ] = None,
    clock: Annotated[str, typer.Option(help="cpu, wall, or auto: CPU time on a CPU with one thread.")] = "auto",
    threads: ThreadsOption = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set a recipe key, as in --set calibrate.prompts=10. Repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Choose the smallest mass worth verifying: the floor of the best mean throughput ratio."""
    if data is not None and curve is None:
        raise SpotError("--data needs --curve: without one, floors are decoded with the target and timed")
    from rich.console import Console

    from spot_infer.atomic import check_place
    from spot_infer.checkpoint import load_drafter
    from spot_train.calibrate.floor import calibrate_floor
    from spot_train.cost.view import print_floors
    from spot_train.recipe.recipe import recipe_from_flags, resolve_path

    check_place(out)
    set_threads(threads)
    values = recipe_from_flags(recipe, set_)
    order = load_drafter(resolve_path(drafter, Path.cwd()))
    with Console(stderr=True).status("calibrate floor") as status:
        result = calibrate_floor(values, order, drafter, out, curve, data, clock, status.update)
    if as_json:
        typer.echo(json.dumps(result))
        return
    print_floors(Console(), result["measured"]["grid"], result["values"]["floor"])
    typer.echo(f"{out}: floor {result['values']['floor']:g}")
