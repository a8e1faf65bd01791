"""A group of cells -> rows: one control, every distinct method once, by replay or decoded side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spot_infer.cost import load_curve
from spot_infer.divergence import Divergence
from spot_infer.graph import Drafter
from spot_infer.requests import DecodeSettings
from spot_infer.verify import distribution_preserving
from spot_train.bench.committed import committed_measures
from spot_train.bench.materials import Materials
from spot_train.bench.plan import DRAFT_FREE, CellGroup, Condition, Wanted, options, runs_of
from spot_train.bench.recorded import Recorded, generated, recorded
from spot_train.bench.score_memory import ScoreMemory
from spot_train.bench.spread import ratio_spread, speed_spread
from spot_train.compare.compare import Method, MethodRun, divergences, run_methods, summarise
from spot_train.cost.simulate import predict, predicted_ratio, rounds_of
from spot_train.methods import DrafterSources, beside_preset, make_drafter
from spot_train.replay.replay import draft_free, replay
from spot_train.replay.run import replay_figures
from spot_train.results import Cell, PerPrompt

OF_THE_LOOP = ("floor", "pad", "boundary", "curve")
PREDICTED = ("paper-gsm8k", "paper-mbpp")
"""Named curves that rows carry a throughput ratio on, as `throughput_CURVE` of their measures."""
ORACLES = {"position_oracle": "share_of_position_oracle", "joint_oracle": "share_of_joint_oracle"}


def run_cells(materials: Materials, group: CellGroup) -> list[Cell]:
    """One row for each cell wanted, in order; every ratio is against the control of this call."""
    run = _replayed if group.condition.mode == "replay" else _decoded
    rows = {one.run: row for one, row in run(materials, group)}
    return [
        rows[one.run].model_copy(update={"suite": one.suite, "measures": _shares(one, rows) | rows[one.run].measures})
        for one in group.wanted
    ]


def make_cell_drafter(
    materials: Materials, group: CellGroup, one: Wanted, control: Recorded | None
) -> tuple[Drafter | None, dict[str, Any]]:
    """The drafter of a cell, None for the control, and its options of the loop; what it does not name is the recipe's:
    padding, but for a cell with a floor, and the preset's boundary and form."""
    form = materials.recipe.decode.form()
    own = beside_preset(one.method, {name: value for name, value in one.options if name not in OF_THE_LOOP}, form)
    loop = {name: value for name, value in one.options if name in OF_THE_LOOP}
    pad = materials.recipe.decode.pad and not {"floor", "curve"} & loop.keys()
    loop = {"pad": pad, "boundary": form.boundary, **loop}
    loop |= {"curve": load_curve(loop["curve"])} if "curve" in loop else {}
    sources = DrafterSources(
        rule=group.condition.rule,
        order=None if one.drafter is None else materials.drafters[one.drafter],
        graph=materials.graph(group.condition) if one.method == "calibrated_graph" else None,
        trajectories=control.steps() if control is not None and one.method.endswith("_oracle") else None,
        seed=group.condition.seed,
    )
    return make_drafter(one.method, sources, own), loop


def _replayed(materials: Materials, group: CellGroup) -> list[tuple[Wanted, Cell]]:
    condition = group.condition
    control = recorded(materials, condition)
    target = materials.target(condition.target, condition.block_length)
    memory = ScoreMemory()
    outputs = [generated(one) for one in control.trajectories]
    rows = []
    for one in runs_of(group.wanted):
        started = time.process_time()
        drafter, loop = make_cell_drafter(materials, group, one, control)
        if drafter is None:
            results = [draft_free(trajectory) for trajectory in control.trajectories]
        else:
            floor, temperature = loop.get("floor", 0.0), condition.sampling.temperature
            results = replay(
                memory.remembered(drafter),
                control.trajectories,
                one.budget,
                floor,
                temperature,
                boundary=loop["boundary"],
                curve=loop.get("curve"),
            )
        figures = replay_figures(results, materials.block_length(condition))
        rounds = rounds_of(results, control.trajectories, 1 + one.budget if loop["pad"] else 1)
        figures["measures"] = {
            f"throughput_{name}": predict(load_curve(name), rounds).throughput_ratio for name in PREDICTED
        }
        spread = ratio_spread([each.draft_free_nfe for each in results], [each.nfe for each in results])
        figures["spread"] = {"reduction": spread} if spread else {}
        if drafter is None:
            scores = materials.scores(target, outputs)
            figures |= {"accuracy": scores.accuracy, "accuracy_by_family": dict(scores.by_family)}
            figures["per_prompt"] = figures["per_prompt"].model_copy(update={"solved": list(scores.solved)})
            figures["tokens"] = sum(map(len, outputs))
        settings = _settings(materials, group, one, loop)
        figures["distribution_preserving"], figures["reason"] = distribution_preserving(target.spec, settings)
        stamp = _stamp(materials, group, one) | {"cpu_s": round(time.process_time() - started, 3)}
        rows.append((one, _cell(materials, group, one, figures, stamp)))
    return rows


