"""`spot-train compare`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spot_infer.errors import SpotError
from spot_train.cli_options import RecipeArgument, SetOption


def compare(
    recipe: RecipeArgument,
    drafter: Annotated[
        str, typer.Option("--drafter", help="Exported drafter: folder, hub id or builtin: path.", show_default=False)
    ],
    task: Annotated[str, typer.Option(help="gsm8k, mbpp, humaneval, math500 or tiny.")] = "tiny",
    path: Annotated[str | None, typer.Option(help="File of the task's rows; default its own source.")] = None,
    pool: Annotated[str | None, typer.Option(help="JSONL with prompt, family and scorer: --task tiny --path.")] = None,
    prompts: Annotated[int | None, typer.Option(min=1, help="Rows decoded; default all.")] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option("--budget", help="A number, or auto: as many as pay. Repeatable; default decode.budget."),
    ] = None,
    cost_curve: Annotated[
        str | None,
        typer.Option(
            help="File or named curve that budget auto pays on and throughput is predicted on; for auto, default this "
            "machine's, measured once."
        ),
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="coupled, uncoupled, greedy or rejection; default the recipe's decode.verifier.")
    ] = None,
    floor: Annotated[
        str | None,
        typer.Option(help="Smallest mass: a number, or a file of calibrate floor; default decode.floor."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="default, or paper: separate boundaries, a tree, stale tables alone; default decode.preset."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Also write the rows to this JSONL file.")] = None,
    allow_code_execution: Annotated[
        bool, typer.Option("--allow-code-execution", help="Score code tasks by running the generated code.")
    ] = False,
    set_: SetOption = None,
) -> None:
    """Decode a task draft-free and drafted, side by side, and print one table."""
    from dataclasses import replace

    from rich.console import Console

    from spot_infer.allocate import budget_option
    from spot_infer.atomic import check_place
    from spot_infer.bitwise import bitwise_settings
    from spot_infer.checkpoint import load_drafter
    from spot_infer.cost import load_curve
    from spot_infer.machine_curve import machine_curve
    from spot_train.calibrate.floor import floor_option
    from spot_train.collect.collect import decode_settings, load_recipe_target
    from spot_train.compare.side_by_side import Comparison, print_rows, side_by_side, write_rows
    from spot_train.recipe.recipe import recipe_from_flags, resolve_path
    from spot_train.tasks import load_task

    values = recipe_from_flags(recipe, set_, {"decode.verifier": verifier, "decode.preset": preset})
    if output is not None:
        check_place(output)
    if pool is not None and (path is not None or task != "tiny"):
        raise SpotError("--pool stands for --task tiny --path; leave it out beside --task or --path")
    file = pool or path
    form, bitwise = values.decode.form(), values.decode.bitwise
    named = [budget_option(one) for one in budget or [str(values.decode.budget)]]
    budgets = tuple(one for one in named if one != "auto")
    if any(one < 1 for one in budgets):
        raise SpotError(f"budget is {min(budgets)}; use at least 1 (draft-free has its own row), or auto")
    if floor is not None and not budgets:
        raise SpotError("--floor is given, but budget auto drafts what pays; leave --floor out")
    if bitwise and "auto" in named:
        raise SpotError("decode.bitwise is true, where every forward costs the same; use a --budget that is a number")
    settings = replace(
        decode_settings(values),
        pad=values.decode.pad,
        layout=values.decode.layout,
        boundary=form.boundary,
        verifier=values.decode.verifier,
    )
    if bitwise:
        settings = bitwise_settings(settings, max(budgets))
    chosen = load_task(task, file and resolve_path(file, Path.cwd()), limit=prompts)
    if not settings.ignore_stop:
        settings = replace(settings, stop=(*settings.stop, *chosen.stop))
    target = load_recipe_target(values)
    model = form.apply(load_drafter(resolve_path(drafter, Path.cwd())).to(target.device))
    predicted_on = None if cost_curve is None else load_curve(cost_curve)
    curve = None
    if "auto" in named:
        curve = predicted_on or machine_curve(target, model, settings)
    plan = Comparison(
        task=chosen,
        settings=settings,
        budgets=budgets,
        seed=values.collect.seed,
        floor=values.decode.floor if floor is None else floor_option(floor, values, target),
        allow_code_execution=allow_code_execution,
        curve=curve,
        predicted_on=predicted_on,
        form=form,
    )
    console = Console()
    rows = side_by_side(target, model, plan, console)
    if output is not None:
        write_rows(output, rows)
    print_rows(console, rows)
