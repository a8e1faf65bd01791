"""Cells of one replayed group share what the order model scored, and count what each would alone."""

from __future__ import annotations

import torch
from fake_trajectories import fake_trajectories

from spot_infer.drafters import OrderDrafter, RandomDrafter
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_train.bench.score_memory import ScoreMemory
from spot_train.replay.replay import replay

L = 8


def test_remembered_scores_change_nothing_but_the_work() -> None:
    torch.manual_seed(0)
    model = OrderModel(OrderModelConfig(L, d_model=16, heads=2, layers=1, feed_forward=16, head_hidden=8)).double()
    scored: list[int] = []
    model.input.register_forward_hook(lambda module, inputs, output: scored.append(len(output)))
    drafter = OrderDrafter(model)
    trajectories = fake_trajectories(count=4, block_length=L)
    memory = ScoreMemory()
    for budget, floor in ((6, 0.0), (3, 0.0), (6, 0.1)):
        alone = replay(drafter, trajectories, budget, floor)
        work = sum(scored)
        scored.clear()
        assert replay(memory.remembered(drafter), trajectories, budget, floor) == alone
        assert sum(scored) == work if (budget, floor) == (6, 0.0) else sum(scored) < work / 2
        scored.clear()


def test_other_drafters_are_left_as_they_are() -> None:
    drafter = RandomDrafter(0)
    assert ScoreMemory().remembered(drafter) is drafter
