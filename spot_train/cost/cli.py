"""`spot-train profile` and `simulate`: what replicas cost on this machine, and what a drafter gives on any."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spot_infer.errors import SpotError
from spot_train.cli_options import BlockLengthOption, JsonOption, SplitOption, ThreadsOption, set_threads

if TYPE_CHECKING:
    from rich.console import Console

    from spot_infer.drafters import OrderDrafter
    from spot_infer.graph import Drafter
    from spot_infer.presets import Preset
    from spot_infer.transition import CommitRule

_UNTRAINED = "chain"
DrafterPlace = Annotated[str | None, typer.Option("--drafter", help="Exported drafter: folder, hub id or builtin:.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="JSON file to write.")]
ClockOption = Annotated[str, typer.Option(help="cpu, wall, or auto: CPU time on a CPU with one thread, else wall.")]
CyclesOption = Annotated[int, typer.Option(min=1, help="Times every size meets every round.")]
SizeOption = Annotated[list[int] | None, typer.Option("--size", help="Replicas measured, rising from 1. Repeatable.")]


def profile(
    target: Annotated[str, typer.Argument(help="Target: folder, hub id or builtin: path.", show_default=False)],
    drafter: DrafterPlace = None,
    out: OutOption = None,
    prefix: Annotated[int | None, typer.Option(min=0, help="Cached prefix, tokens; default four blocks.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows decoded together.")] = 1,
    layout: Annotated[str, typer.Option(help="auto, concat or batch.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")] = "auto",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")] = None,
    block_length: BlockLengthOption = None,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature of the rounds.")] = 0.0,
    size: SizeOption = None,
    cycles: CyclesOption = 5,
    clock: ClockOption = "auto",
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what a round over R replicas costs on this machine, and what the drafter takes."""
    if layout not in ("auto", "concat", "batch"):
        raise SpotError(f"--layout is {layout!r}; use auto, concat or batch")
    from rich.console import Console

    from spot_infer.atomic import check_place
    from spot_infer.checkpoint import load_drafter
    from spot_infer.cost import save_curve
    from spot_infer.profile import SIZES, ProfileSettings
    from spot_infer.profile import profile as measure
    from spot_infer.requests import DecodeSettings
    from spot_infer.targets import load_target
    from spot_infer.transition import CommitRule, Sampling
    from spot_train.cost.view import print_curve
    from spot_train.provenance import provenance
    from spot_train.recipe.recipe import resolve_path

    if out is not None:
        check_place(out)
    set_threads(threads)
    settings = ProfileSettings(tuple(size or SIZES), prefix, cycles, clock=clock)
    place = resolve_path(target, Path.cwd())
    loaded = load_target(place, dtype=dtype, device=device, block_length=block_length)
    order = None if drafter is None else load_drafter(resolve_path(drafter, Path.cwd())).to(device=loaded.device)
    decoding = DecodeSettings(
        rule=order.rule if order else CommitRule(),
        sampling=Sampling(temperature),
        layout=layout,  # type: ignore[arg-type]
        batch_size=rows,
    )
    with Console(stderr=True).status("profile") as status:
        curve = measure(loaded, settings, decoding, order, drafter or "", progress=status.update)
    curve = replace(curve, name=target, target={**curve.target, "name": target})
    if out is not None:
        save_curve(curve, out, provenance=provenance())
    if as_json:
        typer.echo(json.dumps(curve.to_dict()))
    else:
        print_curve(Console(), curve)


