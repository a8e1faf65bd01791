"""`spot-train learning-curve`: how many trajectories a drafter needs. Parse, call, print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spot_train.cli_options import CacheOption, JsonOption, RecipeArgument, SetDataOption, SetOption, shards_to_fit

if TYPE_CHECKING:
    from spot_train.fit.learning_curve import Point


def learning_curve(
    recipe: RecipeArgument,
    data: SetDataOption,
    out: Annotated[Path, typer.Option(help="Folder of the fits; resumed if it has some.", show_default=False)],
    trajectories: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Training trajectories of a fit. Repeatable; default 100, 300, 1000, ... and all."),
    ] = None,
    seed: Annotated[list[int], typer.Option(min=0, help="Seed of a fit. Repeatable.")] = [0],  # noqa: B006
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps of every fit.")] = 1000,
    budget: Annotated[list[int], typer.Option(min=1, help="Most drafted states a round. Repeatable.")] = [8, 20],  # noqa: B006
    warm_start: Annotated[
        str | None, typer.Option(help="Exported drafter that every fit starts from.", show_default=False)
    ] = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
    set_: SetOption = None,
) -> None:
    """Fit on fewer and more trajectories, equally long, and print accuracy and replayed forwards of each."""
    from spot_infer.checkpoint import load_drafter
    from spot_train.fit.learning_curve import as_rows, sizes_of
    from spot_train.fit.learning_curve import learning_curve as run
    from spot_train.recipe.recipe import recipe_from_flags, resolve_path

    section = recipe_from_flags(recipe, set_).fit
    start = None if warm_start is None else load_drafter(resolve_path(warm_start, Path.cwd()))
    shards = shards_to_fit(data, cache, out)
    points = list(
        run(
            section,
            shards,
            out,
            sizes=sizes_of(shards, trajectories or ()),
            seeds=seed,
            steps=steps,
            budgets=budget,
            warm_start=start,
            fitting=lambda name: typer.echo(name, err=True),
        )
    )
    if as_json:
        typer.echo(json.dumps(as_rows(points)))
        return
    _print(points, steps, shards.count("heldout"))


def _print(points: Sequence[Point], steps: int, heldout: int) -> None:
    """One line a drafter, the untrained order first."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    budgets = list(points[0].reductions)
    table.add_column("trajectories")
    for title in ("seed", "best step", "accuracy", *budgets):
        table.add_column(title, justify="right")
    untrained = points[0].untrained
    figures = [untrained["reductions"][budget] for budget in budgets]
    table.add_row("untrained order", "", "", f"{untrained['accuracy']:.3f}", *(f"{one:.2f}x" for one in figures))
    for point in points:
        name = str(point.trajectories) if point.seed is not None else "0, the drafter as it was"
        seed = "" if point.seed is None else str(point.seed)
        reductions = (f"{point.reductions[budget]:.2f}x" for budget in budgets)
        table.add_row(name, seed, str(point.best_step), f"{point.accuracy:.3f}", *reductions)
    console.print(table)
    console.print(
        f"{steps} optimiser steps a fit, the best checkpoint of each, measured on {heldout} held-out trajectories: "
        "next-commit accuracy over all depths up to the stop token, and the reduction of replayed target forwards.",
        soft_wrap=True,
        highlight=False,
    )
