"""Scores of the order model that the cells of one replayed group share: budgets and floors ask for the same states.

A recorded control has one stale table a root, so a request, its root, how many tables were read and a path say what was
scored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spot_infer.blocks import BlockState
from spot_infer.draft import Query, Score
from spot_infer.drafters import OrderDrafter
from spot_infer.graph import DraftContext, Drafter
from spot_infer.order_model import OrderModel

_Known = dict[tuple[int, BlockState, int, tuple[int, ...], int], NDArray[np.float64]]


class ScoreMemory:
    """What has been scored of one control's trajectories, by network and calibration temperature."""

    def __init__(self) -> None:
        self._known: dict[tuple[OrderModel, float], _Known] = {}

    def remembered(self, drafter: Drafter) -> Drafter:
        """The same drafter, which scores no state twice; any but the trained one as it is."""
        if not isinstance(drafter, OrderDrafter):
            return drafter
        known = self._known.setdefault((drafter.model, drafter.settings.tau), {})
        return _RememberingDrafter(drafter, known)


class _RememberingDrafter(OrderDrafter):
    def __init__(self, drafter: OrderDrafter, known: _Known) -> None:
        super().__init__(drafter.model, drafter.settings, drafter.chain, drafter.chunk_states)
        self.known = known

    def score(self, contexts: Sequence[DraftContext]) -> Score:
        fresh = super().score(contexts)

        def remembered(queries: list[Query]) -> list[NDArray[np.float64]]:
            asked = [(contexts[one], path, depth) for one, path, depth in queries]
            keys = [(one.request, one.state, len(one.tables), path, depth) for one, path, depth in asked]
            missing = [index for index, key in enumerate(keys) if key not in self.known]
            if missing:
                answers = fresh([queries[index] for index in missing])
                self.known.update(zip((keys[index] for index in missing), answers, strict=True))
            return [self.known[key] for key in keys]

        return remembered
