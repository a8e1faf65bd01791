"""Arguments and options that several commands of `spot-train` take alike."""

from __future__ import annotations

from typing import Annotated

import typer

RecipeArgument = Annotated[str, typer.Argument(help="Recipe file, or builtin:recipes/tiny.yaml.", show_default=False)]
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
