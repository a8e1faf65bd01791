"""The search that turns order-model scores into a draft graph (paper section 4.2, algorithm 2).

Level-batched best-first: every round of the loop scores all unexpanded kept states of all contexts in one call, adds
their children and keeps the best `budget` states again, until none is unexpanded. As a tree this equals sequential
best-first search, because a child's mass never exceeds its parent's. In a merged graph the mass of a state is the sum
over its kept parents, so the kept set is chosen again from the root after every level. Where drafting has a price, a
state is kept only if it can be worth a replica, and scored only if what lies below it can be worth the scoring. A state
that ends the request is left out: a forward over it tells nothing, and its mass would crowd out what comes before it.
Where one network call answers for all states, levels save nothing: states are scored as they are kept, in one pass.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from spot_infer.blocks import Commit
from spot_infer.graph import DraftContext, DraftGraph

Query = tuple[int, tuple[int, ...], int]
"""Context index, slots committed since the root in ascending order, depth."""
Score = Callable[[list[Query]], list[NDArray[np.float64]]]
"""For each query the probabilities q [m] over the slots of the context's stale table, zero at filled slots."""
Hypotheses = Sequence[Sequence[tuple[int, float]]]
"""For each slot of the stale table, the (token, probability) pairs to draft there."""
_Key = int | tuple[int, ...]
"""A state while it is searched: its options as bits where orders merge, in order where they do not. A round touches
hundreds of states and keeps a few, which alone become sets of commits."""
_AHEAD = 7
"""Candidates that a search of one call asks for beside the state that it needs: several take hardly longer than one."""


def search(
    contexts: Sequence[DraftContext],
    score: Score,
    hypotheses: Sequence[Hypotheses],
    merged: bool = True,
    orders: Sequence[Sequence[int]] | None = None,
    width: int | None = None,
    one_call: bool = False,
) -> list[DraftGraph]:
    """One draft graph a context. m(child) = m(parent) * q(slot) * p(token), equation 3; merged states add masses.

    orders: for each context the slots of its table, as indices, in the order that equally heavy ones are drafted in;
    by default ascending. width: most children of a state, 1 for a chain; None for as many as the budget allows.
    one_call: whether the answers of all levels come from one network call.
    """
    searches = [
        _Search(context, options, merged, range(len(options)) if orders is None else orders[index], width, one_call)
        for index, (context, options) in enumerate(zip(contexts, hypotheses, strict=True))
    ]
    asking = [one.as_kept() if one_call else one.by_level() for one in searches]
    while work := [(index, key) for index, one in enumerate(asking) for key in next(one, ())]:
        queries = [searches[index].query(index, key) for index, key in work]
        for (index, key), scores in zip(work, score(queries), strict=True):
            searches[index].expand(key, scores)
    return [one.graph() for one in searches]


