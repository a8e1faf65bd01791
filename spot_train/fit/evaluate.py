"""How well a drafter knows the order, on recorded trajectories: by depth, by block, before the stop token and in all.

The two untrained orders are always measured on the same examples, and the untrained chain is replayed beside the
drafter. Fits nothing and needs no target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spot_infer.api import rule_mismatch
from spot_infer.drafters import ChainDrafter, OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.features import ragged_ranks, stale_ranking
from spot_infer.graph import Drafter
from spot_infer.transition import CommitRule
from spot_train.fit.data import Batch, CheckBatches
from spot_train.fit.examples import Steps, lay_out
from spot_train.fit.metrics import OrderMetrics, untrained_orders
from spot_train.replay.replay import replay, replay_summary
from spot_train.trajectory import Trajectory

MOST_BLOCKS = 64
ORDERS = ("model", "stale_confidence", "left_to_right")
SCOPES = ("before_stop", "all")
Ranking = Callable[[NDArray[Any], NDArray[Any], CommitRule], NDArray[np.float64]]
"""(top_logprob [M, 32], log_odds [M], rule) -> values [M]."""


def evaluate(
    drafter: OrderDrafter,
    trajectories: Iterable[Trajectory],
    *,
    budgets: Sequence[int] = (8, 20),
    replay_limit: int | None = None,
    temperature: float = 0.0,
    limit_states: int | None = None,
    rule: CommitRule | None = None,
) -> dict[str, Any]:
    """Measures of `drafter` and of the untrained orders, as JSON values.

    orders[scope][order] holds accuracy, top3, by_depth and by_block (None where there is no example) and, for the
    model, loss and calibration_error; stale[scope] what `stale_accuracy` gives; replay[drafter][budget] what
    `replay_summary` gives. rule: of the recorded decoding, the drafter's own by default; where the drafter was trained
    under another one, `warning` says so and orders["stale_confidence"] ranks by the drafter's, all else by `rule`.
    limit_states caps the states measured, replay_limit the trajectories replayed. Raises SpotError where block lengths
    differ: a drafter may come from another target, not from another block length.
    """
    recorded = [one for one in trajectories if len(one)]
    steps = laid_out_for(drafter, recorded)
    config = drafter.model.config
    rule = rule or config.rule
    metrics = _Measures(config.d_max + 1)
    for _, batch, log_q in predictions(drafter, steps, limit_states=limit_states):
        orders = {"model": log_q, **untrained_orders(batch.rank, batch.slot, batch.of, batch.taken, batch.valid)}
        for name, values in orders.items():
            metrics.update(name, values, batch.label, batch.depth, batch.block, batch.before_stop)
    replayed = recorded[:replay_limit]
    drafters: dict[str, Drafter] = {"order": drafter, "chain": ChainDrafter(rule)}
    warning = rule_mismatch(drafter, rule)
    return {
        **({"warning": warning} if warning else {}),
        "trajectories": len(recorded),
        "steps": len(steps),
        "orders": metrics.compute(),
        "stale": {scope: stale_accuracy(recorded, rule, scope == "before_stop") for scope in SCOPES},
        "replay": {
            name: {
                f"D{budget}": replay_summary(replay(one, replayed, budget, temperature=temperature))
                for budget in budgets
            }
            for name, one in drafters.items()
        },
        "replayed": len(replayed),
    }


def laid_out_for(drafter: OrderDrafter, trajectories: Iterable[Trajectory]) -> Steps:
    """The trajectories' steps. Raises SpotError where the drafter is for another block length, or there is no step."""
    steps = lay_out(trajectories)
    own = drafter.model.config.block_length
    if steps.block_length != own:
        raise SpotError(
            f"the data has block length {steps.block_length}, the drafter {own}; use data of the target that the "
            "drafter was trained for"
        )
    return steps


def predictions(
    drafter: OrderDrafter, steps: Steps, depths: Sequence[int] | None = None, limit_states: int | None = None
) -> Iterator[tuple[NDArray[np.int64], Batch, Tensor]]:
    """Batches of at most `limit_states` states at the given depths (default all that it was trained for): the states,
    the batch, and what the drafter says, log q float64 [Q, m], all on the CPU."""
    config = drafter.model.config
    batches = CheckBatches(steps, config.features, config.rule, depths or range(config.d_max + 1), limit_states)
    for states, batch in zip(batches.batches, (batches[index] for index in range(len(batches))), strict=True):
        with torch.inference_mode():
            scores = drafter.model(*(tensor.to(drafter.device) for tensor in batch.asked))
            log_q = torch.log_softmax(scores.double() / drafter.settings.tau, dim=-1)
        yield states, batch, log_q.cpu()


