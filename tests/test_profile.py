"""Profiling: planted costs come back exactly in virtual time; every size meets every round; a real target as well."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_dlm import FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st
from lossless_targets import tiny_full_attention
from small_target import save_small_target
from test_replay import order_drafter
from virtual_time import VirtualDrafter, VirtualTarget, VirtualTime

from spot_infer import profile as profiling
from spot_infer.blocks import BlockState
from spot_infer.checkpoint import PretrainedDrafter, save_drafter
from spot_infer.clock import clock_for
from spot_infer.cost import load_curve
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_infer.profile import ProfileSettings, profile
from spot_infer.requests import DecodeSettings
from spot_infer.table import TOP_K, StaleTable
from spot_train.cli import run

SIZES = (1, 2, 4, 7)


def virtual(time: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> VirtualTarget:
    monkeypatch.setattr(profiling, "clock_for", lambda device, name: time.clock)
    return VirtualTarget(seed=3, block_length=12, vocab_size=60, time=time)


@pytest.mark.parametrize("layout", ["concat", "batch"])
@pytest.mark.parametrize("prefix", [0, 24])
def test_planted_costs_come_back(layout: str, prefix: int, monkeypatch: pytest.MonkeyPatch) -> None:
    time = VirtualTime()
    target = virtual(time, monkeypatch)
    decoding = DecodeSettings(batch_size=1, layout=layout, max_new_tokens=24)  # type: ignore[arg-type]
    drafter = VirtualDrafter(order_drafter(12), time)
    curve = profile(target, ProfileSettings(SIZES, prefix, cycles=1), decoding, drafter, "planted")
    assert curve.replicas == SIZES
    assert curve.seconds == pytest.approx([time.base + time.each * (size - 1) for size in SIZES])
    assert curve.setup["forward_s"] == pytest.approx(curve.seconds)
    assert curve.prefill == (time.prefill if prefix else 0.0)
    assert curve.round_extra == pytest.approx(0.0)
    assert curve.drafter is not None
    found = (curve.drafter.proposal, curve.drafter.call, curve.drafter.state)
    assert found == pytest.approx((time.proposal, time.call, time.state), rel=1e-6)
    parts = curve.setup["round_parts"]
    assert list(parts) == ["2", "8", "20"]
    assert all(one["network"] == 0 and one["rest"] == pytest.approx(0, abs=1e-9) for one in parts.values())
    assert all(time.base < one["target"] < time.base + 20 * time.each for one in parts.values())
    assert time.proposal / 2 < parts["2"]["search"] < parts["20"]["search"]


def test_rows_share_a_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    time = VirtualTime()
    target = virtual(time, monkeypatch)
    curve = profile(target, ProfileSettings(SIZES, 24, cycles=1), DecodeSettings(batch_size=3, layout="batch"))
    assert curve.setup["rows"] == 3
    assert curve.seconds == pytest.approx([time.base + time.each * (3 * size - 1) for size in SIZES])


@given(st.sets(st.integers(2, 40), min_size=1, max_size=7), st.integers(0, 5), st.integers(0, 3), st.integers(0, 99))
def test_every_size_meets_every_round_once_a_cycle(sizes: set[int], cycle: int, seed: int, round_: int) -> None:
    chosen = (1, *sorted(sizes))
    blocks = range(cycle * len(chosen), (cycle + 1) * len(chosen))
    met = [profiling._rotated(chosen, block, seed)[round_ % len(chosen)] for block in blocks]
    assert sorted(met) == list(chosen)


@settings(max_examples=40)
@given(st.integers(2, 32), st.integers(0, 20))
def test_forced_drafts_are_as_many_as_asked_and_finish_no_block(masked: int, states: int) -> None:
    tokens = np.tile(np.arange(100, 100 + TOP_K, dtype=np.int32), (masked, 1))
    zeros = np.zeros((masked, TOP_K), np.float16)
    table = StaleTable(np.arange(masked, dtype=np.uint8), zeros, tokens, zeros[:, 0].astype(np.float32))
    context = DraftContext(0, BlockState(0, (-1,) * masked, -1), (table,), states, 0.0, 0.0)
    graph = profiling._unlikely_graph(context, states)
    assert len(graph) == states
    assert all(len(commits) < masked for commits in graph.commits)
    assert 100 not in {commit.token for commits in graph.commits for commit in commits}


@settings(max_examples=50)
@given(st.lists(st.floats(0, 5), min_size=3, max_size=3), st.integers(0, 1000))
def test_least_squares_finds_planted_costs_and_stays_non_negative(planted: list[float], seed: int) -> None:
    draws = np.random.default_rng(seed)
    inputs = np.column_stack([np.ones(30), draws.integers(1, 9, 30), draws.integers(1, 40, 30)]).astype(float)
    exact = np.column_stack([inputs, inputs @ planted])
    assert profiling._least_squares(exact) == pytest.approx(planted, abs=1e-6)
    noisy = np.column_stack([inputs, draws.normal(size=30)])
    assert min(profiling._least_squares(noisy)) >= 0


@pytest.mark.parametrize("sizes", [(1,), (2, 3), (1, 3, 2), (1, 2, 2), ()])
def test_sizes_that_make_no_curve_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(SpotError, match="rising from 1"):
        ProfileSettings(sizes)


def test_a_prefix_beyond_the_target_and_unknown_clocks_are_refused() -> None:
    target = FakeTarget(block_length=8, max_positions=64)
    with pytest.raises(SpotError, match="does not fit"):
        profile(target, ProfileSettings(prefix_tokens=64), DecodeSettings(batch_size=1))
    with pytest.raises(SpotError, match="use auto, cpu or wall"):
        clock_for(torch.device("cpu"), "sun")
    with pytest.raises(SpotError, match="use wall"):
        clock_for(torch.device("cuda"), "cpu")


def test_the_command_profiles_a_real_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(save_small_target(tmp_path / "target"))
    save_drafter(PretrainedDrafter(OrderModel(OrderModelConfig(8))), tmp_path / "drafter")
    command = ["profile", target, "--drafter", str(tmp_path / "drafter"), "--cycles", "1", "--prefix", "16"]
    sizes = ["--size", "1", "--size", "2", "--size", "5"]
    assert run([*command, *sizes, "--out", str(tmp_path / "curve.json")]) == 0
    printed = capsys.readouterr().out
    assert "c(replicas)" in printed and "a scored state" in printed and "a round at D20, in real decoding" in printed
    curve = load_curve(tmp_path / "curve.json")
    assert curve.replicas == (1, 2, 5) and curve.name == target and curve.drafter is not None
    assert 0 < curve.setup["forward_s"][0] < curve.seconds[0]
    assert all(seconds > 0 for parts in curve.setup["round_parts"].values() for seconds in parts.values())
    assert json.loads((tmp_path / "curve.json").read_text())["provenance"]["versions"]["torch"]
    assert run([*command, "--layout", "round"]) == 2


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_a_target_with_full_attention_is_profiled_like_any_other(cache: str) -> None:
    target, _ = tiny_full_attention(0, cache, 2, 8)
    curve = profile(target, ProfileSettings(sizes=(1, 2, 4), cycles=1), DecodeSettings(batch_size=1))
    assert curve.replicas == (1, 2, 4) and min(curve.seconds) > 0
