"""`spot-train profile-packed`: what packing replicas costs beyond a plain forward of as many positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from spot_train.cli_options import JsonOption, ThreadsOption, set_threads
from spot_train.cost.cli import ClockOption


def profile_packed(
    target: Annotated[str, typer.Argument(help="Target: folder, hub id or builtin: path.", show_default=False)],
    prefix: Annotated[int, typer.Option(min=0, help="Cached prefix, tokens, in whole blocks.")] = 256,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")] = "auto",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")] = None,
    size: Annotated[list[int] | None, typer.Option("--size", help="Replicas measured. Repeatable.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Times every forward is timed.")] = 20,
    clock: ClockOption = "auto",
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time a packed forward in both layouts beside a plain forward of the same blocks as rows of a batch."""
    from rich.console import Console

    from spot_infer.clock import clock_for
    from spot_infer.profile import SIZES
    from spot_infer.targets import load_target
    from spot_train.cost.packed import packed_against_plain
    from spot_train.cost.view import print_packed
    from spot_train.recipe.recipe import resolve_path

    set_threads(threads)
    loaded = load_target(resolve_path(target, Path.cwd()), dtype=dtype, device=device)
    kind = clock_for(loaded.device, clock)
    rows = packed_against_plain(loaded, size or SIZES, prefix, repeats, kind)
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        print_packed(Console(), rows, kind.name)
