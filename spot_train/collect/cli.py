"""`spot-train collect` and `check-drafted`: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spot_infer.errors import SpotError
from spot_train.cli_options import JsonOption, RecipeArgument, SetOption

if TYPE_CHECKING:
    from spot_train.collect.bucket import Bucket
    from spot_train.collect.drafted_check import DraftedReport
    from spot_train.progress import CollectView

DrafterOption = Annotated[
    str | None, typer.Option("--drafter", help="Exported drafter to decode with: folder, hub id or builtin: path.")
]
MethodOption = Annotated[
    str | None,
    typer.Option("--method", help="Method to decode with, as in chain:depth=4; default spot with --drafter."),
]
GraphOption = Annotated[str | None, typer.Option("--graph", help="Calibrated graph for --method calibrated_graph.")]
BudgetOption = Annotated[
    int | None, typer.Option("--budget", min=1, help="Most drafted states a round; sets decode.budget.")
]
BootstrapOption = Annotated[
    bool, typer.Option("--bootstrap", help="Fit drafters to the first leases and draft the rest with them.")
]


def collect(
    recipe: RecipeArgument,
    out: Annotated[
        str, typer.Option(help="Folder of shards, or its URL with --cache; resumed if it has some.", show_default=False)
    ],
    drafter: DrafterOption = None,
    method: MethodOption = None,
    graph: GraphOption = None,
    budget: BudgetOption = None,
    bootstrap: BootstrapOption = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that collect together, one a device.", show_default=False)
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option("--ray", help="Run the workers on a Ray cluster: its address, auto, or local for a new one."),
    ] = None,
    take_over: Annotated[
        str | None, typer.Option(help="Break the lock of a job that is gone, by the name that the refusal gives.")
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder on a disk, seen by all processes, where a set behind a URL is collected before it goes there."
        ),
    ] = None,
    set_: SetOption = None,
) -> None:
    """Decode the recipe's prompts, draft-free or drafted, and store their trajectories.

    Under torchrun or srun every process collects its part, and what is left of the others'.
    """
    from functools import partial

    from rich.console import Console

    from spot_train.collect.collect import collect as run
    from spot_train.collect.collect import no_image
    from spot_train.collect.methods import DRAFT_FREE, named_method
    from spot_train.collect.ranks import rank_of_environment
    from spot_train.collect.workers import Job, collect_with_workers
    from spot_train.progress import CollectView
    from spot_train.recipe.recipe import recipe_from_flags
    from spot_train.shards.copy import Place, lasting

    if ray is not None and workers is None:
        raise SpotError("--ray says where workers run, but not how many; add --workers")
    values = recipe_from_flags(recipe, set_, {"decode.budget": budget})
    named = partial(named_method, drafter=drafter, method=method, graph=graph)
    chosen = named if drafter or method or graph else DRAFT_FREE
    rank = rank_of_environment()
    console = Console(stderr=True, quiet=workers is None and rank.number > 0)
    with CollectView(console) as view:
        place = Place(lasting(out))
        several = workers is None and rank.world > 1
        bucket = None if place.local is not None else _bucket(out, cache, view, several)
        folder = place.local or Path(out) if bucket is None else bucket.folder
        image = no_image if bucket is None else partial(bucket.written, values, take_over)
        progress = view if bucket is None or (several and rank.number > 0) else bucket
        if workers is not None:
            job = Job(values, folder, chosen, bootstrap)
            summary = collect_with_workers(job, workers, ray, progress, take_over, image)
        else:
            summary = run(
                values,
                folder,
                progress=progress,
                method=chosen,
                bootstrap=bootstrap,
                rank=rank,
                take_over=take_over,
                image=image,
            )
        view.finished(summary)
        if bucket is not None:
            console.print(bucket.sentence(), highlight=False, soft_wrap=True)


def _bucket(url: str, cache: Path | None, view: CollectView, several: bool) -> Bucket:
    """What `--out` and `--cache` name, where `--out` is a URL."""
    from spot_train.collect.bucket import Bucket
    from spot_train.shards.shown import without_secrets

    if cache is None:
        raise SpotError(
            f"--out {without_secrets(url)} is a URL; add --cache, a folder on a disk, where the set is collected first"
        )
    return Bucket(
        url, cache, view, lambda sentence: view.console.print(sentence, highlight=False, soft_wrap=True), several
    )


def check_drafted(
    recipe: RecipeArgument,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts collected both ways, from the first.")] = 64,
    drafter: DrafterOption = None,
    method: MethodOption = None,
    graph: GraphOption = None,
    budget: BudgetOption = None,
    bootstrap: BootstrapOption = False,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Collect prompts draft-free and drafted in one process; report every difference and what both took.

    Exit code 1 where tables moved by more than the tolerance, or anything differs in float64.
    """
    if not (drafter or method or graph or bootstrap):
        raise SpotError("check-drafted has nothing to draft with; give --drafter, --method or --bootstrap")
    from tempfile import TemporaryDirectory

    from spot_train.collect import drafted_check
    from spot_train.collect.batch_size import with_fitting_batch
    from spot_train.collect.collect import (
        decode_settings,
        load_recipe_target,
        make_schedule,
        shared_attributes,
    )
    from spot_train.collect.leases import split_leases
    from spot_train.collect.methods import named_method
    from spot_train.prompts import load_prompts
    from spot_train.recipe.recipe import recipe_from_flags

    values = recipe_from_flags(recipe, set_, {"decode.budget": budget, "prompts.limit": prompts})
    target = load_recipe_target(values)
    chosen = named_method(values, target, drafter, method, graph)
    loaded, report = load_prompts(values, target)
    values = with_fitting_batch(values, target, chosen, decode_settings(values), loaded)
    leases = split_leases(loaded, values.collect.lease_prompts)
    attributes = shared_attributes(values, target, report)

    def done(lease: int) -> None:
        typer.echo(f"lease {lease + 1} of {len(leases)}", err=True)

    with TemporaryDirectory(prefix="spot-check-drafted-") as name:
        folder = Path(name)
        schedule, _ = make_schedule(values, target, leases, folder, attributes, chosen, bootstrap)
        settings, seed = decode_settings(values), values.collect.seed
        result = drafted_check.check_drafted(target, leases, settings, seed, schedule, attributes, folder, done)
    for line in [json.dumps(result.to_dict())] if as_json else _lines(result):
        typer.echo(line)
    if not result.sound:
        raise typer.Exit(1)