class _Search:
    """One context's candidates: every edge found so far, and the kept states among them. An option is a slot and a
    token to draft there; slots are bits of a state's `filled`."""

    def __init__(
        self,
        context: DraftContext,
        hypotheses: Hypotheses,
        merged: bool,
        order: Sequence[int],
        width: int | None,
        one_call: bool,
    ) -> None:
        self.context = context
        self.one_call = one_call
        self.width = context.budget if width is None else width
        self.merged = merged
        self.table_slots: list[int] = context.tables[0].slots.tolist()
        options = [
            (index, Commit(context.state.start + self.table_slots[index], token), probability)
            for index in order
            for token, probability in hypotheses[index]
        ]
        self.commits = [commit for _, commit, _ in options]
        self.option_slot = [1 << self.table_slots[index] for index, _, _ in options]
        self.option_index = np.array([index for index, _, _ in options], dtype=np.int64)
        self.option_probability = np.array([probability for _, _, probability in options], dtype=np.float64)
        self.deepest = context.room
        self.endings = _endings(context, self.commits)
        self.root: _Key = 0 if merged else ()
        self.filled: dict[_Key, int] = {self.root: 0}
        self.edges: dict[_Key, list[tuple[_Key, int, float]]] = {}
        self.kept: dict[_Key, float] = {}
        self.states_scored = 0
        self.asked = 0
        if context.budget < 1 or self.deepest < 1:
            self.edges[self.root] = []

    def query(self, index: int, key: _Key) -> Query:
        """What is asked about a state of the context with this index."""
        filled = self.filled[key]
        slots = tuple(slot for slot in self.table_slots if filled >> slot & 1)
        return index, slots, len(slots)

    def by_level(self) -> Iterator[list[_Key]]:
        """Ask for all unexpanded kept states at once, and choose what is kept again from the root: the least calls."""
        while keys := self._unexpanded():
            self.asked += 1
            yield keys
            for _ in self._select():
                raise AssertionError("a level's states are expanded before it is chosen from")

    def as_kept(self) -> Iterator[list[_Key]]:
        """Ask for a state when it is kept, and for those that are likely next: one choice, which is the one that levels
        come to, since a state's children matter only once it is kept."""
        if self.root not in self.edges:
            self.asked += 1
            yield [self.root]
            yield from self._select()

    def _unexpanded(self) -> list[_Key]:
        """Kept states whose children are unknown, could still be kept and could be worth their scoring.

        A state's children weigh no more than the state, and theirs no more than they do, so what one level can't earn
        further levels, each with its own cost, can't either.
        """
        if self.root not in self.edges:
            return [self.root]
        price = self.context.price
        full = len(self.kept) >= self.context.budget
        smallest = min(self.kept.values(), default=0.0) if full else -1.0
        found = {key: mass for key, mass in self.kept.items() if mass > smallest and self._worth_asking(key, mass)}
        return list(found) if sum(found.values()) >= price.call + price.state * len(found) else []

    def expand(self, key: _Key, scores: NDArray[np.float64]) -> None:
        """Add a state's children, the heaviest first, from the probabilities of its slots."""
        weights = scores[self.option_index] * self.option_probability
        best = np.argsort(-weights, kind="stable")[: self.width]
        edges: list[tuple[_Key, int, float]] = []
        filled = self.filled[key]
        for option, weight in zip(best.tolist(), weights[best].tolist(), strict=True):
            if weight <= 0:
                break
            below = filled | self.option_slot[option]
            child: _Key = key | 1 << option if isinstance(key, int) else (*key, option)
            if self.endings and self._ends(child, below):
                continue
            self.filled[child] = below
            edges.append((child, option, weight))
        self.edges[key] = edges
        self.states_scored += 1

    def _ends(self, key: _Key, filled: int) -> bool:
        """Whether the state ends the request."""
        for needed, option in self.endings:
            if needed & filled != needed:
                return False
            if option is None or (key >> option & 1 if isinstance(key, int) else option in key):
                return True
        return False

    def _select(self) -> Iterator[list[_Key]]:
        """Choose the best states from the root: add the heaviest reachable candidate until the budget or the floor is
        met. In a search of one call, ask for what has to be known on the way."""
        context = self.context
        mass: dict[_Key, float] = {}
        kept: dict[_Key, float] = {}
        heap: list[tuple[float, int, _Key]] = []
        order: dict[_Key, int] = {}

        def spread(source: _Key, amount: float) -> None:
            """Push a new state's mass down its edges, level by level, through the states that are kept already."""
            level = {source: amount}
            while level:
                below: dict[_Key, float] = {}
                for parent, added in level.items():
                    for child, _, weight in self.edges.get(parent, ()):
                        below[child] = below.get(child, 0.0) + added * weight
                level = {}
                for child, added in below.items():
                    mass[child] = mass.get(child, 0.0) + added
                    if child in kept:
                        kept[child] = mass[child]
                        level[child] = added
                    else:
                        heapq.heappush(heap, (-mass[child], order.setdefault(child, len(order)), child))

        spread(self.root, 1.0)
        while heap and len(kept) < context.budget:
            negative, _, key = heapq.heappop(heap)
            if key in kept or -negative != mass[key]:
                continue
            if mass[key] < max(context.floor, context.price.floor(len(kept))):
                break
            kept[key] = mass[key]
            if self.one_call and len(kept) < context.budget and self._worth_asking(key, mass[key]):
                ahead = (one for at, _, one in heapq.nsmallest(_AHEAD, heap) if -at == mass[one] and one not in kept)
                yield [key, *(one for one in ahead if self._worth_asking(one, mass[one]))]
            spread(key, mass[key])
        self.kept = kept

    def _worth_asking(self, key: _Key, mass: float) -> bool:
        """Whether a state's children are unknown, could be kept and could be worth the scoring."""
        return (
            key not in self.edges and mass >= self.context.price.state and self.filled[key].bit_count() < self.deepest
        )

    def graph(self) -> DraftGraph:
        """The kept states as a graph; a state is added under its first kept parent."""
        graph = DraftGraph(merged=self.merged, calls=self.asked, states_scored=self.states_scored)
        node_of = {self.root: 0}
        waiting = [self.root]
        while waiting:
            parent = waiting.pop(0)
            for child, option, _ in self.edges.get(parent, ()):
                if child in self.kept and child not in node_of:
                    step = frozenset((self.commits[option],))
                    node_of[child] = graph.add(node_of[parent], step, self.kept[child])
                    waiting.append(child)
        return graph


def _endings(context: DraftContext, commits: Sequence[Commit]) -> list[tuple[int, int | None]]:
    """How a state can end the request (`blocks.finished_length`): slots that have to be filled, as bits, and an option
    that has to be among those drafted. A forward over such a state tells nothing."""
    ending, state = context.ending, context.state
    if ending is None:
        return []
    found: list[tuple[int, int | None]] = []
    needed = 0
    last = ending.end - state.start
    for slot in range(max(ending.first - state.start, 0), min(last, len(state.tokens))):
        token = state.tokens[slot]
        if token == state.mask_id:
            at = state.start + slot
            stops = [n for n, one in enumerate(commits) if one.position == at and one.token in ending.stop_ids]
            found += [(needed, option) for option in stops]
            needed |= 1 << slot
        elif token in ending.stop_ids:
            return [*found, (needed, None)]
    return [*found, (needed, None)] if last <= len(state.tokens) else found
