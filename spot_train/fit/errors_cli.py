"""`spot-train errors`: which next commits a drafter errs on. Parse, call, print."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from spot_train.cli_options import JsonOption, SplitOption

_SCOPES = {"all": "all", "before_stop": "to stop"}
_COUNTED = {"depth_0": "depth 0", "all": "all depths"}
_DEPTHS = (0, 1, 3, 7, 15)


def errors_command(
    drafter: Annotated[
        str, typer.Argument(help="Exported drafter: folder, hub id or builtin: path.", show_default=False)
    ],
    data: Annotated[Path, typer.Option("--data", help="Folder of shards that collect wrote.", show_default=False)],
    beside: Annotated[
        str | None, typer.Option(help="Another drafter, to count the errors that both make.", show_default=False)
    ] = None,
    depth: Annotated[
        list[int] | None, typer.Option(min=0, help="Steps beyond the root. Repeatable; default all that it knows.")
    ] = None,
    split: SplitOption = "heldout",
    limit: Annotated[int | None, typer.Option(min=1, help="Most trajectories measured; default all.")] = None,
    states: Annotated[int | None, typer.Option(min=1, help="Most states measured; default all.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say where a drafter errs: by depth, by the margin that decided, by how sure it was, beside another drafter."""
    from spot_infer.checkpoint import load_drafter
    from spot_train.fit.errors import errors
    from spot_train.recipe.recipe import resolve_path
    from spot_train.shards.store import named_split, open_shards

    chosen = named_split(split)
    first = load_drafter(resolve_path(drafter, Path.cwd()))
    second = None if beside is None else load_drafter(resolve_path(beside, Path.cwd()))
    shards = open_shards(data)
    found = errors(
        first,
        islice(shards.trajectories(chosen), limit),
        depths=depth,
        limit_states=states,
        rule=shards.rule,
        beside=second,
    )
    if as_json:
        typer.echo(json.dumps(found))
        return
    print_errors(Console(), found)


def print_errors(console: Console, found: Mapping[str, Any]) -> None:
    """Print what `errors` found."""
    say = partial(console.print, soft_wrap=True, highlight=False)
    say(f"{found['trajectories']} trajectories, {found['commits']} next commits\n")
    for title, names, rows in _tables(found):
        say(title)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for place, name in enumerate(names):
            table.add_column(name, justify="right" if place else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    sure = found["sure"]
    commits, share, rate = map(_share, (sure["commits"], sure["share"], sure["errors"]))
    say(f"probability above {sure['above']}: {commits} of all commits, {share} of all errors, {rate} of them errors")
    if (other := found.get("beside")) is not None:
        rate, both, alike = map(_share, (other["errors"], other["both"], other["alike"]))
        say(f"the drafter beside: errors {rate}; both err on {both}, on {alike} of which with the same slot")


def _tables(found: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Title, column names and rows of every table."""
    scopes, noise = found["scopes"], found["noise"]
    depths = [depth for depth in scopes["all"]["by_depth"] if int(depth) in _DEPTHS]
    yield (
        "errors, those that the drafter's probabilities foresee, how far off (calibration error), loss; at depths",
        ("", "errors", "foreseen", "off by", "loss", *depths),
        [
            (
                _SCOPES[name],
                *map(_share, (one["errors"], one["expected"], one["calibration_error"], one["loss"])),
                *(_share(one["by_depth"].get(depth)) for depth in depths),
            )
            for name, one in scopes.items()
        ],
    )
    for scope, depth in _COUNTED.items():
        yield (
            f"{depth}, by the margin between the two surest slots: errors, and by how much it moved, the median",
            ("log-odds", "of commits", "errors", "of errors", "moved"),
            [
                (one["margin"], *map(_share, (one["commits"], one["errors"], one["share"], one["moved"])))
                for one in found["margins"][scope]
            ],
        )
    yield (
        "all depths, by the drafter's confidence",
        ("confidence", "of commits", "errors", "foreseen", "of errors"),
        [
            (
                one["confidence"],
                *map(_share, (one["commits"], one["errors"], one["expected"], one["share"])),
            )
            for one in found["confidences"]
        ],
    )
    if noise is None:
        return
    yield (
        "errors of who reads the target's log-odds of the very step through noise of so many log-odds",
        ("", *noise["all"]["errors"], "as the drafter"),
        [
            (depth, *map(_share, noise[scope]["errors"].values()), _share(noise[scope]["equal"]))
            for scope, depth in _COUNTED.items()
        ],
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
