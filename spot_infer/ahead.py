"""What a forward lays out to look beyond a row's block: the block as it is likeliest to end, and the next one.

Where that guess is right, as it mostly is, the next block's table is the one that the target will see when it opens the
block (`drafters/entrance.py`). The table only drafts: a wrong guess costs speed, never a token.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from spot_infer.blocks import BlockState, Commit
from spot_infer.drafters.hypotheses import token_hypotheses
from spot_infer.graph import DraftContext, DraftGraph

REPLICAS = 2
"""Replicas that looking ahead takes of a forward, and so of a round's budget."""
WORTH = 0.5
"""Commits that looking ahead is expected to gain; it is left where what it takes weighs more."""
MOST_OPEN = 1.0
"""Masked slots, as a share of the states drafted, beyond which the next round hardly gets to a block's end."""
LEAST_SURE = 0.3
"""Probability of the guess from which on it is worth its replicas."""


def make_room(graph: DraftGraph, guess: Collection[Commit], budget: int, price: float = 0.0) -> DraftGraph | None:
    """`graph` without its lightest states, so that it and what looks beyond the `guess` stay within `budget`; None
    where those and the `price` of two replicas, in commits, are more than it is worth. A guess that was drafted takes
    no room."""
    if frozenset(guess) in graph.commits:
        return graph
    kept, lost = set(range(1, 1 + len(graph))), price
    while len(kept) > max(budget - REPLICAS, 0):
        parents = {graph.parents[node] for node in kept}
        lightest = min(kept - parents, key=lambda node: (graph.masses[node], -node))
        kept.remove(lightest)
        lost += graph.masses[lightest]
    if lost > WORTH or not kept:
        return None
    return graph.trimmed(kept) if len(kept) < len(graph) else graph


def completed(context: DraftContext) -> BlockState | None:
    """The root with its masked slots filled by the tokens likeliest there. None where it is not likely enough to end
    so."""
    state = context.state
    slots = context.tables[0].slots.tolist()
    likeliest = {slot: pairs[0] for slot, pairs in zip(slots, token_hypotheses(context), strict=True)}
    drafted = [likeliest.get(slot, (state.mask_id, 0.0)) for slot in state.masked_slots]
    if prod(probability for _, probability in drafted) < LEAST_SURE:
        return None
    filled = zip(state.masked_slots, drafted, strict=True)
    return state.with_commits([Commit(state.start + slot, token) for slot, (token, _) in filled])
