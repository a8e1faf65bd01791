"""`spot-train shards`: look at sets of shards, verify and merge them. Parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from spot_infer.errors import SpotError
from spot_train.cli_options import JsonOption

shards_app = typer.Typer(help="Look at recorded shards, verify and merge them.", no_args_is_help=True)

SetArgument = Annotated[str, typer.Argument(help="Folder or URL of a set, as in s3://bucket/set.", show_default=False)]
SetArguments = Annotated[
    list[str], typer.Argument(help="Folders or URLs of sets, as in s3://bucket/set.", show_default=False)
]


@shards_app.command()
def info(path: SetArgument, as_json: JsonOption = False) -> None:
    """Print what a set holds: totals, bytes a commit, target, rule, prompts, arrays. Compares no checksums."""
    from rich.console import Console

    from spot_train.shards.copy import lasting
    from spot_train.shards.report import describe
    from spot_train.shards.view import print_description

    found = describe(lasting(path))
    if as_json:
        typer.echo(json.dumps(found))
        return
    print_description(Console(), found)


@shards_app.command()
def verify(paths: SetArguments) -> None:
    """Compare every file with its checksum, every array with the schema, and look for duplicates."""
    from spot_train.shards.copy import lasting
    from spot_train.shards.report import verify as check
    from spot_train.shards.shown import without_secrets

    verdict = check([lasting(path) for path in paths])
    if not verdict.problems:
        typer.echo(f"{', '.join(map(without_secrets, paths))}: {verdict.sentence()}")
        return
    if len(verdict.problems) > 1:
        for problem in verdict.problems:
            typer.echo(problem)
    more = "" if len(verdict.problems) == 1 else f" ({len(verdict.problems) - 1} more)"
    raise SpotError(f"{verdict.problems[0]}{more}")


@shards_app.command()
def merge(
    paths: SetArguments,
    out: Annotated[str, typer.Option(help="Folder or URL of the merged set; holds nothing yet.", show_default=False)],
    take_over: Annotated[
        str | None, typer.Option(help="Break the lock of --out by a job that is gone, by the name the refusal gives.")
    ] = None,
) -> None:
    """Write several sets of one target and rule as one; a trajectory that two of them hold is kept once."""
    from spot_train.shards.copy import lasting
    from spot_train.shards.merge import merge as run

    typer.echo(run([lasting(path) for path in paths], lasting(out), take_over=take_over).sentence())


@shards_app.command()
def copy(
    source: Annotated[str, typer.Argument(help="Folder or URL of a set, as in s3://bucket/set.", show_default=False)],
    target: Annotated[str, typer.Argument(help="Folder or URL of the copy; may hold a part.", show_default=False)],
) -> None:
    """Copy finished shards between disks and object stores; every file is checked, what is there already is kept."""
    from spot_train.shards.copy import copy_set, lasting

    typer.echo(copy_set(lasting(source), lasting(target)).sentence())


@shards_app.command()
def sample(
    path: SetArgument,
    number: Annotated[int, typer.Option("-n", min=1, help="Trajectories shown, spread over the set.")] = 3,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or hub id of the tokenizer; default the target's, if it is at hand.")
    ] = None,
) -> None:
    """Print a few trajectories: the tokens of each block with the number of the step that wrote them."""
    from rich.console import Console

    from spot_train.shards.copy import lasting
    from spot_train.shards.sample import drawn, headline, token_text
    from spot_train.shards.sample import sample as chosen
    from spot_train.shards.source import open_source

    shards = open_source(lasting(path))
    text_of = token_text(shards.attributes, tokenizer)
    console = Console()
    if text_of is None:
        name = shards.attributes["target"]["name"]
        console.print(f"the tokenizer of {name} is not at hand: ids instead of text (--tokenizer)", highlight=False)
    for name, place, stored in chosen(shards, number):
        console.print(headline(name, place, stored), style="bold", highlight=False)
        console.print(drawn(stored.trajectory, shards.mask_id, text_of))


@shards_app.command()
def study(
    path: Annotated[Path, typer.Argument(help="Folder of shards that collect wrote.", show_default=False)],
    drafter: Annotated[
        str, typer.Option("--drafter", help="Exported drafter: folder, hub id or builtin: path.", show_default=False)
    ],
    budget: Annotated[list[int], typer.Option("--budget", min=1, help="Most drafted states a round.")] = [8, 20],  # noqa: B006
    limit: Annotated[int | None, typer.Option(min=2, help="Most held-out trajectories; default all.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what storing probabilities in fewer bits costs: bytes a commit, accuracy, replayed NFE."""
    from rich.console import Console

    from spot_infer.checkpoint import load_drafter
    from spot_train.recipe.recipe import resolve_path
    from spot_train.shards.probability_study import study as run
    from spot_train.shards.store import open_shards
    from spot_train.shards.view import print_study

    rows = run(open_shards(path), load_drafter(resolve_path(drafter, Path.cwd())), budget, limit)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    print_study(Console(), rows)
