"""Where a drafter errs: the same errors that `evaluate` counts, told apart as a step-by-step reading does."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from fake_trajectories import fake_trajectories

from spot_infer.drafters import OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.features import stale_ranking
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_infer.transition import CommitRule
from spot_train.fit import errors as module
from spot_train.fit.errors import MARGINS, errors, next_commits
from spot_train.fit.evaluate import evaluate, laid_out_for
from spot_train.trajectory import Trajectory

RULES = [CommitRule(), CommitRule(resolution=0.3)]


def recorded(rule: CommitRule | None = None) -> tuple[Trajectory, ...]:
    return fake_trajectories(count=3, rule=rule)


def drafter(seed: int = 0, d_max: int = 3) -> OrderDrafter:
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "heads": 2, "layers": 1, "feed_forward": 16, "head_hidden": 8}
    return OrderDrafter(
        OrderModel(OrderModelConfig(8, **sizes, features="v2", scorer="one_call", residual="none", d_max=d_max))
    )


def by_hand(rule: CommitRule) -> dict[str, tuple[list[float], list[float]]]:
    """Margins and how much they moved of commits at depth 0, by class."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for one in recorded(rule):
        for step in range(1, len(one)):
            if one.block_start[step] != one.block_start[step - 1]:
                continue
            table, stale = one.table(step), one.table(step - 1)
            values = stale_ranking(table.top_logprob, table.log_odds, rule)
            order = sorted(range(len(values)), key=lambda place: (-values[place], table.slots[place]))
            name, margin, moved = "one slot open", 0.0, 0.0
            if len(order) > 1:
                chosen = table.slots[order[:2]]
                margin, before = (
                    float(np.subtract(*(at.log_odds[at.slots == slot][0].astype(float) for slot in chosen)))
                    for at in (table, stale)
                )
                moved = abs(margin - before)
                inside = [
                    f"{low:g} to {high:g}" for low, high in pairwise((0.0, *MARGINS)) if low <= abs(margin) < high
                ]
                tied = values[order[0]] == values[order[1]]
                name = "tied under the rule" if tied else (inside or [f"{MARGINS[-1]:g} and more"])[0]
            margins, moves = found.setdefault(name, ([], []))
            margins.append(margin)
            moves.append(moved)
    return found


@pytest.mark.parametrize("rule", RULES, ids=["float32", "0.3"])
def test_errors_are_those_that_evaluate_counts(rule: CommitRule) -> None:
    data = recorded(rule)
    found = errors(drafter(), data, rule=rule)["scopes"]
    known = evaluate(drafter(), data, budgets=(), replay_limit=0, rule=rule)["orders"]
    for scope, one in found.items():
        model = known[scope]["model"]
        assert one["errors"] == pytest.approx(1 - model["accuracy"])
        assert one["loss"] == pytest.approx(model["loss"])
        assert one["calibration_error"] == pytest.approx(model["calibration_error"])
        assert one["by_depth"] == pytest.approx(
            {str(depth): 1 - share for depth, share in enumerate(model["by_depth"])}
        )
        assert one["commits"] == model["examples"]


@pytest.mark.parametrize("rule", RULES, ids=["float32", "0.3"])
def test_margins_are_those_of_a_step_by_step_reading(rule: CommitRule) -> None:
    found = errors(drafter(), recorded(rule), rule=rule)["margins"]["depth_0"]
    known = by_hand(rule)
    total = sum(len(margins) for margins, _ in known.values())
    assert ("tied under the rule" in known) == (rule.resolution != "float32")
    assert {one["margin"]: one["commits"] for one in found} == pytest.approx(
        {name: len(margins) / total for name, (margins, _) in known.items()}
    )
    for one in found:
        assert one["moved"] == pytest.approx(np.median(known[one["margin"]][1]))
    assert sum(one["share"] for one in found) == pytest.approx(1)


@pytest.mark.parametrize("rule", RULES, ids=["float32", "0.3"])
def test_the_targets_own_log_odds_decide_until_noise_drowns_them(
    rule: CommitRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NOISES", (1e-9, 100.0))
    commits = next_commits(drafter(), laid_out_for(drafter(), recorded(rule)), rule)
    assert not commits.noisy[:, 0].any()
    assert commits.noisy[:, 1].mean() > 0.3


def test_noise_equal_to_the_drafter_lies_between_its_neighbours() -> None:
    commits = next_commits(drafter(), laid_out_for(drafter(), recorded()), CommitRule())
    missed = np.zeros(len(commits.depth), dtype=bool)
    missed[: int(commits.noisy[:, 1:3].mean() * len(missed))] = True
    commits.guess[:] = np.where(missed, -1, commits.slot)
    equal = module.noise(commits)["equal"]
    assert equal is not None and module.NOISES[1] < equal < module.NOISES[2]


def test_a_drafter_beside_itself_shares_every_error() -> None:
    found = errors(drafter(), recorded(), beside=drafter())
    both = found["beside"]
    assert both["errors"] == both["both"] == found["scopes"]["all"]["errors"] > 0
    assert both["alike"] == 1
    other = errors(drafter(), recorded(), beside=drafter(seed=1))["beside"]
    assert other["both"] < both["both"]
    assert 0 < other["alike"] < 1


def test_drafters_of_other_depths_are_compared_where_depths_are_named() -> None:
    with pytest.raises(SpotError, match="depths 3 and 2"):
        errors(drafter(), recorded(), beside=drafter(d_max=2))
    with pytest.raises(SpotError, match="depth 3 is beyond 2"):
        errors(drafter(), recorded(), beside=drafter(d_max=2), depths=(3,))
    found = errors(drafter(), recorded(), beside=drafter(d_max=2), depths=(2, 0, 2))
    assert set(found["scopes"]["all"]["by_depth"]) == {"0", "2"}
