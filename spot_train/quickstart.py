"""The main job on the tiny target, end to end: collect, fit, export, then decode held-out prompts draft-free and drafted.

Resumes whatever an interrupted run left in its folder. Prints one table and writes the same rows to results.jsonl.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spot_infer.api import encode_prompt
from spot_infer.drafters import ChainDrafter
from spot_infer.graph import Drafter
from spot_infer.noise import request_seed
from spot_infer.packaged import packaged
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets.protocol import Target
from spot_train.atomic_files import write_file
from spot_train.collect import collect, load_recipe_target
from spot_train.compare import Method, MethodRun, divergences, run_methods, summarise
from spot_train.evaluate import evaluate
from spot_train.export import export
from spot_train.fit import fit
from spot_train.progress import CollectView
from spot_train.provenance import provenance
from spot_train.recipe import Recipe, load_recipe
from spot_train.shards import read_trajectories
from spot_train.tasks.tiny import score

RECIPE = "builtin:recipes/tiny.yaml"
EVALUATION_POOL = "data/pools/eval.jsonl"
BUDGETS = (8, 20)
PROMPTS = 40
COST_LINE = (
    "On a CPU a drafted state costs about what it saves: a forward over 1 + D block copies takes nearly 1 + D times as "
    "long, so forwards fall and wall clock hardly does. On a GPU the copies are nearly free until its arithmetic is full."
)


def main(out: str | Path, *, prompts: int = PROMPTS, allow_code_execution: bool = False) -> list[dict[str, Any]]:
    """Run everything in `out` and return the table's rows. Raises SpotError where a step can't go on."""
    folder = Path(out)
    console = Console()
    recipe = load_recipe(RECIPE)
    console.rule("1 collect")
    target = load_recipe_target(recipe)
    with CollectView(console) as view:
        view.finished(collect(recipe, folder / "shards", target=target, progress=view))
    console.rule("2 fit")
    drafter = _train(recipe, folder, console)
    console.rule("3 decode")
    rows = _evaluation_rows(prompts)
    runs, settings, requests = _decode(recipe, target, drafter, rows, console)
    table = _summaries(target, rows, runs, settings, requests, allow_code_execution)
    stamped = [{**row, "provenance": provenance()} for row in table]
    write_file(folder / "results.jsonl", "".join(json.dumps(row) + "\n" for row in stamped).encode())
    console.print(render(table))
    _print_notes(console, table, allow_code_execution)
    console.print(f"drafter: {folder / 'drafter'}   rows: {folder / 'results.jsonl'}", highlight=False, soft_wrap=True)
    return table


def _train(recipe: Recipe, folder: Path, console: Console) -> Drafter:
    """Fit and export; prints the held-out accuracy beside that of the untrained orders."""
    shards = folder / "shards"
    heldout = list(read_trajectories(shards, "heldout"))
    checkpoint = fit(
        recipe.fit,
        read_trajectories(shards, "train"),
        heldout,
        folder / "fit",
        rule=recipe.rule.commit_rule(),
        temperature=recipe.sampling.temperature,
        facts={"target": {"name": recipe.target.path_or_id}},
        progress=True,
    )
    drafter = export(checkpoint, folder / "drafter")
    measures = evaluate(drafter, heldout, limit_states=1000, replay_limit=0)["orders"]["before_stop"]
    console.print(
        "held-out next-commit accuracy, before the stop token: "
        f"order model {measures['model']['accuracy']:.3f}, stale confidence "
        f"{measures['stale_confidence']['accuracy']:.3f}, left to right {measures['left_to_right']['accuracy']:.3f}",
        highlight=False,
        soft_wrap=True,
    )
    return drafter


def _evaluation_rows(prompts: int) -> list[dict[str, Any]]:
    """The first evaluation prompts, the families in turn."""
    lines = packaged(EVALUATION_POOL).read_text(encoding="utf-8").splitlines()
    by_family: dict[str, list[dict[str, Any]]] = {}
    for row in map(json.loads, lines):
        by_family.setdefault(row["family"], []).append(row)
    longest = max(map(len, by_family.values()))
    turns = [rows[turn] for turn in range(longest) for rows in by_family.values() if turn < len(rows)]
    return turns[:prompts]


def _decode(
    recipe: Recipe, target: Target, drafter: Drafter, rows: Sequence[dict[str, Any]], console: Console
) -> tuple[list[MethodRun], DecodeSettings, list[Request]]:
    rule = recipe.rule.commit_rule()
    settings = DecodeSettings(max_new_tokens=recipe.collect.max_new_tokens, rule=rule)
    ids = [encode_prompt(target, row["prompt"]) for row in rows]
    requests = [Request(prompt, request_seed(recipe.collect.seed, prompt)) for prompt in ids]
    methods = [Method("draft-free"), Method("chain", BUDGETS[0], ChainDrafter(rule))]
    methods += [Method("spot", budget, drafter) for budget in BUDGETS]
    bar = Progress(
        TextColumn("decode"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    with bar:
        task = bar.add_task("decode", total=len(requests) * len(methods))
        runs = run_methods(target, requests, methods, settings, lambda _, count: bar.advance(task, count))
    return runs, settings, requests


def _summaries(
    target: Target,
    rows: Sequence[dict[str, Any]],
    runs: Sequence[MethodRun],
    settings: DecodeSettings,
    requests: Sequence[Request],
    allow_code_execution: bool,
) -> list[dict[str, Any]]:
    scored = [index for index, row in enumerate(rows) if allow_code_execution or row["scorer"]["type"] != "code"]
    table = []
    for run in runs:
        solved = {index: score(rows[index], run.results[index].text, allow_code_execution) for index in scored}
        differing = divergences(target, requests, runs[0], run, settings)
        table.append(summarise(run, runs[0], settings, solved, differing))
    return table


def render(rows: Sequence[dict[str, Any]]) -> Table:
    """The comparison as a terminal table."""
    table = Table()
    for name in ("method", "D", "NFE", "reduction", "accepted", "throughput ratio", "accuracy", "identical"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in rows:
        table.add_row(
            row["method"],
            str(row["budget"] or "-"),
            f"{row['nfe']:.1f}",
            f"{row['reduction']:.2f}x",
            f"{row['accepted']:.2f}",
            f"{row['throughput_ratio']:.2f}x",
            "-" if row["accuracy"] is None else f"{row['accuracy']:.2f}",
            f"{row['identical']}/{row['n']}",
        )
    return table


def _print_notes(console: Console, rows: Sequence[dict[str, Any]], allow_code_execution: bool) -> None:
    for row in rows:
        for one in row["divergences"]:
            console.print(
                f"{row['method']} D{row['budget']}: prompt {one['prompt']} first differs at step {one['step']} "
                f"({one['kind']}, gap {one['gap']:.2g})",
                highlight=False,
            )
    control = rows[0]
    console.print(
        f"{control['n']} evaluation prompts, temperature {control['temperature']:g}, commit rule "
        f"{control['rule']['resolution']}, stop tokens honoured; NFE is target forwards a prompt, accepted is drafts a "
        "drafted round, ratios are against draft-free in this run.",
        soft_wrap=True,
        highlight=False,
    )
    if not allow_code_execution:
        console.print(
            "Accuracy leaves out the code tasks, whose answers run only with --allow-code-execution.", highlight=False
        )
    console.print(COST_LINE, soft_wrap=True, highlight=False)
