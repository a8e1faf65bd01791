"""Prediction against measurement in one process: profile, replay and real decoding of the same prompts.

The curve is measured at the mean prefix of the recorded rounds. Its blocks, and runs that time the drafter's proposals,
are spread between the prompts, so that all see the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spot_infer.cost import CostCurve
from spot_infer.graph import Drafter
from spot_infer.profile import DrafterTimer, Profiler, ProfileSettings
from spot_infer.requests import Boundary, DecodeSettings, Request
from spot_infer.targets.protocol import Target
from spot_train.collect.recording import decoded_trajectories
from spot_train.compare.compare import Method
from spot_train.cost.simulate import predict, prediction_row, replay_rounds
from spot_train.cost.timed_methods import timed_methods
from spot_train.replay.replay import replayable
from spot_train.trajectory import Trajectory


@dataclass(frozen=True)
class Checked:
    """What is compared: (drafter's name, drafter), every budget with every floor, under one boundary."""

    drafters: Mapping[str, Drafter]
    budgets: Sequence[int]
    floors: Sequence[float] = (0.0,)
    pad: bool = False
    boundary: Boundary = "auto"


def check_prediction(
    target: Target,
    requests: Sequence[Request],
    checked: Checked,
    decoding: DecodeSettings,
    settings: ProfileSettings,
    progress: Callable[[str], None] = lambda done: None,
) -> tuple[list[dict[str, Any]], CostCurve]:
    """One row a method with `throughput_ratio` predicted, `measured_ratio` and `gap` = predicted / measured - 1, and
    the curve. Ratios are on the profile's clock, as `seconds` are (predicted and measured); `wall_ratio` is the
    measured one in wall time. Drafters run as replay counts them. Needs batch_size 1."""
    checked = replace(checked, drafters={name: replayable(one) for name, one in checked.drafters.items()})
    trajectories = decoded_trajectories(target, requests, replace(decoding, budget=0))
    profiler = Profiler(target, replace(settings, prefix_tokens=mean_prefix(trajectories)), decoding)
    cells = [
        (name, budget, floor) for name in checked.drafters for budget in checked.budgets for floor in checked.floors
    ]
    methods = [Method("draft-free")] + [
        Method(f"{name} γ{floor:g}", budget, checked.drafters[name], floor, checked.pad, boundary=checked.boundary)
        for name, budget, floor in cells
    ]
    timers = {
        name: DrafterTimer(target, drafter, decoding, profiler.clock) for name, drafter in checked.drafters.items()
    }
    done = 0

    def between(prompt: int) -> None:
        nonlocal done
        due = profiler.blocks * (prompt + 1) // len(requests)
        for _ in range(due - done):
            profiler.measure_block()
        done = due
        for timer in timers.values():
            timer.measure(requests[prompt : prompt + 1], checked.budgets[prompt % len(checked.budgets)])
        progress(f"prompt {prompt + 1} of {len(requests)}, {done} of {profiler.blocks} profiled blocks")

    runs, spent = timed_methods(target, requests, methods, decoding, profiler.clock, between)
    curve = profiler.curve()
    rows = []
    for (name, budget, floor), run, seconds in zip(cells, runs[1:], spent[1:], strict=True):
        drafter, temperature = checked.drafters[name], decoding.sampling.temperature
        rounds = replay_rounds(drafter, trajectories, budget, floor, checked.pad, temperature, checked.boundary)
        one = replace(curve, drafter=timers[name].cost(name))
        row, prediction = prediction_row(one, rounds), predict(one, rounds)
        measured = spent[0] / seconds
        rows.append(
            {
                **row,
                "drafter": name,
                "budget": budget,
                "floor": floor,
                "measured_nfe": run.total("nfe") / len(requests),
                "measured_ratio": measured,
                "wall_ratio": runs[0].wall_s / run.wall_s,
                "gap": row["throughput_ratio"] / measured - 1,
                "seconds": {
                    "draft_free": [prediction.draft_free, spent[0]],
                    "drafted": [prediction.drafted, seconds],
                },
                "clock": profiler.clock.name,
            }
        )
    return rows, curve


def mean_prefix(trajectories: Sequence[Trajectory]) -> int:
    """Mean over all steps of where their block starts, in tokens: the prefix that a round attends to."""
    return round(float(np.mean(np.concatenate([one.block_start for one in trajectories]))))
