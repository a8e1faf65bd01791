"""What a forward lays out to look beyond a row's block: the block as its stale table would fill it, and the next one.

Where that guess is right, as it mostly is, the next block's table is the one that the target will see when it opens the
block (`drafters/entrance.py`). The table only drafts: a wrong guess costs speed, never a token.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from spot_infer.blocks import BlockState, Commit
from spot_infer.graph import DraftGraph
from spot_infer.table import StaleTable

REPLICAS = 2
"""Replicas that looking ahead takes of a forward, and so of a round's budget."""
WORTH = 0.5
"""Commits that looking ahead is expected to gain; it is left where the states that make room for it weigh more."""
MOST_OPEN = 1.0
"""Masked slots, as a share of the states drafted, beyond which the next round hardly gets to a block's end."""
LEAST_SURE = 0.3
"""Probability of the guess, by the stale table, from which on it is worth its replicas."""


def make_room(graph: DraftGraph, guess: Collection[Commit], budget: int) -> DraftGraph | None:
    """`graph` without its lightest states, so that it and what looks beyond the `guess` stay within `budget`; None
    where that costs more than it is worth. A guess that was drafted takes no room."""
    if frozenset(guess) in graph.commits:
        return graph
    kept, lost = set(range(1, 1 + len(graph))), 0.0
    while len(kept) > max(budget - REPLICAS, 0):
        parents = {graph.parents[node] for node in kept}
        lightest = min(kept - parents, key=lambda node: (graph.masses[node], -node))
        kept.remove(lightest)
        lost += graph.masses[lightest]
    if lost > WORTH or not kept:
        return None
    return graph.trimmed(kept) if len(kept) < len(graph) else graph


def completed(state: BlockState, table: StaleTable) -> BlockState | None:
    """`state` with its masked slots filled as its stale `table` would: with the drawn tokens where there are some. None
    where it is not likely enough to end so."""
    drawn = table.drawn_token is not None and table.drawn_logprob is not None
    drafted = table.drawn_token if drawn else table.top_token[:, 0]
    logprob = table.drawn_logprob if drawn else table.top_logprob[:, 0]
    assert drafted is not None and logprob is not None
    open_ = np.isin(table.slots, state.masked_slots)
    if np.exp(logprob[open_].astype(np.float64).sum()) < LEAST_SURE:
        return None
    filled = zip(table.slots[open_].tolist(), drafted[open_].tolist(), strict=True)
    return state.with_commits([Commit(state.start + slot, token) for slot, token in filled])
