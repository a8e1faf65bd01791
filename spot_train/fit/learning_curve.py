"""How many trajectories a drafter needs: one fit a number of them and seed, all of equally many optimiser steps, each
measured on the set's held-out trajectories.

Sizes are nested: a larger one begins with the trajectories of the smaller. Resumable: a fit that was killed goes on,
one that was measured is read back. Knows nothing about how training works.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spot_infer.atomic import write_json
from spot_infer.checkpoint import PretrainedDrafter
from spot_infer.errors import SpotError
from spot_train.fit.evaluate import evaluate
from spot_train.fit.export import read_checkpoint
from spot_train.fit.facts import drafter_facts
from spot_train.fit.fit import RUN_FILE, fit, network, read_json
from spot_train.fit.step_windows import ShardWindows
from spot_train.fit.warm_start import check_start
from spot_train.output_lock import make_folder
from spot_train.provenance import weights_hash
from spot_train.recipe.recipe import FitSection
from spot_train.shards.store import ShardSet

SIZES = (100, 300, 1_000, 3_000, 10_000)
MEASURES_FILE = "measures.json"


@dataclass(frozen=True)
class Point:
    """One drafter. trajectories: trained on (0: the start as it was); seed: None there; start: cold or warm;
    best_step: optimiser steps of its checkpoint; accuracy: of next commits up to the stop token, every held-out depth;
    reductions: draft-free forwards over drafted ones by budget, replayed; untrained: accuracy and reductions of the
    stale order on the same."""

    trajectories: int
    seed: int | None
    start: str
    best_step: int
    accuracy: float
    reductions: dict[str, float]
    untrained: dict[str, Any]


def sizes_of(shards: ShardSet, asked: Sequence[int]) -> tuple[int, ...]:
    """The sizes asked for, ascending; none: those of `SIZES` that the set has, and all of it. Raises SpotError where it
    has fewer."""
    have = shards.count("trajectories") - shards.count("heldout")
    if not asked:
        return (*(size for size in SIZES if size < have), have)
    if max(asked) > have:
        raise SpotError(
            f"--trajectories {max(asked)} is more than the {have} training trajectories of {shards.path}; collect more"
        )
    return tuple(sorted(set(asked)))


def learning_curve(
    section: FitSection,
    shards: ShardSet,
    out: Path,
    *,
    sizes: Sequence[int],
    seeds: Sequence[int],
    steps: int,
    budgets: Sequence[int] = (8, 20),
    warm_start: PretrainedDrafter | None = None,
    fitting: Callable[[str], None] = lambda name: None,
) -> Iterator[Point]:
    """A point a size and seed, as soon as it is there; each fit lies in a folder of its own in `out`. `warm_start`: the
    drafter that every fit starts from; its own point comes first. `fitting` is told the name of each fit. Raises
    SpotError as `fit` does."""
    if warm_start is not None:
        check_start(warm_start, network(section, shards.block_length, shards.rule))
    start = "cold" if warm_start is None else "warm"
    names = {(size, seed): f"{start}-{size:05d}-seed{seed}" for size in sizes for seed in seeds}
    _check_steps(out, names.values(), steps)
    make_folder(out)
    heldout, held = list(shards.trajectories("heldout")), ShardWindows(shards, "heldout", section.resident_shards)
    common: dict[str, Any] = {"rule": shards.rule, "temperature": shards.sampling.temperature}
    facts = drafter_facts(shards)

    def measured(file: Path, drafter: PretrainedDrafter) -> Mapping[str, Any]:
        asked = {"weights_hash": weights_hash(drafter.model), "budgets": list(budgets), "heldout": len(heldout)}
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if known.get("of") != asked:
            found = evaluate(drafter, heldout, budgets=budgets, **common)
            known = {"of": asked, **found}
            write_json(file, known)
        return known

    if warm_start is not None:
        yield _point(measured(out / f"start-{MEASURES_FILE}", warm_start), 0, None, start, 0)
    for (size, seed), name in names.items():
        fitting(name)
        chosen = _section(section, size, seed, steps)
        train = ShardWindows(shards, "train", chosen.resident_shards, size)
        run = out / name
        best = fit(chosen, train, held, run, facts=facts, warm_start=warm_start, **common)
        drafter = read_checkpoint(best)
        taken = int(drafter.info.training["steps"])
        yield _point(measured(run / MEASURES_FILE, drafter), size, seed, start, taken)


def _check_steps(out: Path, names: Iterable[str], steps: int) -> None:
    """Raise SpotError where a fit in `out` is of another number of steps."""
    for name in names:
        file = out / name / RUN_FILE
        known = read_json(file)["fit"].get("decay_steps") if file.exists() else steps
        if known != steps:
            raise SpotError(
                f"{out} holds fits of {known} steps, now --steps is {steps}; choose another --out or --steps {known}"
            )


def _section(section: FitSection, size: int, seed: int, steps: int) -> FitSection:
    """The recipe's `fit` for exactly `steps` steps, the learning rate falling over all of them."""
    chosen = {
        "trajectories": size,
        "seed": seed,
        "max_steps": steps,
        "decay_steps": steps,
        "epochs": steps,
        "patience_epochs": None,
        "replay_trajectories": 0,
    }
    return section.model_copy(update=chosen)


def _point(measures: Mapping[str, Any], size: int, seed: int | None, start: str, best_step: int) -> Point:
    orders = measures["orders"]["before_stop"]
    reductions = {
        name: {budget: one["reduction"] for budget, one in budgets.items()}
        for name, budgets in measures["replay"].items()
    }
    untrained = {"accuracy": orders["stale_confidence"]["accuracy"], "reductions": reductions["chain"]}
    return Point(size, seed, start, best_step, orders["model"]["accuracy"], reductions["order"], untrained)


def as_rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """JSON values of the points."""
    return [asdict(point) for point in points]
