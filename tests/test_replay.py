"""Replay: with no target it counts exactly what the decode loop counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_dlm import FakeTarget
from fake_trajectories import fake_trajectories
from hypothesis import given, settings
from hypothesis import strategies as st
from lossless_cases import CURVES
from lossless_targets import tiny_full_attention
from odd_drafters import CrossingDrafter
from small_target import save_small_target

from spot_infer.cost import CostCurve, DrafterCost
from spot_infer.decode import decode
from spot_infer.drafters import CalibratedGraph, ChainDrafter, OracleDrafter, OrderDrafter, RandomDrafter
from spot_infer.errors import SpotError
from spot_infer.features import FeatureKind
from spot_infer.graph import DraftContext, Drafter, DraftGraph
from spot_infer.order_model import OrderModel, OrderModelConfig, Scorer
from spot_infer.requests import Boundary, DecodeSettings, Request, Stats
from spot_infer.targets import load_target
from spot_infer.transition import CommitRule, Sampling
from spot_train.calibrate.graph import count_nodes, count_paths, select_nodes
from spot_train.collect.recording import decoded_trajectories, record_trajectories
from spot_train.methods import DrafterSources, make_drafter
from spot_train.replay.replay import ReplayResult, mean_reduction, replay, replay_summary, replayable, steps_of
from spot_train.trajectory import Trajectory

METHODS_REPLAYED = [
    ("spot", {}),
    ("spot", {"merged": False}),
    ("one call", {}),
    ("version 2", {}),
    ("chain", {}),
    ("chain", {"depth": 2}),
    ("chain", {"rank": 2, "drawn_confidence": True}),
    ("confidence_tree", {}),
    ("confidence_tree", {"merged": False, "drawn_confidence": True}),
    ("odds_tree", {}),
    ("trajectory_tree", {"width": 3, "depth": 4}),
    ("calibrated_graph", {}),
    ("calibrated_graph", {"prune_below": 0.02, "drawn_confidence": True}),
    ("random", {}),
    ("position_oracle", {}),
    ("token_oracle", {}),
    ("joint_oracle", {}),
]
Method = tuple[str, dict[str, Any]]


def order_drafter(block_length: int, scorer: Scorer = "per_level", features: FeatureKind = "v1") -> OrderDrafter:
    torch.manual_seed(1)
    sizes = {"d_model": 16, "heads": 2, "layers": 1, "feed_forward": 16, "head_hidden": 8}
    model = OrderModel(OrderModelConfig(block_length, **sizes, scorer=scorer, features=features))
    for parameter in (model.head_out if scorer == "per_level" else model.set_head).parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return OrderDrafter(model.double())


def drafter_of(
    method: Method, block_length: int, rule: CommitRule, control: Sequence[Trajectory], temperature: float = 0.0
) -> Drafter:
    """The drafter of a method as replay counts it, from a random order model and a graph calibrated on the control
    itself."""
    name, options = method
    graph = None
    if name == "calibrated_graph":
        paths = count_paths(control, rule, 4, temperature)
        nodes = tuple(select_nodes(paths, 12, "accepted", rule))
        counts = count_nodes(paths)
        graph = CalibratedGraph(nodes, tuple(counts[node] / paths.total() for node in nodes), block_length, rule)
    steps = {index: steps_of(one) for index, one in enumerate(control)}
    if name in ("one call", "version 2"):
        return replayable(order_drafter(block_length, "one_call", "v1" if name == "one call" else "v2"))
    if name == "crossing":
        return CrossingDrafter(steps, 29, merged=True)
    drafter = make_drafter(name, DrafterSources(rule, order_drafter(block_length), graph, steps), options)
    assert drafter is not None
    return replayable(drafter)


@settings(max_examples=40)
@given(
    st.integers(0, 50),
    st.sampled_from([4, 7, 8]),
    st.sampled_from([*METHODS_REPLAYED, ("crossing", {})]),
    st.sampled_from([1, 3, 8, 20]),
    st.sampled_from([0.0, 0.05]),
    st.sampled_from([0.0, 0.7]),
    st.sampled_from([CommitRule(), CommitRule(resolution="bfloat16"), CommitRule(selection="quota", quota=2)]),
    st.sampled_from(["separate", "fused", "auto"]),
    st.sampled_from([3, 0, -1]),
    st.sampled_from(CURVES),
)
def test_replay_equals_drafted_decoding(
    seed: int,
    block_length: int,
    method: Method,
    budget: int,
    floor: float,
    temperature: float,
    rule: CommitRule,
    boundary: Any,
    beyond: int,
    curve: CostCurve | None,
) -> None:
    target = FakeTarget(seed=seed, block_length=block_length, vocab_size=30)
    requests = [Request(tuple(2 + (seed + i * k) % 20 for k in range(1 + 5 * i)), seed=seed + i) for i in range(3)]
    free = DecodeSettings(3 * block_length + beyond, rule, Sampling(temperature), batch_size=2)
    rounds = decode(target, requests, free, record=True)
    recorded = sorted(
        record_trajectories(requests, rounds, free.max_new_tokens, target.spec.stop_ids), key=lambda r: r[0]
    )
    control = [trajectory for _, trajectory, _ in recorded]
    drafter = drafter_of(method, block_length, rule, control, temperature)
    floor = floor if curve is None else 0.0
    drafted = replace(free, budget=budget, floor=floor, boundary=boundary, batch_size=1, layout="concat", curve=curve)
    rounds = decode(target, requests, drafted, drafter)
    results = sorted((r.result for r in rounds if r.result), key=lambda result: result.request)
    replayed = replay(drafter, control, budget, floor, temperature, 2, boundary, curve)
    assert [counts(one.stats) for one in results] == [counts(one) for one in replayed]
    assert [result.stats.positions for result in results] == positions(replayed, block_length)
    assert [one.draft_free_nfe for one in replayed] == [result.stats.nfe for _, _, result in recorded]


def positions(results: Sequence[ReplayResult], block_length: int) -> list[int]:
    """Token positions of a row that is decoded alone with its replicas in one sequence."""
    return [block_length * (sum(one.sizes) + one.opened) for one in results]


def counts(stats: Stats | ReplayResult) -> tuple[int, ...]:
    return stats.nfe, stats.rounds, stats.drafted_rounds, stats.accepted, stats.drafted, stats.states_scored


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_batches_change_nothing(batch_size: int) -> None:
    control = fake_trajectories(count=8, max_new_tokens=40)
    assert replay(order_drafter(8), control, 6, batch_size=batch_size) == replay(order_drafter(8), control, 6)


def test_a_joint_oracle_with_a_large_budget_needs_two_rounds_a_block_and_its_cache_write() -> None:
    control = [one for one in fake_trajectories(count=8, max_new_tokens=40) if len(one) > 8]
    oracle = OracleDrafter("joint", {index: steps_of(one) for index, one in enumerate(control)})
    for one, result in zip(control, replay(oracle, control, budget=8, boundary="separate"), strict=True):
        sizes = [int((one.block_start == start).sum()) for start in sorted(set(one.block_start.tolist()))]
        assert result.nfe == sum(min(size, 2) for size in sizes) + len(sizes) - 1


def test_what_shards_do_not_record_is_refused() -> None:
    control = fake_trajectories(count=1, max_new_tokens=20)
    with pytest.raises(SpotError, match="blocks that are not open yet"):
        replay(ChainDrafter(cross_block=True), control, 4)
    with pytest.raises(SpotError, match="the limit that the trajectories were recorded under"):
        replay(ChainDrafter(), [replace(control[0], max_new_tokens=None)], 4)
    with pytest.raises(SpotError, match="caches no block"):
        replay(ChainDrafter(), [replace(control[0], writes=False)], 4, boundary="fused")


def test_the_summary_is_a_ratio_of_sums() -> None:
    rows = [ReplayResult(10, 40, 8, 8, 20, 60, 5, 50), ReplayResult(30, 40, 28, 20, 10, 60, 5, 50)]
    assert mean_reduction(rows) == 2.0
    assert replay_summary(rows)["accepted_per_round"] == 30 / 28
    assert rows[0].reduction == 4.0


@pytest.fixture(scope="module")
def small_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_target(tmp_path_factory.mktemp("target"))


@lru_cache
def decoded(folder: Path, dtype: str) -> tuple[Any, list[Trajectory]]:
    """A transformer, and the draft-free trajectories of four prompts."""
    target = load_target(folder, dtype=dtype)
    return target, decode_recorded(target, 0, None)[0]


def decode_recorded(
    target: Any, budget: int, drafter: Drafter | None, boundary: Boundary = "auto"
) -> tuple[list[Trajectory], list[Stats]]:
    """Trajectories that a run recorded itself, and its accounting."""
    requests = [Request(tuple(5 + (7 * i + k) % 40 for k in range(3 + 6 * i)), seed=i) for i in range(4)]
    run = DecodeSettings(max_new_tokens=20, batch_size=3, budget=budget, boundary=boundary)
    rounds = decode(target, requests, run, drafter, record=True)
    recorded = sorted(record_trajectories(requests, rounds, 20, target.spec.stop_ids), key=lambda one: one[0])
    return [trajectory for _, trajectory, _ in recorded], [result.stats for _, _, result in recorded]


@pytest.mark.parametrize("boundary", ["separate", "fused", "seamless"])
@pytest.mark.parametrize("method", METHODS_REPLAYED, ids=str)
def test_in_float64_replay_of_the_control_counts_what_decoding_counts(
    method: Method, boundary: Boundary, small_target: Path
) -> None:
    target, control = decoded(small_target, "float64")
    drafter = drafter_of(method, 8, CommitRule(), control)
    _, stats = decode_recorded(target, 6, drafter, boundary)
    assert [counts(one) for one in replay(drafter, control, 6, boundary=boundary)] == [counts(one) for one in stats]
    assert any(one.drafted for one in stats)
    assert any(one.cache_writes for one in stats) is (boundary == "separate")


class TableWatcher:
    """A drafter that reads two tables and keeps what it was given: state, slots and log-odds by request. Without
    `drafts` it proposes nothing, so that rows rest and wake where drafts have to pay."""

    tables_read = 2

    def __init__(self, drafts: bool) -> None:
        self.drafts = drafts
        self.seen: dict[int, list[Any]] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        for one in contexts:
            tables = [(table.slots.tolist(), table.log_odds.tolist()) for table in one.tables]
            self.seen.setdefault(one.request, []).append((one.state.start, one.state.masked_slots, tables))
        return RandomDrafter(4).propose(contexts) if self.drafts else [DraftGraph() for _ in contexts]


@pytest.mark.parametrize("curve", [None, CostCurve("cheap", (1, 2), (1, 1.1), "c1", drafter=DrafterCost(0.05, 0, 0))])
@pytest.mark.parametrize("boundary", ["separate", "fused", "seamless"])
def test_drafters_that_read_two_tables_get_those_of_the_last_two_steps(
    boundary: Boundary, curve: CostCurve | None
) -> None:
    """In decoding and in replay alike, also after rounds in which a row rests and its tables are not read."""
    target = FakeTarget(seed=5, block_length=16, vocab_size=30, strength=0.05)
    requests = [Request(tuple(2 + (i * k) % 20 for k in range(16)), seed=i) for i in range(3)]
    free = DecodeSettings(40, batch_size=1, layout="concat")
    control = decoded_trajectories(target, requests, free)
    decoding, replaying = (TableWatcher(drafts=curve is None) for _ in range(2))
    for _ in decode(target, requests, replace(free, budget=6, boundary=boundary, curve=curve), decoding):
        pass
    replay(replaying, control, 6, boundary=boundary, curve=curve)
    assert decoding.seen == replaying.seen
    lengths = {(len(tables), len(masked) < 15) for seen in decoding.seen.values() for _, masked, tables in seen}
    assert lengths == ({(1, False), (2, True)} if curve is None else {(1, False), (1, True)})
    for seen in decoding.seen.values():
        for _, masked, tables in seen:
            assert [len(slots) - len(masked) for slots, _ in tables] == list(range(1, len(tables) + 1))


@pytest.mark.parametrize("method", METHODS_REPLAYED, ids=str)
def test_in_float32_replay_counts_what_the_drafted_run_counted(method: Method, small_target: Path) -> None:
    """Exactly on the tables that the drafted run logged; within 0.2% on those of the draft-free run."""
    target, control = decoded(small_target, "float32")
    drafter = drafter_of(method, 8, CommitRule(), control)
    own, stats = decode_recorded(target, 6, drafter)
    assert [counts(one) for one in replay(drafter, own, 6)] == [counts(one) for one in stats]
    replayed = sum(one.nfe for one in replay(drafter, control, 6))
    assert replayed == pytest.approx(sum(one.nfe for one in stats), rel=0.002)


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_replay_equals_drafted_decoding_under_full_attention_where_no_block_is_written(cache: str) -> None:
    target, _ = tiny_full_attention(1, cache, 0, 4)
    requests = [Request(tuple(range(3, 5 + 3 * i))) for i in range(3)]
    free = DecodeSettings(11, ignore_stop=True, batch_size=2)
    control = decoded_trajectories(target, requests, free)
    rounds = decode(target, requests, replace(free, budget=3), ChainDrafter())
    results = sorted((r.result for r in rounds if r.result), key=lambda result: result.request)
    replayed = replay(ChainDrafter(), control, 3)
    assert [counts(one.stats) for one in results] == [counts(one) for one in replayed]
    assert [one.draft_free_nfe for one in replayed] == [len(one) for one in control]
