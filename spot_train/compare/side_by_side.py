"""Decode a task's prompts draft-free and drafted, side by side, and print one table.

The same piece serves the quickstart and `spot-train compare`. Scoring is the task's own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spot_infer.allocate import MOST_STATES
from spot_infer.api import rule_mismatch
from spot_infer.atomic import write_file
from spot_infer.cost import CostCurve
from spot_infer.drafters import ChainDrafter, OddsTreeDrafter, OrderDrafter
from spot_infer.graph import Drafter
from spot_infer.noise import request_seed
from spot_infer.presets import PRESETS, Preset
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets.protocol import Target
from spot_infer.verify import verdict_line
from spot_train.compare.compare import Method, MethodRun, divergences, run_methods, summarise
from spot_train.compare.scoring import score
from spot_train.cost.line import COST_LINE
from spot_train.cost.simulate import predicted_ratio
from spot_train.provenance import provenance
from spot_train.tasks import Task
from spot_train.tasks.sandbox import guarantees

DAGGER = "\u2020"
CHAIN_BUDGET = 8
"""The chain's, where no number is given."""


@dataclass(frozen=True)
class Comparison:
    """What to run: a task, the methods' budgets, and whether code answers may be run. curve: where there is one, the
    drafter also runs with the budget that pays on it; predicted_on: where there is one, rows' throughput is predicted
    on it, each row by itself; form: what the untrained tree drafts in."""

    task: Task
    settings: DecodeSettings
    budgets: Sequence[int] = (8, 20)
    seed: int = 0
    floor: float = 0.0
    allow_code_execution: bool = False
    curve: CostCurve | None = None
    predicted_on: CostCurve | None = None
    form: Preset = PRESETS["default"]