class _Measures:
    """Metrics by depth and by block, for every order and scope."""

    def __init__(self, depths: int) -> None:
        self.by_depth = {(scope, order): OrderMetrics(depths) for scope in SCOPES for order in ORDERS}
        self.by_block = {key: OrderMetrics(MOST_BLOCKS) for key in self.by_depth}

    def update(
        self, order: str, log_q: Tensor, label: Tensor, depth: Tensor, block: Tensor, before_stop: Tensor
    ) -> None:
        for scope in SCOPES:
            kept = before_stop if scope == "before_stop" else torch.ones_like(before_stop)
            self.by_depth[scope, order].update(log_q[kept], label[kept], depth[kept])
            self.by_block[scope, order].update(log_q[kept], label[kept], block[kept])

    def compute(self) -> dict[str, dict[str, Any]]:
        return {scope: {order: self._one(scope, order) for order in ORDERS} for scope in SCOPES}

    def _one(self, scope: str, order: str) -> dict[str, Any]:
        measured = self.by_depth[scope, order].compute()
        blocks = self.by_block[scope, order].compute()["by_group"]
        names = ("accuracy", "top3", "loss", "calibration_error") if order == "model" else ("accuracy", "top3")
        return {
            **{name: measured[name] for name in names},
            "examples": sum(measured["total"]),
            "by_depth": measured["by_group"],
            "by_block": blocks[: max((i + 1 for i, value in enumerate(blocks) if value is not None), default=0)],
        }


def stale_accuracy(
    trajectories: Iterable[Trajectory], rule: CommitRule, before_stop: bool, ranking: Ranking = stale_ranking
) -> dict[str, Any]:
    """How often the previous table names the next commit, by block: `order` its slot, `token` its token (or the drawn
    token, where tables hold one), over steps of one commit that are not their block's first. `ranking` values a table's
    slots, largest first."""
    counts = np.zeros((MOST_BLOCKS, 3), dtype=np.int64)
    for one in trajectories:
        if len(one):
            _count_stale(one, rule, before_stop, ranking, counts)
    total, order, token = counts.sum(axis=0).tolist()
    seen = np.flatnonzero(counts[:, 0])
    return {
        "order": order / total if total else None,
        "token": token / total if total else None,
        "steps": total,
        "order_by_block": [float(counts[block, 1] / counts[block, 0]) for block in seen],
        "token_by_block": [float(counts[block, 2] / counts[block, 0]) for block in seen],
    }


def _count_stale(one: Trajectory, rule: CommitRule, before_stop: bool, ranking: Ranking, counts: np.ndarray) -> None:
    """Add (steps, right slots, right tokens) of each block to counts [blocks, 3]."""
    starts = one.step_start
    ranks = ragged_ranks(ranking(one.top_logprob, one.log_odds, rule), one.slot, starts)
    tokens = one.top_token[:, 0] if one.drawn_token is None else one.drawn_token
    end = one.prompt_length + one.returned_tokens
    single = np.diff(one.commit_start) == 1
    for step in range(1, len(one)):
        block_start = int(one.block_start[step])
        if block_start != one.block_start[step - 1] or not (single[step] and single[step - 1]):
            continue
        position, token = (int(values[one.commit_start[step]]) for values in (one.commit_position, one.commit_token))
        if before_stop and position >= end:
            continue
        rows = slice(starts[step - 1], starts[step])
        slots, row_ranks = one.slot[rows], ranks[rows].copy()
        gone = int(one.commit_position[one.commit_start[step - 1]]) - block_start
        row_ranks[slots == gone] = len(slots)
        at = int(np.searchsorted(slots, position - block_start))
        block = min((block_start - int(one.block_start[0])) // one.block_tokens.shape[-1], MOST_BLOCKS - 1)
        counts[block] += (1, int(row_ranks.argmin() == at), int(tokens[rows][at] == token))
