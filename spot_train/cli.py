"""`spot-train`: parse, call, print. The one place where errors become a sentence and an exit code.

Every command calls one plain function that notebooks can call too. Heavy libraries load when a command needs them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spot_infer.errors import SpotError
from spot_train.output_lock import Interrupted

if TYPE_CHECKING:
    from spot_train.recipe import Recipe

app = typer.Typer(
    name="spot-train",
    help="Collect a target's own decoding, fit a drafter of its commit order, export it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
recipe_app = typer.Typer(help="Look at recipes.", no_args_is_help=True)
app.add_typer(recipe_app, name="recipe")

RecipeArgument = Annotated[str, typer.Argument(help="Recipe file, or builtin:recipes/tiny.yaml.", show_default=False)]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set a recipe key, as in --set fit.epochs=3; wins over the file. Repeatable."),
]
DataOption = Annotated[Path, typer.Option("--data", help="Folder of shards that collect wrote.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def collect(
    recipe: RecipeArgument,
    out: Annotated[Path, typer.Option(help="Folder of shards; resumed if it has some.", show_default=False)],
    set_: SetOption = None,
) -> None:
    """Decode the recipe's prompts draft-free and store their trajectories."""
    values = _recipe(recipe, set_)
    from rich.console import Console

    from spot_train.collect import collect as run
    from spot_train.progress import CollectView

    with CollectView(Console(stderr=True)) as view:
        view.finished(run(values, out, progress=view))


@app.command("check-batch")
def check_batch(
    recipe: RecipeArgument,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts compared, from the first.")] = 32,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decode prompts in the recipe's batches and one by one, and report every difference. Writes nothing."""
    values = _recipe(recipe, [*(set_ or []), f"prompts.limit={prompts}"])
    from spot_infer.noise import request_seed
    from spot_infer.requests import Request
    from spot_train.batch_check import compare_batch
    from spot_train.collect import decode_settings, load_recipe_target
    from spot_train.prompts import load_prompts

    target = load_recipe_target(values)
    chosen, _ = load_prompts(values, target)
    seed = values.collect.seed
    requests = [Request(prompt.prompt_ids, request_seed(seed, prompt.prompt_ids)) for prompt in chosen]
    report = compare_batch(target, requests, decode_settings(values))
    typer.echo(json.dumps(report.to_dict()) if as_json else report.sentence())


@app.command()
def verify(data: DataOption) -> None:
    """Compare every shard with its checksums."""
    from spot_train.shards import open_shards

    shards = open_shards(data)
    typer.echo(
        f"{data}: {len(shards.names)} of {shards.manifest['leases']} shards sound, {shards.count('trajectories')} "
        f"trajectories ({shards.count('heldout')} held out), {shards.count('commits')} commits"
    )


@recipe_app.command()
def show(recipe: RecipeArgument, set_: SetOption = None, as_json: JsonOption = False) -> None:
    """Print a recipe with every default filled in."""
    tree = _recipe(recipe, set_).model_dump(mode="json")
    if as_json:
        typer.echo(json.dumps(tree, indent=1))
        return
    import yaml

    typer.echo(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), nl=False)


@recipe_app.command()
def validate(recipe: RecipeArgument, set_: SetOption = None) -> None:
    """Check a recipe and print its hash."""
    from spot_train.recipe import recipe_hash

    typer.echo(f"{recipe}: valid, {recipe_hash(_recipe(recipe, set_))}")


@recipe_app.command()
def schema() -> None:
    """Print the JSON schema of recipes: every key with its meaning, unit and default."""
    from spot_train.recipe import Recipe

    typer.echo(json.dumps(Recipe.model_json_schema(), indent=1))


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for everything the quickstart makes.")] = Path("runs/quickstart"),
) -> None:
    """Collect, fit, export and decode on the tiny target, and print one table."""
    from spot_train.quickstart import main as run

    run(out)


def run(arguments: Sequence[str]) -> int:
    """One command; returns its exit code: 0, 2 for an error the user can fix, 128 + n after signal n."""
    command = typer.main.get_command(app)
    try:
        command.main(list(arguments), prog_name="spot-train")
    except SystemExit as finished:
        return finished.code if isinstance(finished.code, int) else int(finished.code is not None)
    except SpotError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return stopped.code
    return 0


def main() -> None:
    """Entry point of the `spot-train` command."""
    sys.exit(run(sys.argv[1:]))


def _recipe(path: str, overrides: Sequence[str] | None, **flags: Any) -> Recipe:
    """Load a recipe: named flags win over --set, --set over the file."""
    from spot_train.recipe import load_recipe, parse_override

    chosen = dict(parse_override(text) for text in overrides or ())
    chosen |= {key.replace("__", "."): value for key, value in flags.items() if value is not None}
    return load_recipe(path, chosen)


if __name__ == "__main__":
    main()
