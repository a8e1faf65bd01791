"""Simulation: in virtual time the prediction is the measurement; tables and commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_replay import order_drafter
from virtual_time import VirtualDrafter, VirtualTarget, VirtualTime

from spot_infer import profile as profiling
from spot_infer.allocate import MOST_STATES
from spot_infer.cost import CostCurve, DrafterCost, load_curve
from spot_infer.decode import decode
from spot_infer.graph import Drafter
from spot_infer.profile import ProfileSettings
from spot_infer.requests import DecodeSettings, Request
from spot_infer.transition import CommitRule
from spot_train.collect.recording import decoded_trajectories
from spot_train.compare.compare import Method, run_methods
from spot_train.cost.check import Checked, check_prediction
from spot_train.cost.simulate import decoded_rounds, predict, prediction_row, replay_rounds
from spot_train.methods import DrafterSources, make_drafter
from spot_train.replay.replay import steps_of
from spot_train.trajectory import Trajectory


def made(name: str, block_length: int, control: Sequence[Trajectory] = ()) -> Drafter:
    """A drafter by name; `tree` is spot's in the paper's form."""
    steps = {index: steps_of(one) for index, one in enumerate(control)}
    sources = DrafterSources(CommitRule(), order=order_drafter(block_length), trajectories=steps)
    drafter = make_drafter("spot", sources, {"merged": False}) if name == "tree" else make_drafter(name, sources)
    assert drafter is not None
    return drafter


FREE = DecodeSettings(max_new_tokens=30, batch_size=1, layout="concat")


def requests(count: int = 3) -> list[Request]:
    return [Request(tuple(2 + (i * k) % 20 for k in range(1 + 9 * i)), seed=i) for i in range(count)]


@settings(max_examples=10, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    st.integers(0, 50),
    st.sampled_from(["spot", "tree", "chain", "random", "joint_oracle"]),
    st.sampled_from([1, 3, 8]),
    st.sampled_from([0.0, 0.05]),
    st.booleans(),
)
def test_a_known_curve_predicts_the_time_of_real_decoding_exactly(
    seed: int, name: str, budget: int, floor: float, pad: bool
) -> None:
    time = VirtualTime()
    target = VirtualTarget(seed=seed, block_length=8, vocab_size=30, time=time)
    control = decoded_trajectories(target, requests(), FREE)
    drafter = VirtualDrafter(made(name, 8, control), time)
    prediction = predict(known_curve(time), replay_rounds(drafter, control, budget, floor, pad))
    for run, predicted in (
        (replace(FREE, budget=0), prediction.draft_free),
        (replace(FREE, budget=budget, floor=floor, pad=pad, layout="concat"), prediction.drafted),
    ):
        before = time.now
        for _ in decode(target, requests(), run, drafter):
            pass
        assert time.now - before == pytest.approx(predicted)


@settings(max_examples=10, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.integers(0, 50), st.sampled_from(["spot", "odds_tree"]), st.sampled_from([1, 6, None]), st.booleans())
def test_a_decoded_run_is_priced_at_what_it_took(seed: int, name: str, budget: int | None, pad: bool) -> None:
    """Responses and blocks foreseen included, which no replay knows; a budget of None is auto."""
    time = VirtualTime()
    target = VirtualTarget(seed=seed, block_length=8, vocab_size=30, time=time, strength=0.2)
    drafter = VirtualDrafter(made(name, 8), time)
    drafter.looks_ahead = drafter.reads_responses = True  # type: ignore[attr-defined]
    curve = known_curve(time)
    drafted = Method(name, budget or MOST_STATES, drafter, pad=pad and budget is not None)
    methods = [Method("draft-free"), drafted if budget else replace(drafted, curve=curve)]
    prompts = requests(4)
    control, run = run_methods(target, prompts, methods, FREE)
    predicted = predict(curve, decoded_rounds(run, prompts, 8))
    assert time.now == pytest.approx(predicted.draft_free + predicted.drafted)
    dearer = predict(replace(curve, round_extra=0.5), decoded_rounds(run, prompts, 8))
    assert dearer.drafted == pytest.approx(predicted.drafted + 0.5 * run.proposals.total())
    free = predict(replace(curve, round_extra=0.5), decoded_rounds(control, prompts, 8))
    assert free.drafted == pytest.approx(free.draft_free) == pytest.approx(predicted.draft_free)


def known_curve(time: VirtualTime) -> CostCurve:
    return CostCurve(
        "planted",
        (1, 2),
        (time.base, time.base + time.each),
        prefill=time.prefill,
        drafter=DrafterCost(time.proposal, time.call, time.state),
    )


def test_the_check_agrees_with_itself_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    time = VirtualTime()
    monkeypatch.setattr(profiling, "clock_for", lambda device, name: time.clock)
    target = VirtualTarget(seed=4, block_length=12, vocab_size=60, time=time)
    drafters = {name: VirtualDrafter(made(name, 12), time) for name in ("spot", "chain")}
    rows, curve = check_prediction(
        target, requests(), Checked(drafters, (3, 6), (0.0, 0.1)), FREE, ProfileSettings((1, 2, 5), cycles=1)
    )
    assert len(rows) == 8 and curve.setup["prefix_tokens"] % 12 == 0
    for row in rows:
        assert row["nfe"] == row["measured_nfe"]
        assert abs(row["gap"]) < 1e-6
        assert row["drafter_included"] and sum(row["shares"].values()) == pytest.approx(1)


def test_a_flat_curve_without_a_drafter_turns_forwards_into_time() -> None:
    target = VirtualTarget(seed=1, block_length=8, vocab_size=30)
    control = decoded_trajectories(target, requests(), FREE)
    rounds = replay_rounds(made("joint_oracle", 8, control), control, 8)
    row = prediction_row(CostCurve("flat", (1, 30), (1.0, 1.0), unit="c1"), rounds)
    assert row["throughput_ratio"] == pytest.approx(row["reduction"]) and row["reduction"] > 1.5
    assert not row["drafter_included"]
    assert row["positions"] == pytest.approx(row["replicas"] * row["nfe"] * 8)
    costly = prediction_row(load_curve("cpu-core"), rounds)
    assert costly["throughput_ratio"] < row["throughput_ratio"]
    assert json.loads(json.dumps(costly)) == costly
