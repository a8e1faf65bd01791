"""`spot-train recipe`: show, validate and describe recipes. Loads no model."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from spot_infer.errors import SpotError
from spot_train.cli_options import JsonOption, RecipeArgument, SetOption

recipe_app = typer.Typer(help="Look at recipes. No model is loaded.", no_args_is_help=True)


@recipe_app.command()
def show(
    recipe: RecipeArgument,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a recipe laid over what it extends, with --set applied and every default filled in."""
    from spot_train.recipe.recipe import recipe_from_flags

    tree = recipe_from_flags(recipe, set_).model_dump(mode="json")
    if as_json:
        typer.echo(json.dumps(tree, indent=1))
        return
    import yaml

    typer.echo(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), nl=False)


@recipe_app.command()
def validate(
    recipes: Annotated[list[str], typer.Argument(help="Recipe files.", show_default=False)], set_: SetOption = None
) -> None:
    """Check recipes and the local files that they name; a line each, exit code 2 where one has a fault."""
    from spot_train.recipe.local_files import check_files
    from spot_train.recipe.recipe import load_recipe, parse_overrides, recipe_hash

    overrides = parse_overrides(set_ or ())
    faults = 0
    for name in recipes:
        try:
            values = load_recipe(name, overrides)
            check_files(values, name)
        except SpotError as error:
            print(f"error: {error}", file=sys.stderr)
            faults += 1
        else:
            typer.echo(f"{name}: valid, {recipe_hash(values)}")
    if faults:
        raise typer.Exit(2)


@recipe_app.command()
def schema() -> None:
    """Print the JSON schema of recipe files, for editors: every key with its meaning, unit and default."""
    from spot_train.recipe.recipe import file_schema

    typer.echo(json.dumps(file_schema(), indent=1))
