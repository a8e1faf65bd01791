"""Which tokens a forward's states name at a block's open slots: what an unsure slot may come to hold.

A packed forward answers at every drafted state. One that was not reached has seen other commits than the stale table,
and a slot where it names another token than that table mostly changes. Pure; knows nothing about forwards, and never
touches what is committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spot_infer.blocks import BlockState

VOTED_SHARE = 0.6
"""Weight of votes in a drafted token's probability, the rest being the stale table's; chosen on held-out prompts of two
targets. Under the stale table alone a token of 0.3 that every state names is committed three times in four."""
LEAST_VOTED = 0.05
"""Probability from which on a voted token is drafted beside a likelier one."""
Votes = Mapping[int, Mapping[int, float]]
"""For each slot of a block, the share of every token that is named there."""


def counted(states: Sequence[tuple[BlockState, Sequence[int]]]) -> Votes:
    """What `states` of one block name, each with the token [m] that it would commit at each of its masked slots.

    Later states know more: one of m masked slots has 1 / m ** 2 votes.
    """
    votes: dict[int, dict[int, float]] = {}
    for state, named in states:
        for slot, token in zip(state.masked_slots, named, strict=True):
            tokens = votes.setdefault(slot, {})
            tokens[token] = tokens.get(token, 0.0) + len(named) ** -2
    totals = {slot: sum(tokens.values()) for slot, tokens in votes.items()}
    return {slot: {one: weight / totals[slot] for one, weight in tokens.items()} for slot, tokens in votes.items()}


def blended(stale: Sequence[tuple[int, float]], voted: Mapping[int, float]) -> list[tuple[int, float]]:
    """A slot's `stale` (token, probability) pairs and what was `voted` there, likeliest first."""
    weights = {token: (1 - VOTED_SHARE) * probability for token, probability in stale}
    for token, share in voted.items():
        weights[token] = weights.get(token, 0.0) + VOTED_SHARE * share
    first, *rest = sorted(weights.items(), key=lambda pair: -pair[1])
    return [first, *(pair for pair in rest if pair[1] >= LEAST_VOTED)]
