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

from spot_infer.command import run_command
from spot_infer.errors import SpotError
from spot_train.bench.cli import bench
from spot_train.calibrate.cli import calibrate_app
from spot_train.check.cli import check
from spot_train.cli_options import (
    CacheOption,
    JsonOption,
    RecipeArgument,
    SetDataOption,
    SetOption,
    SplitOption,
    shards_to_fit,
)
from spot_train.collect import cli as collect_cli
from spot_train.compare.cli import compare
from spot_train.cost import cli as cost_cli
from spot_train.cost.allocation_cli import allocation
from spot_train.cost.packed_cli import profile_packed
from spot_train.cost.rehearse_cli import rehearse
from spot_train.fit.errors_cli import errors_command
from spot_train.fit.learning_curve_cli import learning_curve
from spot_train.output_lock import Interrupted
from spot_train.recipe.cli import recipe_app
from spot_train.replay.cli import replay_command
from spot_train.shards.cli import shards_app

if TYPE_CHECKING:
    from spot_infer.drafters import OrderDrafter

app = typer.Typer(
    name="spot-train",
    help="Collect a target's own decoding, fit a drafter of its commit order, export it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(recipe_app, name="recipe")
tasks_app = typer.Typer(help="Look at evaluation tasks.", no_args_is_help=True)
app.add_typer(tasks_app, name="tasks")
app.command()(collect_cli.collect)
app.command("check-drafted")(collect_cli.check_drafted)
app.command()(bench)
app.command("errors")(errors_command)
app.command("learning-curve")(learning_curve)
app.command()(allocation)
app.add_typer(calibrate_app, name="calibrate")
app.command()(check)
app.command("replay")(replay_command)
app.command()(compare)
app.command()(cost_cli.profile)
app.command()(cost_cli.simulate)
app.command()(profile_packed)
app.command()(rehearse)
app.add_typer(shards_app, name="shards")

DataOption = Annotated[Path, typer.Option("--data", help="Folder of shards that collect wrote.", show_default=False)]
DrafterOption = Annotated[
    str, typer.Option("--drafter", help="Exported drafter: folder, hub id or builtin: path.", show_default=False)
]
BudgetOption = Annotated[list[int], typer.Option("--budget", min=1, help="Most drafted states a round. Repeatable.")]
AllowCodeOption = Annotated[
    bool, typer.Option("--allow-code-execution", help="Score code tasks by running the generated code.")
]


@app.command()
def fit(
    recipe: RecipeArgument,
    data: SetDataOption,
    out: Annotated[Path, typer.Option(help="Folder of the run; resumed if it has one.", show_default=False)],
    devices: Annotated[str | None, typer.Option(help="Lightning's devices; sets fit.devices.")] = None,
    precision: Annotated[str | None, typer.Option(help="Lightning's precision; sets fit.precision.")] = None,
    strategy: Annotated[str | None, typer.Option(help="Lightning's strategy; sets fit.strategy.")] = None,
    warm_start: Annotated[
        str | None, typer.Option(help="Exported drafter whose weights training starts from.", show_default=False)
    ] = None,
    cache: CacheOption = None,
    set_: SetOption = None,
) -> None:
    """Train an order model on collected shards."""
    flags = {"fit.devices": devices, "fit.precision": precision, "fit.strategy": strategy}
    from spot_infer.checkpoint import load_drafter
    from spot_train.recipe.recipe import recipe_from_flags, resolve_path

    values = recipe_from_flags(recipe, set_, flags)
    start = None if warm_start is None else load_drafter(resolve_path(warm_start, Path.cwd()))
    shards = shards_to_fit(data, cache, out)
    from spot_train.collect.ranks import first_rank
    from spot_train.fit.facts import drafter_facts
    from spot_train.fit.fit import fit as run
    from spot_train.fit.step_windows import ShardWindows
    from spot_train.provenance import append_provenance
    from spot_train.shards.shown import without_secrets

    checkpoint = run(
        values.fit,
        ShardWindows(shards, "train", values.fit.resident_shards, values.fit.trajectories),
        ShardWindows(shards, "heldout", values.fit.resident_shards),
        out,
        rule=shards.rule,
        temperature=shards.sampling.temperature,
        facts=drafter_facts(shards),
        progress=True,
        warm_start=start,
    )
    if first_rank():
        append_provenance(out, {"command": "fit", "data": without_secrets(data), "checkpoint": checkpoint.name})
        typer.echo(f"checkpoint: {checkpoint}")


@app.command("eval")
def evaluate(
    drafter: DrafterOption,
    data: DataOption,
    split: SplitOption = "heldout",
    budget: BudgetOption = [8, 20],  # noqa: B006
    states: Annotated[int | None, typer.Option(min=1, help="Most states measured; default all.")] = None,
    replay: Annotated[int | None, typer.Option(min=0, help="Most trajectories replayed; default all.")] = None,
    output: Annotated[Path | None, typer.Option(help="Also write everything measured to this JSON file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Score a drafter on shards: next-commit accuracy and replayed NFE, beside the untrained orders."""
    from spot_infer.atomic import check_place, write_json
    from spot_infer.checkpoint import load_drafter
    from spot_train.recipe.recipe import resolve_path

    if output is not None:
        check_place(output)
    measures = _scored(load_drafter(resolve_path(drafter, Path.cwd())), data, split, budget, states, replay)
    if output is not None:
        from spot_train.provenance import provenance

        write_json(output, {**measures, "provenance": provenance()})
    if as_json:
        typer.echo(json.dumps(measures))
        return
    from rich.console import Console

    from spot_train.fit.eval_view import print_measures

    print_measures(Console(), measures)


@app.command()
def export(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint that fit reported.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Drafter folder to write.", show_default=False)],
    data: Annotated[Path | None, typer.Option(help="Shards whose held-out half the model card measures.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe whose decode.tau and decode.merged it keeps.")] = None,
    licence: Annotated[str, typer.Option(help="Licence that the model card states.")] = "apache-2.0",
    set_: SetOption = None,
) -> None:
    """Write the drafter folder, read it back and compare every bit."""
    if set_ and recipe is None:
        raise SpotError("export takes --set only with --recipe; add --recipe")
    from spot_train.fit.export import export as run
    from spot_train.fit.export import read_checkpoint
    from spot_train.recipe.recipe import recipe_from_flags

    values = None if recipe is None else recipe_from_flags(recipe, set_)
    draft = None if values is None else values.decode.draft_settings()
    drafter = read_checkpoint(checkpoint, draft=draft)
    metrics = None if data is None else _scored(drafter, data, "heldout", (8, 20), None, None)
    run(checkpoint, out, metrics=metrics, draft=draft, licence=licence)
    typer.echo(f"drafter: {out}")


@app.command()
def report(
    results: Annotated[list[Path], typer.Argument(help="What bench wrote: folders or files.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for report.md, report.html and figures.", show_default=False)],
) -> None:
    """Render results files as Markdown, PNG figures and one HTML page, and print the main table. Runs nothing."""
    from rich.console import Console

    from spot_train.report import write_report
    from spot_train.report.terminal import print_summary

    print_summary(Console(), write_report(results, out))
    typer.echo(f"report: {out / 'report.html'}")


@tasks_app.command("list")
def list_tasks() -> None:
    """Print the tasks and where their rows come from."""
    from spot_train.tasks import TASKS

    for name, module in TASKS.items():
        typer.echo(f"{name:10} {module.SOURCE.dataset:32} {', '.join(module.SOURCE.splits)}")


@tasks_app.command("show")
def show_task(
    name: Annotated[str, typer.Argument(help="Name of the task.", show_default=False)],
    path: Annotated[str | None, typer.Option(help="File of the task's rows; default its own source.")] = None,
    split: Annotated[str | None, typer.Option(help="Default the evaluated one.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Examples printed, from the first.")] = 1,
) -> None:
    """Print examples as they are prompted, one JSON object each."""
    from spot_train.recipe.recipe import resolve_path
    from spot_train.tasks import load_task

    task = load_task(name, path and resolve_path(path, Path.cwd()), split, limit)
    for example in task.examples:
        shown = {"id": example.id, "family": example.family, "prompt": example.prompt, "stop": task.stop}
        typer.echo(json.dumps(shown, ensure_ascii=False))


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for everything the quickstart makes.")] = Path("runs/quickstart"),
    prompts: Annotated[int, typer.Option(min=1, help="Evaluation prompts decoded.")] = 32,
    allow_code_execution: AllowCodeOption = False,
    set_: SetOption = None,
) -> None:
    """Collect, fit, export and decode on the tiny target, and print one table."""
    from spot_train.quickstart import main as run
    from spot_train.recipe.recipe import parse_overrides

    run(out, prompts=prompts, allow_code_execution=allow_code_execution, overrides=parse_overrides(set_ or ()))


def run(arguments: Sequence[str]) -> int:
    """One command; returns its exit code: 0, 2 for an error the user can fix, 128 + n after signal n."""
    try:
        return run_command(app, "spot-train", arguments)
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return stopped.code


def main() -> None:
    """Entry point of the `spot-train` command."""
    sys.exit(run(sys.argv[1:]))


def _scored(
    drafter: OrderDrafter, data: Path, split: str, budgets: Sequence[int], states: int | None, replay: int | None
) -> dict[str, Any]:
    """What `evaluate` measures of a drafter on one split of a set of shards."""
    from spot_train.fit.evaluate import evaluate
    from spot_train.shards.store import named_split, open_shards

    chosen = named_split(split)
    shards = open_shards(data)
    return evaluate(
        drafter,
        shards.trajectories(chosen),
        budgets=budgets,
        replay_limit=replay,
        temperature=shards.sampling.temperature,
        limit_states=states,
        rule=shards.rule,
    )


if __name__ == "__main__":
    main()