def side_by_side(target: Target, drafter: Drafter, plan: Comparison, console: Console) -> list[dict[str, Any]]:
    """Run draft-free, the untrained chain, and at every budget the untrained odds tree and the drafter, interleaved.

    One row of results each. The drafter may come from any target of this block length. A row of one that was trained
    under another rule has a `warning`. Raises SpotError where its block length is another.
    """
    if isinstance(drafter, OrderDrafter):
        drafter.check_block_length(target.spec.block_length)
    ids = [example.encode(target) for example in plan.task.examples]
    requests = [Request(prompt, request_seed(plan.seed, prompt)) for prompt in ids]
    shared: dict[str, Any] = {name: getattr(plan.settings, name) for name in ("boundary", "verifier", "pad")}
    chained = plan.settings.verifier == "rejection"
    odds = plan.form.apply(OddsTreeDrafter(plan.settings.rule, chain=chained))
    if chained and isinstance(drafter, OrderDrafter):
        drafter = drafter.as_chain()
    chain = Method("chain", (*plan.budgets, CHAIN_BUDGET)[0], ChainDrafter(plan.settings.rule), **shared)
    trees = [Method("odds_tree", budget, odds, plan.floor, **shared) for budget in plan.budgets]
    spot = [Method("spot", budget, drafter, plan.floor, **shared) for budget in plan.budgets]
    if plan.curve is not None:
        spot.append(Method("spot", MOST_STATES, drafter, curve=plan.curve, **{**shared, "pad": False}))
    methods = [Method("draft-free"), chain, *trees, *spot]
    bar = Progress(
        TextColumn("decode"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    with bar:
        task = bar.add_task("decode", total=len(requests) * len(methods))
        runs = run_methods(target, requests, methods, plan.settings, lambda _, count: bar.advance(task, count))
    rows = [_row(target, plan, requests, runs[0], run) for run in runs]
    return [
        {**row, "warning": rule_mismatch(run.method.drafter, plan.settings.rule)}
        for row, run in zip(rows, runs, strict=True)
    ]


def _row(
    target: Target, plan: Comparison, requests: Sequence[Request], control: MethodRun, run: MethodRun
) -> dict[str, Any]:
    allowed = plan.allow_code_execution
    outputs = [run.results[index].tokens for index in range(len(requests))]
    scores = score(plan.task, target, outputs, allowed)
    solved = {index: one for index, one in enumerate(scores.solved) if one is not None}
    row = summarise(run, control, plan.settings, solved, divergences(target, requests, control, run, plan.settings))
    curve, rows = plan.predicted_on, plan.settings.batch_size
    return {
        **row,
        "predicted": curve and predicted_ratio(curve, run, requests, rows, target.spec.block_length),
        "predicted_on": curve and curve.name,
        "task": plan.task.name,
        "code_execution": guarantees() if allowed and plan.task.runs_code else None,
        "unscored": scores.unscored,
        "accuracy_by_family": dict(scores.by_family),
    }


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the results with their provenance, whole or not at all."""
    stamp = provenance()
    write_file(path, "".join(json.dumps({**row, "provenance": stamp}) + "\n" for row in rows).encode())


def print_rows(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """The table, every first divergence, and what the columns mean."""
    console.print(render(rows))
    for row in rows:
        for one in row["divergences"]:
            console.print(
                f"{row['method']} D{row['budget']}: prompt {one['prompt']} first differs at step {one['step']} "
                f"({one['kind']}, gap {one['gap']:.2g})",
                highlight=False,
            )
    control = rows[0]
    drawing = f" ({rows[-1]['verifier']} verifier)" if control["temperature"] else ""
    stops = "stop tokens ignored" if control["ignore_stop"] else "stop tokens honoured"
    if (boundary := rows[-1]["boundary"]) != "separate":
        stops += f", boundaries {boundary} (draft-free writes blocks apart)"
    console.print(
        f"{control['n']} prompts, temperature {control['temperature']:g}{drawing}, commit rule "
        f"{control['rule']['resolution']}, {stops}. NFE is target forwards a prompt, accepted is drafts a drafted "
        "round; reduction and throughput are ratios to draft-free in this run.",
        soft_wrap=True,
        highlight=False,
    )
    if curve := control.get("predicted_on"):
        console.print(
            f"Predicted is throughput over draft-free's on the cost curve {curve}, each prompt decoded by itself: none "
            "of auto's in batches.",
            soft_wrap=True,
            highlight=False,
        )
    for note in [*_verifier_notes(rows), *sorted({row["warning"] for row in rows if row.get("warning")})]:
        console.print(note, soft_wrap=True, highlight=False)
    if control.get("unscored"):
        console.print(
            f"Accuracy leaves out {control['unscored']} prompts whose answers are code: they run only with "
            "--allow-code-execution.",
            soft_wrap=True,
            highlight=False,
        )
    console.print(COST_LINE, soft_wrap=True, highlight=False)


def _verifier_notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What the verifier of the drafted rows leaves of the comparison, and what the dagger means."""
    notes = []
    if any(row["identical"] is None for row in rows):
        notes.append(
            f"Verifier {rows[-1]['verifier']}: outputs differ from draft-free's by design, so none are compared, "
            "and a reduction also holds their difference in length."
        )
    for reason in sorted({row["reason"] for row in rows if not row["distribution_preserving"]}):
        alone = rows[0]["distribution_preserving"]
        said = "its forwards are not comparable with the other rows'" if alone else "the control runs under it too"
        notes.append(f"{DAGGER} {verdict_line(False, reason)}: {said}.")
    return notes


def render(rows: Sequence[dict[str, Any]]) -> Table:
    """The comparison as a terminal table."""
    curve = rows[0].get("predicted_on")
    predicted = ["predicted"] if curve else []
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, int(not curve), 0, 0), show_edge=not curve)
    for name in ("method", "D", "NFE", "reduction", "accepted", "throughput", *predicted, "accuracy", "identical"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in rows:
        table.add_row(
            row["method"] + ("" if row["distribution_preserving"] else DAGGER),
            str(row["budget"] or "-") if row.get("curve") is None else "auto",
            f"{row['nfe']:.1f}",
            f"{row['reduction']:.2f}x",
            f"{row['accepted']:.2f}",
            f"{row['throughput_ratio']:.2f}x",
            *(["-" if row["predicted"] is None else f"{row['predicted']:.2f}x"] if curve else []),
            "-" if row["accuracy"] is None else f"{row['accuracy']:.2f}",
            "-" if row["identical"] is None else f"{row['identical']}/{row['n']}",
        )
    return table
