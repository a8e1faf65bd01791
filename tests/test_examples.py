"""Examples: the alignment of table, path and label; every pure function of (seed, epoch); the same inputs as live."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_trajectories import fake_trajectories
from hypothesis import given
from hypothesis import strategies as st

from spot_infer.blocks import BlockState
from spot_infer.drafters import OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.features import FeatureKind
from spot_infer.graph import DraftContext
from spot_infer.order_model import OrderModel, OrderModelConfig, Scorer
from spot_infer.transition import CommitRule
from spot_train.fit.data import CheckBatches, EpochSteps, TrainBatches, make_batch
from spot_train.fit.examples import epoch_batches, lay_out, make_examples, sample_depths
from spot_train.fit.metrics import OrderMetrics, untrained_orders
from spot_train.fit.step_windows import InMemory
from spot_train.recipe.recipe import FitSection
from spot_train.trajectory import Trajectory

L = 8
RULE = CommitRule()


def slots_of(one: Trajectory, step: int) -> list[int]:
    return sorted(position - int(one.block_start[step]) for position, _ in one.step(step))


def test_every_example_by_hand() -> None:
    """Against the slow definition: table t, slots of steps t..t+d taken, label the slot of step t+1+d, one block."""
    trajectories = fake_trajectories(count=6, block_length=L)
    steps = lay_out(trajectories)
    states = np.arange(len(steps))
    examples = make_examples(steps, states, np.broadcast_to(np.arange(L), (len(steps), L)), "v1", RULE)
    expected = []
    offset = 0
    for one in trajectories:
        for step in range(len(one)):
            for depth in range(L):
                label = step + 1 + depth
                if label < len(one) and one.block_start[label] == one.block_start[step]:
                    taken = sorted(slot for later in range(step, label) for slot in slots_of(one, later))
                    position = next(iter(one.step(label))).position
                    before_stop = position < one.prompt_length + one.returned_tokens
                    expected.append((offset + step, depth, taken, slots_of(one, label)[0], before_stop))
        offset += len(one)
    got = [
        (
            int(states[examples.table[q]]),
            int(examples.depth[q]),
            examples.slot[examples.table[q]][examples.taken[q]].tolist(),
            int(examples.slot[examples.table[q], examples.label[q]]),
            bool(examples.before_stop[q]),
        )
        for q in range(len(examples.label))
    ]
    assert got == expected


def test_steps_of_several_commits_are_no_examples() -> None:
    quota = fake_trajectories(count=3, block_length=L, rule=CommitRule(selection="quota", quota=2))
    steps = lay_out(quota)
    for step in steps.usable:
        assert (steps.committed[step : step + steps.deepest[step] + 2] >= 0).all()
    assert (steps.committed == -1).any()


@pytest.mark.parametrize("features", ["v1", "v2"])
@pytest.mark.parametrize("scorer", ["per_level", "one_call"])
def test_training_reads_what_the_live_drafter_reads(scorer: Scorer, features: FeatureKind) -> None:
    """Probabilities from a training batch equal those that the drafter computes from the tables themselves."""
    one = fake_trajectories(count=6, block_length=L)[2]
    torch.manual_seed(0)
    config = OrderModelConfig(L, d_model=16, heads=2, layers=1, feed_forward=16, head_hidden=8, scorer=scorer)
    config = replace(config, features=features)
    model = OrderModel(config).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    steps = lay_out([one])
    batch = make_batch(steps, np.arange(len(one)), np.broadcast_to([0, 2, 5], (len(one), 3)), features, RULE)
    scores = model(*batch.asked).softmax(-1).detach().numpy()
    drafter = OrderDrafter(model)
    query = 0
    for step in range(len(one)):
        for depth in (0, 2, 5):
            if depth > steps.deepest[step]:
                continue
            table = one.table(step)
            masked = set(table.slots.tolist()) - set(slots_of(one, step))
            state = BlockState(0, tuple(-1 if slot in masked else 0 for slot in range(L)), -1)
            tables = (table, one.table(step - 1)) if steps.follows[step] else (table,)
            asked = drafter.score([DraftContext(0, state, tables, 8, 0.0, 0.0)])
            path = tuple(sorted(slot for later in range(step + 1, step + 1 + depth) for slot in slots_of(one, later)))
            (live,) = asked([(0, path, depth)])
            np.testing.assert_allclose(live, scores[query, : len(live)], atol=1e-12)
            query += 1
    assert query == len(scores)


@given(st.integers(0, 2**31), st.integers(0, 50), st.integers(0, 15), st.integers(1, 4))
def test_sampled_depths_are_different_possible_and_a_function_of_seed_and_epoch(
    seed: int, epoch: int, d_max: int, wanted: int
) -> None:
    deepest = np.arange(-1, 30)
    depths = sample_depths(deepest, d_max, wanted, seed, epoch)
    assert np.array_equal(depths, sample_depths(deepest, d_max, wanted, seed, epoch))
    for most, row in zip(deepest, depths, strict=True):
        real = row[row >= 0].tolist()
        assert len(set(real)) == len(real) == min(wanted, max(min(most, d_max) + 1, 0))
        assert all(depth <= min(most, d_max) for depth in real)


def test_depths_are_drawn_by_their_weights_and_change_with_the_epoch() -> None:
    deepest = np.full(20_000, 3)
    first, second = (sample_depths(deepest, 15, 1, 0, epoch) for epoch in (0, 1))
    weights = 1 / np.arange(1, 5)
    counts = np.bincount(first.ravel(), minlength=4)
    np.testing.assert_allclose(counts / counts.sum(), weights / weights.sum(), atol=0.015)
    assert (first != second).any()


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_an_epoch_visits_every_usable_state_once(batch_size: int) -> None:
    steps = lay_out(fake_trajectories(count=6, block_length=L))
    batches = epoch_batches(steps, batch_size, seed=3, epoch=1)
    assert sorted(np.concatenate(batches).tolist()) == steps.usable.tolist()
    assert max(map(len, batches)) <= batch_size
    again = epoch_batches(steps, batch_size, seed=3, epoch=1)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    steps = lay_out(fake_trajectories(count=6, block_length=L))
    section = FitSection(batch_size=9, d_max=3)
    in_order = TrainBatches(InMemory(steps), section, RULE)
    wanted = 2 * len(in_order) + 1
    for step in range(wanted):
        in_order[step]
    for left, right in zip(in_order[wanted], TrainBatches(InMemory(steps), section, RULE)[wanted], strict=True):
        assert torch.equal(left, right)
    other = TrainBatches(InMemory(steps), FitSection(batch_size=9, d_max=3, seed=1), RULE)[wanted]
    assert not torch.equal(in_order[wanted].label, other.label) or not torch.equal(in_order[wanted].depth, other.depth)


def test_all_depths_of_a_state_are_one_pass_of_the_network() -> None:
    steps = lay_out(fake_trajectories(count=6, block_length=L))
    batch = TrainBatches(InMemory(steps), FitSection(batch_size=9, d_max=3, depths_per_state="all"), RULE)[0]
    assert len(batch.table) == 9 < len(batch.label)
    for state in range(9):
        assert batch.depth[batch.of == state].tolist() == list(range(int((batch.of == state).sum())))
    assert (batch.root.sum(dim=1) == 1).all()
    first = batch.depth == 0
    assert torch.equal(batch.taken[first], batch.root[batch.of[first]])


def test_ranks_share_a_batch_without_overlap() -> None:
    steps = lay_out(fake_trajectories(count=6, block_length=L))
    section = FitSection(batch_size=9, d_max=3)
    whole = TrainBatches(InMemory(steps), section, RULE)[0]
    parts = [TrainBatches(InMemory(steps), section, RULE, rank, 2)[0] for rank in range(2)]
    assert sum(len(part.label) for part in parts) == len(whole.label)


@pytest.mark.parametrize(("current", "expected"), [(0, [0, 1, 2]), (4, [4, 5]), (6, [6, 7, 8])])
def test_the_sampler_starts_where_training_stands(current: int, expected: list[int]) -> None:
    assert list(EpochSteps(3, lambda: current)) == expected


def test_check_batches_hold_every_example_at_their_depths() -> None:
    steps = lay_out(fake_trajectories(count=6, block_length=L))
    batches = CheckBatches(steps, "v1", RULE, (0, 3), examples_a_batch=10)
    depths = np.concatenate([batches[index].depth.numpy() for index in range(len(batches))])
    for depth in (0, 3):
        assert (depths == depth).sum() == (steps.deepest >= depth).sum()
    assert len(CheckBatches(steps, "v1", RULE, (0,), limit=5, examples_a_batch=2)) == 3


def test_mixed_block_lengths_are_refused() -> None:
    with pytest.raises(SpotError, match=r"block lengths \[4, 8\]"):
        lay_out([*fake_trajectories(count=2, block_length=4), *fake_trajectories(count=2, block_length=8)])


def test_metrics_by_hand() -> None:
    q = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])
    metrics = OrderMetrics(2)
    metrics.update(q.log(), torch.tensor([0, 0, 1]), torch.tensor([0, 1, 7]))
    measured = metrics.compute()
    assert measured["accuracy"] == pytest.approx(1 / 3)
    assert measured["top3"] == pytest.approx(2 / 3)
    assert measured["by_group"] == [1.0, 0.0]
    assert measured["loss"] == pytest.approx(-np.log([0.5, 0.1, 0.3]).mean(), abs=1e-6)
    gap = abs(1 - 0.5) + abs(0 - 0.8)
    assert measured["calibration_error"] == pytest.approx(gap / 3, abs=1e-6)


def test_untrained_orders_take_the_best_open_slot() -> None:
    rank = torch.tensor([[2, 0, 1]])
    taken = torch.tensor([[False, True, False], [False, False, True]])
    orders = untrained_orders(rank, torch.tensor([[4, 5, 9]]), torch.zeros(2, dtype=torch.int64), taken, rank >= 0)
    assert orders["stale_confidence"].argmax(-1).tolist() == [2, 1]
    assert orders["left_to_right"].argmax(-1).tolist() == [0, 0]


def test_a_trajectory_without_steps_is_skipped() -> None:
    one = fake_trajectories(count=1)[0]
    empty = replace(one, block_start=one.block_start[:0])
    assert len(lay_out([empty, one])) == len(one)