def simulate(
    curve: Annotated[
        list[str] | None, typer.Option("--curve", help="File of profile, or a named curve. Repeatable; default all.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of shards whose trajectories are replayed.")] = None,
    drafter: DrafterPlace = None,
    method: Annotated[list[str] | None, typer.Option("--method", help="Repeatable; default chain and spot.")] = None,
    budget: Annotated[
        list[str] | None, typer.Option("--budget", help="A number, or auto. Repeatable; default 8, 12, 20.")
    ] = None,
    floor: Annotated[list[float] | None, typer.Option("--floor", min=0, help="Repeatable; default 0.")] = None,
    pad: Annotated[bool, typer.Option("--pad", help="Every forward holds 1 + budget replicas a row.")] = False,
    preset: Annotated[str, typer.Option(help="default, or paper: separate boundaries and trees.")] = "default",
    split: SplitOption = "heldout",
    prompts: Annotated[int | None, typer.Option(min=1, help="Most trajectories, or prompts of --check.")] = None,
    check: Annotated[
        str | None, typer.Option("--check", help="Recipe: profile and decode its target too, and print both.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="With --check: set a recipe key, section.key=value. Repeatable.")
    ] = None,
    size: SizeOption = None,
    cycles: CyclesOption = 3,
    clock: ClockOption = "auto",
    threads: ThreadsOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict throughput from a cost curve and replayed rounds; with --check, beside the measured one."""
    if (data is None) == (check is None):
        raise SpotError("give recorded shards with --data, or a recipe to measure with --check, one of the two")
    if check is not None and curve:
        raise SpotError("--check measures its own curve; leave --curve out")
    from rich.console import Console

    from spot_infer.allocate import budget_option
    from spot_infer.atomic import check_place
    from spot_infer.presets import find_preset

    if out is not None:
        check_place(out)
    set_threads(threads)
    methods = method or ([_UNTRAINED] if drafter is None else [_UNTRAINED, "spot"])
    form = find_preset(preset)
    budgets = [budget_option(one) for one in budget or ("8", "12", "20")]
    numbers = [one for one in budgets if one != "auto"]
    if any(one < 1 for one in numbers) or (check is not None and len(numbers) < len(budgets)):
        raise SpotError("budgets are numbers of at least 1, or auto, which --check does not measure")
    grid = {"budgets": budgets, "floors": floor or [0.0], "pad": pad, "boundary": form.boundary}
    with Console(stderr=True).status("simulate") as status:
        if data is not None:
            rows = _predicted(curve, data, split, prompts, methods, drafter, form, grid)
        else:
            measuring = {"sizes": size, "cycles": cycles, "clock": clock, "set": set_}
            rows = _checked(str(check), prompts or 12, methods, drafter, form, grid, measuring, status.update)
    _show(Console(), rows, out, as_json)


def _predicted(
    curves: Sequence[str] | None,
    data: Path,
    split: str,
    prompts: int | None,
    methods: Sequence[str],
    drafter: str | None,
    form: Preset,
    grid: Mapping[str, Any],
) -> list[dict[str, Any]]:
    from spot_infer.allocate import MOST_STATES
    from spot_infer.cost import NAMED_CURVES, load_curve
    from spot_train.cost.simulate import prediction_row, replay_rounds
    from spot_train.shards.store import named_split, open_shards

    chosen = named_split(split)
    loaded = [load_curve(name) for name in curves or NAMED_CURVES]
    shards = open_shards(data)
    trajectories = list(islice(shards.trajectories(chosen), prompts))
    if not trajectories:
        raise SpotError(f"{data} holds no trajectory in split {split}; use another split")
    temperature = shards.sampling.temperature
    rows = []
    for name, one in _drafters(methods, drafter, form, shards.rule, trajectories).items():
        for curve in loaded if "auto" in grid["budgets"] else ():
            paid = replace(curve, drafter=_own(curve, name))
            rounds = replay_rounds(
                one, trajectories, MOST_STATES, 0.0, False, temperature, grid["boundary"], curve=paid
            )
            rows.append({**prediction_row(paid, rounds), "drafter": name, "budget": "auto", "floor": 0.0})
        for budget in grid["budgets"]:
            for floor in grid["floors"] if budget != "auto" else ():
                rounds = replay_rounds(one, trajectories, budget, floor, grid["pad"], temperature, grid["boundary"])
                rows += [
                    {
                        **prediction_row(replace(curve, drafter=_own(curve, name)), rounds),
                        "drafter": name,
                        "budget": budget,
                        "floor": floor,
                    }
                    for curve in loaded
                ]
    return rows


def _own(curve: Any, method: str) -> Any:
    """The curve's drafter cost where it is that of the method's drafter: the order model's, which `profile` timed."""
    return curve.drafter if method == "spot" else None


def _checked(
    recipe: str,
    prompts: int,
    methods: Sequence[str],
    drafter: str | None,
    form: Preset,
    grid: Mapping[str, Any],
    measuring: Mapping[str, Any],
    progress: Any,
) -> list[dict[str, Any]]:
    from spot_infer.profile import SIZES, ProfileSettings
    from spot_train.calibrate.calibration import calibration_requests
    from spot_train.collect.collect import decode_settings, load_recipe_target
    from spot_train.cost.check import Checked, check_prediction
    from spot_train.recipe.recipe import recipe_from_flags

    values = recipe_from_flags(recipe, measuring["set"])
    target = load_recipe_target(values)
    requests, _ = calibration_requests(values, target)
    settings = replace(decode_settings(values), batch_size=1)
    rows, _ = check_prediction(
        target,
        requests[:prompts],
        Checked(_drafters(methods, drafter, form, settings.rule, ()), **grid),
        settings,
        ProfileSettings(tuple(measuring["sizes"] or SIZES), cycles=measuring["cycles"], clock=measuring["clock"]),
        progress,
    )
    return [{**row, "curve": "this machine"} for row in rows]


def _drafters(
    methods: Sequence[str], place: str | None, form: Preset, rule: CommitRule, trajectories: Sequence[Any]
) -> dict[str, Drafter]:
    from spot_train.methods import DrafterSources, beside_preset, make_drafter
    from spot_train.replay.replay import steps_of

    steps = {index: steps_of(one) for index, one in enumerate(trajectories)} if trajectories else None
    sources = DrafterSources(rule, order=_order(place), trajectories=steps)
    made = {name: make_drafter(name, sources, beside_preset(name, {}, form)) for name in methods}
    return {name: one for name, one in made.items() if one is not None}


def _order(place: str | None) -> OrderDrafter | None:
    from spot_infer.checkpoint import load_drafter
    from spot_train.recipe.recipe import resolve_path

    return None if place is None else load_drafter(resolve_path(place, Path.cwd()))


def _show(console: Console, rows: list[dict[str, Any]], out: Path | None, as_json: bool) -> None:
    from spot_infer.atomic import write_json
    from spot_train.cost.view import print_predictions
    from spot_train.provenance import provenance

    if out is not None:
        write_json(out, {"rows": rows, "provenance": provenance()})
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        print_predictions(console, rows)
