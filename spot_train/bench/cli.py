"""`spot-train bench`: options in, a results file out. Heavy libraries load when the command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench(
    suites: Annotated[list[str], typer.Argument(help="main, oracle, coverage, temperature, ...", show_default=False)],
    recipe: Annotated[str, typer.Option(help="Recipe of the target and its decoding.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder of results; resumed if it has some.", show_default=False)],
    drafter: Annotated[list[str] | None, typer.Option(help="NAME=PATH or PATH, matched by rule. Repeatable.")] = None,
    graph: Annotated[list[str] | None, typer.Option(help="Calibrated graph, matched by rule. Repeatable.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="NAME=PATH of a target or a recipe; default the recipe's. Repeatable.")
    ] = None,
    task: Annotated[str, typer.Option(help="tiny, gsm8k, mbpp, humaneval or math500.")] = "tiny",
    path: Annotated[str | None, typer.Option(help="Local file of the task, instead of its own source.")] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="float32, bfloat16 or e: p >= 1 - e tie; default the recipe's, in some suites both. Repeatable."
        ),
    ] = None,
    budget: Annotated[list[int], typer.Option(min=1, help="Most drafted states a round. Repeatable.")] = [8, 12, 20],  # noqa: B006
    seed: Annotated[list[int], typer.Option(min=0, help="Seeds at temperature above 0. Repeatable.")] = [0],  # noqa: B006
    temperature: Annotated[
        list[float] | None, typer.Option(help="Of the temperature suite; default 0.5, 1, 1.5, 2 and 2.5. Repeatable.")
    ] = None,
    prompts_replay: Annotated[int, typer.Option(min=1, help="Prompts of replayed cells.")] = 200,
    prompts_real: Annotated[int, typer.Option(min=1, help="Prompts of decoded cells.")] = 20,
    full: Annotated[bool, typer.Option("--full", help="Decode every cell, over --prompts-replay prompts.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts decoded together in decoded cells.")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Processes; a control shares one with its methods.")] = 1,
    allow_code_execution: Annotated[
        bool, typer.Option("--allow-code-execution", help="Score code tasks by running the generated code.")
    ] = False,
    preset: Annotated[
        str | None, typer.Option(help="default, or paper: separate boundaries and trees; default decode.preset.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Set a recipe key; wins over the file. Repeatable.")
    ] = None,
) -> None:
    """Run suites of comparisons under one decoder and verifier, and keep every result as a line."""
    from rich.console import Console

    from spot_train.bench.materials import TEMPERATURES, BenchOptions, named
    from spot_train.bench.run import bench as run
    from spot_train.bench.view import BenchView
    from spot_train.recipe.recipe import parse_overrides

    options = BenchOptions(
        recipe=recipe,
        out=out,
        overrides=parse_overrides(set_ or ()) | ({"decode.preset": preset} if preset else {}),
        drafters=tuple(map(named, drafter or ())),
        graphs=tuple(graph or ()),
        targets=tuple(map(named, target or ())),
        task=task,
        task_path=path,
        rules=tuple(rule or ()),
        budgets=tuple(budget),
        seeds=tuple(seed),
        temperatures=tuple(temperature or TEMPERATURES),
        prompts_replay=prompts_replay,
        prompts_real=prompts_real,
        full=full,
        batch_size=batch_size,
        allow_code_execution=allow_code_execution,
        workers=workers,
    )
    typer.echo(f"results: {run(suites, options, BenchView(Console(stderr=True)))}")
