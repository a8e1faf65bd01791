"""Arguments and options that several commands of `spot-train` take alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from spot_train.shards.store import ShardSet

RecipeArgument = Annotated[str, typer.Argument(help="Recipe file, or builtin:recipes/tiny.yaml.", show_default=False)]
SetDataOption = Annotated[
    str, typer.Option("--data", help="Folder of shards that collect wrote, or its URL.", show_default=False)
]
CacheOption = Annotated[
    Path | None, typer.Option("--cache", help="Folder for the copy of a set behind a URL; default OUT/data.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set a recipe key, as in --set fit.epochs=3; wins over the file. Repeatable."),
]
SplitOption = Annotated[str, typer.Option(help="heldout, train or all.")]
BlockLengthOption = Annotated[
    int | None,
    typer.Option(min=1, help="Slots a block; default what the target's config names, else its family."),
]
MaskOption = Annotated[
    int | None, typer.Option("--mask-id", min=0, help="The mask token; default what the target's files name.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="CPU threads.")]


def set_threads(threads: int | None) -> None:
    """What `--threads` asks for."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def shards_to_fit(data: str, cache: Path | None, out: Path) -> ShardSet:
    """The set that `--data` and `--cache` of a command with this `--out` name."""
    from spot_train.shards.copy import lasting
    from spot_train.shards.fetch import fetch
    from spot_train.shards.store import open_shards

    return open_shards(fetch(lasting(data), cache or out / "data", lambda sentence: typer.echo(sentence, err=True)))
