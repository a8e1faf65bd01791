"""The main job on the tiny target, end to end: collect, fit, export, then decode evaluation prompts side by side.

Resumes whatever an interrupted run left in its folder. Prints one table and writes the same rows to results.jsonl.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from spot_infer.graph import Drafter
from spot_infer.requests import DecodeSettings
from spot_train.collect.collect import collect, load_recipe_target
from spot_train.compare.side_by_side import Comparison, print_rows, side_by_side, write_rows
from spot_train.fit.evaluate import evaluate
from spot_train.fit.export import export
from spot_train.fit.facts import drafter_facts
from spot_train.fit.fit import fit
from spot_train.progress import CollectView
from spot_train.recipe.recipe import Recipe, load_recipe
from spot_train.results import RESULTS
from spot_train.shards.store import open_shards
from spot_train.tasks import load_task

RECIPE = "builtin:recipes/tiny.yaml"
PROMPTS = 32


def main(
    out: str | Path,
    *,
    prompts: int = PROMPTS,
    allow_code_execution: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Run everything in `out` and return the table's rows. Raises SpotError where a step can't go on."""
    with _one_thread():
        return _run(Path(out), prompts, allow_code_execution, overrides)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The tiny target's operations are too small to share: a second thread gains little and waits for a busy core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _run(
    folder: Path, prompts: int, allow_code_execution: bool, overrides: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    console = Console()
    recipe = load_recipe(RECIPE, overrides)
    console.rule("1 collect")
    target = load_recipe_target(recipe)
    with CollectView(console) as view:
        view.finished(collect(recipe, folder / "shards", target=target, progress=view))
    console.rule("2 fit")
    drafter = _train(recipe, folder, console)
    console.rule("3 decode")
    plan = Comparison(
        task=load_task("tiny", limit=prompts),
        settings=DecodeSettings(max_new_tokens=recipe.collect.max_new_tokens, rule=recipe.rule.commit_rule()),
        seed=recipe.collect.seed,
        allow_code_execution=allow_code_execution,
    )
    rows = side_by_side(target, drafter, plan, console)
    write_rows(folder / RESULTS, rows)
    print_rows(console, rows)
    console.print(f"drafter: {folder / 'drafter'}   rows: {folder / RESULTS}", highlight=False, soft_wrap=True)
    return rows


def _train(recipe: Recipe, folder: Path, console: Console) -> Drafter:
    """Fit and export; prints the held-out accuracy beside that of the untrained orders."""
    shards = open_shards(folder / "shards")
    heldout = list(shards.trajectories("heldout"))
    checkpoint = fit(
        recipe.fit,
        shards.trajectories("train"),
        heldout,
        folder / "fit",
        rule=recipe.rule.commit_rule(),
        temperature=recipe.sampling.temperature,
        facts=drafter_facts(shards),
        progress=True,
    )
    drafter = export(checkpoint, folder / "drafter")
    measures = evaluate(drafter, heldout, limit_states=1000, replay_limit=0)["orders"]
    for scope, commits in (("all", "every commit"), ("before_stop", "those up to the stop token")):
        accuracies = ", ".join(
            f"{order} {measures[scope][name]['accuracy']:.3f}"
            for order, name in (("order model", "model"), ("stale confidence", "stale_confidence"))
        )
        console.print(f"held-out accuracy, {commits}: {accuracies}", highlight=False, soft_wrap=True)
    return drafter
