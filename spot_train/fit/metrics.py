"""Held-out measures of a commit order: raw counts, divided last. torchmetrics states, so that ranks sum them.

Accuracy by group (depth, block), top-3, mean -log q and expected calibration error. Knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

CALIBRATION_BINS = 15


class OrderMetrics(Metric):
    """How well scores name the next commit. `groups` counts groups such as depths; larger numbers fall in the last."""

    hits: Tensor
    hits_top3: Tensor
    total: Tensor
    loss_sum: Tensor
    bin_total: Tensor
    bin_hits: Tensor
    bin_confidence: Tensor
    full_state_update = False

    def __init__(self, groups: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.groups = groups
        for name in ("hits", "hits_top3", "total"):
            self.add_state(name, torch.zeros(groups, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("loss_sum", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("bin_total", "bin_hits", "bin_confidence"):
            self.add_state(name, torch.zeros(CALIBRATION_BINS, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, log_q: Tensor, label: Tensor, group: Tensor) -> None:
        """log_q [Q, m], -inf where nothing can commit; label int64 [Q], the right column; group int64 [Q].

        An untrained order is a one-hot log_q or plain scores, of which only the accuracies then mean something.
        """
        if not len(label):
            return
        group = group.clamp(max=self.groups - 1)
        of_label = log_q.gather(1, label[:, None])
        ahead = ((log_q > of_label) | ((log_q == of_label) & _before(log_q, label))).sum(dim=1)
        hit = ahead == 0
        self.hits.index_add_(0, group, hit.long())
        self.hits_top3.index_add_(0, group, (ahead < 3).long())
        self.total.index_add_(0, group, torch.ones_like(group))
        self.loss_sum -= of_label.double().sum()
        confidence = log_q.max(dim=1).values.double().exp()
        bins = (confidence * CALIBRATION_BINS).long().clamp(0, CALIBRATION_BINS - 1)
        self.bin_total.index_add_(0, bins, torch.ones_like(confidence))
        self.bin_hits.index_add_(0, bins, hit.double())
        self.bin_confidence.index_add_(0, bins, confidence)

    def compute(self) -> dict[str, Any]:
        """accuracy, top3, loss (nats), calibration_error, by_group (accuracy or None) and total (examples a group)."""
        count = int(self.total.sum())
        gaps = (self.bin_hits - self.bin_confidence).abs().sum()
        return {
            "accuracy": _share(self.hits.sum(), count),
            "top3": _share(self.hits_top3.sum(), count),
            "loss": _share(self.loss_sum, count),
            "calibration_error": _share(gaps, count),
            "by_group": [
                _share(hits, int(total)) if total else None for hits, total in zip(self.hits, self.total, strict=True)
            ],
            "total": self.total.tolist(),
        }


def _before(log_q: Tensor, label: Tensor) -> Tensor:
    """True at columns before the label's: among equal scores the lowest slot counts as chosen."""
    return torch.arange(log_q.shape[1], device=log_q.device) < label[:, None]


def _share(part: Tensor, count: int) -> float:
    return float(part) / count if count else float("nan")


def untrained_orders(rank: Tensor, slot: Tensor, of: Tensor, taken: Tensor, valid: Tensor) -> Mapping[str, Tensor]:
    """Scores [Q, m] of the two trivial orders: stale confidence (the rule's own ranking) and left to right.

    rank, slot int64 and valid bool [S, m]; of int64 [Q], a query's table; taken bool [Q, m].
    """
    closed = taken | ~valid[of]
    return {
        "stale_confidence": (-rank[of]).double().masked_fill(closed, -torch.inf),
        "left_to_right": (-slot[of]).double().masked_fill(closed, -torch.inf),
    }