def _decoded(materials: Materials, group: CellGroup) -> list[tuple[Wanted, Cell]]:
    condition = group.condition
    target = materials.target(condition.target, condition.block_length)
    requests = materials.requests(condition)
    settings = materials.settings(condition)
    wanted = runs_of(group.wanted)
    control_steps = recorded(materials, condition) if any(one.method.endswith("_oracle") for one in wanted) else None
    methods, loops = [], []
    for one in wanted:
        drafter, loop = make_cell_drafter(materials, group, one, control_steps)
        loops.append(loop)
        methods.append(Method(one.method, one.budget, drafter, **loop, verifier=one.verifier))
    runs = run_methods(target, requests, methods, settings, record=condition.tables)
    rows = []
    for one, run, loop in zip(wanted, runs, loops, strict=True):
        differing = divergences(target, requests, runs[0], run, settings)
        figures = _real_figures(materials, target, run, runs[0], settings, differing)
        if figures["identical"] is None:
            figures["divergences"] = None
        sizes = settings.batch_size, target.spec.block_length
        figures["measures"] = {
            f"throughput_{name}": predicted_ratio(load_curve(name), run, requests, *sizes) for name in PREDICTED
        }
        if condition.tables:
            figures["measures"] |= committed_measures(run.steps, run.tables, target.spec.block_length)
        stamp = _stamp(materials, group, one) | {"pad": loop["pad"]}
        rows.append((one, _cell(materials, group, one, figures, stamp)))
    return rows


def _real_figures(
    materials: Materials,
    target: Any,
    run: MethodRun,
    control: MethodRun,
    settings: DecodeSettings,
    differing: Mapping[int, Divergence],
) -> dict[str, Any]:
    order = sorted(run.results)
    scores = materials.scores(target, [run.results[index].tokens for index in order])
    nfe, control_nfe = ([one.results[index].stats.nfe for index in order] for one in (run, control))
    spread = {
        "reduction": ratio_spread(control_nfe, nfe),
        "throughput_ratio": speed_spread(
            _batch_tokens(control), list(control.batch_s.values()), _batch_tokens(run), list(run.batch_s.values())
        ),
    }
    figures = summarise(run, control, settings, {}, differing)
    return {name: figures[name] for name in figures if name in Cell.model_fields} | {
        "draft_free_nfe": sum(control_nfe) / len(order),
        "accuracy": scores.accuracy,
        "accuracy_by_family": dict(scores.by_family),
        "spread": {name: interval for name, interval in spread.items() if interval is not None},
        "per_prompt": PerPrompt(nfe=nfe, draft_free_nfe=control_nfe, solved=list(scores.solved)),
    }


def _batch_tokens(run: MethodRun) -> list[int]:
    """Generated tokens of each batch, in the order of `batch_s`."""
    ends = [*list(run.batch_s)[1:], len(run.results)]
    return [
        sum(len(run.results[index].tokens) for index in range(first, end))
        for first, end in zip(run.batch_s, ends, strict=True)
    ]


def _settings(materials: Materials, group: CellGroup, one: Wanted, loop: Mapping[str, Any]) -> DecodeSettings:
    return replace(materials.settings(group.condition), budget=one.budget, verifier=one.verifier, **loop)


def identity(materials: Materials, condition: Condition, one: Wanted) -> dict[str, Any]:
    """The fields of a cell that are known before it is run."""
    return {
        "suite": one.suite,
        "kind": "cell",
        "task": materials.task.name,
        "target": condition.target,
        "drafter": one.drafter,
        "rule": condition.rule.to_dict(),
        "method": one.method,
        "budget": one.budget,
        "options": dict(one.options),
        "temperature": condition.sampling.temperature,
        "top_k": condition.sampling.top_k,
        "top_p": condition.sampling.top_p,
        "verifier": one.verifier,
        "seed": condition.seed,
        "ignore_stop": condition.ignore_stop,
        "max_new_tokens": condition.max_new_tokens,
        "block_length": materials.block_length(condition),
        "mode": condition.mode,
        "n": condition.prompts,
    }


def _cell(
    materials: Materials, group: CellGroup, one: Wanted, figures: Mapping[str, Any], stamp: Mapping[str, Any]
) -> Cell:
    native = None if one.drafter is None else materials.native(one.drafter, group.condition.target)
    known = identity(materials, group.condition, one)
    return Cell(**dict(figures) | known | {"native": native, "provenance": dict(stamp)})


def _stamp(materials: Materials, group: CellGroup, one: Wanted) -> dict[str, Any]:
    """Where a row came from: the command and versions, and the hashes of what it ran with."""
    condition = group.condition
    stamp = {**materials.provenance, "target_weights": materials.attributes(condition)["target"]["weights_hash"]}
    if condition.mode == "real":
        device = materials.target(condition.target, condition.block_length).device
        stamp |= {"batch_size": materials.options.batch_size, "device": str(device)}
    if one.drafter is not None:
        stamp["drafter_weights"] = materials.drafter_hashes[one.drafter]
        warning = materials.warning(one.drafter, condition.rule)
        stamp |= {"warning": warning} if warning else {}
    return stamp


def _shares(one: Wanted, rows: Mapping[Any, Cell]) -> dict[str, float | None]:
    """Shares of the oracles' reductions at the same budget and boundary, where the group holds them."""
    if one.method in ORACLES or one.method == DRAFT_FREE:
        return {}
    boundary = options(boundary=dict(one.options).get("boundary"))
    shares: dict[str, float | None] = {}
    for oracle, name in ORACLES.items():
        ceiling = rows.get(Wanted("", oracle, one.budget, boundary).run)
        if ceiling is not None:
            shares[name] = rows[one.run].reduction / ceiling.reduction
    return shares
