"""Are the local files that a recipe names there? What lies on the hub, and what is in the files, is not looked at."""

from __future__ import annotations

from pathlib import Path

from spot_infer.errors import SpotError
from spot_train.recipe.recipe import Recipe

POOL_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}


def pool_file(path_or_id: str, recipe: Recipe) -> Path | None:
    """The local file of a prompt pool, None for a data set on the hub. Raises SpotError where it can't be a pool."""
    path = Path(recipe.resolve(path_or_id))
    local = path.suffix in POOL_FORMATS
    if path.is_absolute() and not path.is_file():
        raise SpotError(
            f"prompt file {path_or_id} does not exist (looked for {path}); correct prompts.sources.path_or_id"
        )
    if path.is_absolute() and not local:
        raise SpotError(
            f"prompt file {path_or_id} ends in {path.suffix!r}; expected one of {', '.join(sorted(POOL_FORMATS))}"
        )
    return path if local else None


def check_files(recipe: Recipe, name: str) -> None:
    """Raise SpotError, naming the recipe `name` and the field, for the first local file that is not there."""
    folder = Path(recipe.resolve(recipe.target.path_or_id))
    if folder.is_absolute() and not (folder / "config.json").is_file():
        raise SpotError(
            f"{name}: target.path_or_id is {recipe.target.path_or_id!r}, but {folder / 'config.json'} does not exist"
        )
    if folder.is_absolute() and recipe.target.revision is not None:
        raise SpotError(f"{name}: target.revision is set, but target.path_or_id is a folder; leave it out")
    template = recipe.chat_template()
    if template is not None and "{" not in template and not Path(template).is_file():
        raise SpotError(f"{name}: target.chat_template is no Jinja template and {template} does not exist; correct it")
    for source in (*recipe.prompts.sources, *recipe.prompts.evaluation, *recipe.calibrate.sources):
        try:
            pool_file(source.path_or_id, recipe)
        except SpotError as error:
            raise SpotError(f"{name}: {error}") from None
