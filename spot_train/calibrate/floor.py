"""Calibrate the mass floor of a target (paper appendix D.5): the smallest mass that is worth verifying on a machine.

Every floor of a grid is decoded under every budget on held-out prompts, unpadded, or predicted from replay and a cost
curve. Chosen is the floor of the largest mean throughput ratio over the budgets; inside a tie band the smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from spot_infer.clock import clock_for
from spot_infer.cost import CostCurve, load_curve
from spot_infer.drafters import OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.graph import Drafter
from spot_infer.profile import machine_facts
from spot_infer.requests import Boundary, Request
from spot_infer.targets.protocol import Target
from spot_train.calibrate.calibration import calibration_requests, load_calibration, write_calibration
from spot_train.calibrate.graph import Recorded, record_pool, recorded_shards
from spot_train.collect.collect import decode_settings, load_recipe_target, target_attributes
from spot_train.compare.compare import Method
from spot_train.cost.simulate import prediction_row, replay_rounds
from spot_train.cost.timed_methods import timed_methods
from spot_train.recipe.recipe import Recipe
from spot_train.shards.store import open_shards

FLOORS = (0.0, 0.02, 0.05, 0.1, 0.2)
BUDGETS = (8, 12, 20)
TIE_BAND = 0.03
Grid = dict[float, dict[int, dict[str, float]]]
"""By floor and budget: throughput_ratio, nfe and replicas (mean a forward)."""


def choose_floor(ratios: Mapping[float, Sequence[float]], tie_band: float = TIE_BAND) -> float:
    """The floor with the largest mean ratio; the smallest of those that it leads by at most `tie_band`.

    Raises SpotError where there is no ratio, or one is not a positive number.
    """
    if not ratios or not all(len(row) and all(0 < ratio < float("inf") for ratio in row) for row in ratios.values()):
        raise SpotError("a floor has no positive throughput ratio; calibrate on more prompts")
    means = {floor: float(np.mean(row)) for floor, row in ratios.items()}
    best = max(means.values())
    return min(floor for floor, mean in means.items() if best <= mean * (1 + tie_band))


def calibrate_floor(
    recipe: Recipe,
    drafter: OrderDrafter,
    drafter_name: str,
    out: Path,
    curve_name: str | None = None,
    data: Path | None = None,
    clock: str = "auto",
    progress: Callable[[str], None] = lambda done: None,
) -> dict[str, Any]:
    """Make the grid, choose and write: by the clock, or with `curve_name` from replay of the held-out half of the
    shards in `data` (None: of the recipe's calibration prompts, decoded draft-free). Returns what the file holds."""
    how: dict[str, Any] = {"drafter": drafter_name}
    if curve_name is not None:
        curve = load_curve(curve_name)
        recorded = (
            record_pool(recipe, load_recipe_target(recipe))
            if data is None
            else recorded_shards(recipe, open_shards(data))
        )
        form = recipe.decode.form()
        grid = simulate_grid(curve, form.apply(drafter), recorded, form.boundary)
        how |= {"curve": curve.to_dict(), "ratios": "predicted"}
        return write_floor(out, recorded.attributes, recorded.data, grid, how)
    target = load_recipe_target(recipe)
    drafter.check_block_length(target.spec.block_length)
    requests, facts = calibration_requests(recipe, target)
    grid, clock_name = measure_grid(recipe, target, drafter.to(device=target.device), requests, clock, progress)
    how |= {"clock": clock_name, "machine": machine_facts(), "batch_size": 1}
    return write_floor(out, target_attributes(recipe, target), facts, grid, {**how, "ratios": "measured"})


def measure_grid(
    recipe: Recipe,
    target: Target,
    drafter: Drafter,
    requests: Sequence[Request],
    clock_name: str = "auto",
    progress: Callable[[str], None] = lambda done: None,
) -> tuple[Grid, str]:
    """Decode draft-free and with every floor and budget, one row at a time, interleaved; the grid and the clock's
    name."""
    clock, form = clock_for(target.device, clock_name), recipe.decode.form()
    settings = replace(decode_settings(recipe), layout=recipe.decode.layout, batch_size=1)
    cells = [(floor, budget) for floor in FLOORS for budget in BUDGETS]
    methods = [
        Method("draft-free"),
        *(Method(f"γ{floor:g}", budget, form.apply(drafter), floor, boundary=form.boundary) for floor, budget in cells),
    ]

    def note(prompt: int) -> None:
        progress(f"prompt {prompt + 1} of {len(requests)}")

    runs, spent = timed_methods(target, requests, methods, settings, clock, note)
    grid: Grid = {floor: {} for floor in FLOORS}
    for (floor, budget), run, seconds in zip(cells, runs[1:], spent[1:], strict=True):
        grid[floor][budget] = {
            "throughput_ratio": spent[0] / seconds,
            "nfe": run.total("nfe") / len(requests),
            "replicas": run.total("positions") / target.spec.block_length / run.total("nfe"),
        }
    return grid, clock.name


def simulate_grid(
    curve: CostCurve,
    drafter: Drafter,
    recorded: Recorded,
    boundary: Boundary = "auto",
) -> Grid:
    """The same grid predicted from a cost curve; it gives the same figures every time."""
    trajectories = [*recorded.calibration, *recorded.heldout]
    temperature = float(recorded.attributes["sampling"]["temperature"])
    grid: Grid = {floor: {} for floor in FLOORS}
    for floor in FLOORS:
        for budget in BUDGETS:
            rounds = replay_rounds(drafter, trajectories, budget, floor, False, temperature, boundary)
            row = prediction_row(curve, rounds)
            grid[floor][budget] = {name: float(row[name]) for name in ("throughput_ratio", "nfe", "replicas")}
    return grid


def write_floor(
    path: Path, attributes: Mapping[str, Any], data: Mapping[str, Any], grid: Grid, how: Mapping[str, Any]
) -> dict[str, Any]:
    """Choose the floor and write the file; returns what it holds. `how` says how the ratios were made: clock or curve,
    drafter, layout."""
    floor = choose_floor({floor: [one["throughput_ratio"] for one in row.values()] for floor, row in grid.items()})
    values = {"floor": floor, "floors": list(grid), "budgets": list(next(iter(grid.values()))), "tie_band": TIE_BAND}
    measured = {
        **how,
        "grid": {f"{floor:g}": {f"D{budget}": one for budget, one in row.items()} for floor, row in grid.items()},
        "mean_ratio": {f"{floor:g}": mean_ratio(row) for floor, row in grid.items()},
    }
    write_calibration(path, "floor", attributes, data, values, measured)
    return {"values": values, "measured": measured}


def mean_ratio(row: Mapping[int, Mapping[str, float]]) -> float:
    """Mean throughput ratio of one floor over its budgets."""
    return float(np.mean([one["throughput_ratio"] for one in row.values()]))


def load_floor(path: str | Path, attributes: Mapping[str, Any]) -> float:
    """The calibrated floor in a file, checked against a target's attributes (`collect.target_attributes`).

    Raises SpotError where the file is damaged or was calibrated for another target or block length; another commit
    rule warns.
    """
    floor = load_calibration(path, "floor", attributes)["values"].get("floor")
    if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 <= floor < 1:
        raise SpotError(f"{path}: values.floor is {floor!r}, not a mass of at least 0 and below 1; calibrate again")
    return float(floor)


def floor_option(text: str, recipe: Recipe, target: Target) -> float:
    """What `--floor` names: a number, or the file of a calibration that fits this target."""
    try:
        number = float(text)
    except ValueError:
        return load_floor(text, target_attributes(recipe, target))
    if not 0 <= number < 1:
        raise SpotError(f"floor is {text}; use a mass of at least 0 and below 1, or a file of `calibrate floor`")
    return number