def _lines(result: DraftedReport) -> list[str]:
    """The report, a line a fact."""
    found = result.agreement
    gaps = sorted(flip.gap for _, flip in found.flips)
    lines = [
        f"{result.dtype}, batch size {result.batch_size}: {found.identical} of {found.prompts} prompts recorded "
        f"identically, {found.steps} steps compared",
        *(
            f"  prompt {at} diverges at step {flip.step} ({flip.kind}, gap {flip.gap:.2e})"
            for at, flip in found.flips[:10]
        ),
        *([f"  {len(gaps)} divergences, gaps up to {gaps[-1]:.2e}"] if gaps else []),
        f"tables before it moved by at most {found.table_shift:.2e} (tolerance {result.tolerance:g}: "
        f"{'kept' if found.table_shift <= result.tolerance else 'EXCEEDED'})",
        "leases: " + ", ".join(f"{count} {label}" for label, count in result.methods.items()),
    ]
    for title, spent in (("draft-free", result.draft_free), ("drafted", result.drafted)):
        one = spent.forwards
        lines.append(
            f"{title:10} NFE {one.nfe:,}, {one.calls:,} target forwards of {one.nfe / one.calls:.1f} rows, "
            f"{one.positions:,} positions, {sum(spent.wall_s):.1f} s wall, {sum(spent.cpu_s):.1f} s CPU"
        )
    lines.append(f"reduction {result.reduction:.2f}x; fits took {result.fit_s:.1f} s more")
    lines.append(f"recording and storing add {result.recording_share:+.1%} to drafted decoding without (CPU time)")
    return lines
