"""`spot-train calibrate`: what is measured once per target on held-out prompts, written to a small JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count which drafted states come true and select a draft graph for `calibrated_graph`."""
    from spot_train.calibrate_graph import calibrate_graph, record_pool, recorded_shards
    from spot_train.collect import load_recipe_target
    from spot_train.recipe import load_recipe, parse_overrides
    from spot_train.shards import open_shards

    values = load_recipe(recipe, parse_overrides(set_ or ()))
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
