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

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spot_infer.blocks import Commit
from spot_infer.graph import DraftContext, DraftGraph, Entrance

Query = tuple[int, tuple[int, ...], int]
"""Context index, slots committed since the root in ascending order, depth."""
Score = Callable[[list[Query]], list[NDArray[np.float64]]]
"""For each query the probabilities q [m] over the slots of the context's stale table, zero at filled slots."""
Hypotheses = Sequence[Sequence[tuple[int, float]]]
"""For each slot of the stale table, the (token, probability) pairs to draft there."""
_Key = int | tuple[int, ...]
"""A state while it is searched: its options as bits where orders merge, in order where they do not. A round touches
hundreds of states and keeps a few, which alone become sets of commits."""
_AHEAD = 4
"""Candidates that a search of one call asks for beside the state that it needs: several take hardly longer than one."""


def search(
    contexts: Sequence[DraftContext],
    score: Score,
    hypotheses: Sequence[Hypotheses],
    merged: bool = True,
    orders: Sequence[Sequence[int]] | None = None,
    width: int | None = None,
    one_call: bool = False,
    entrances: Sequence[Entrance | None] = (),
) -> list[DraftGraph]:
    """One draft graph a context. m(child) = m(parent) * q(slot) * p(token), equation 3; merged states add masses.

    orders: for each context the slots of its table, as indices, in the order that equally heavy ones are drafted in;
    by default ascending. width: most children of a state, 1 for a chain; None for as many as the budget allows.
    one_call: whether the answers of all levels come from one network call. entrances: for each context the way into its
    next block, if any; the contexts behind them count as further ones, in their order, in queries, hypotheses and
    orders.
    """
    orders = [range(len(options)) for options in hypotheses] if orders is None else orders
    further = iter(range(len(contexts), len(hypotheses)))
    searches = []
    for index, context in enumerate(contexts):
        entrance = entrances[index] if entrances else None
        blocks = [index] if entrance is None else [index, next(further)]
        options = [_options_of(number, hypotheses[number], orders[number]) for number in blocks]
        searches.append(_Search(context, options, entrance, merged, width, one_call))
    asking = [one.as_kept() if one_call else one.by_level() for one in searches]
    while asked := [(index, keys) for index, one in enumerate(asking) if (keys := next(one, []))]:
        answers = iter(score([searches[index].query(key) for index, keys in asked for key in keys]))
        for index, keys in asked:
            searches[index].expand(keys, list(islice(answers, len(keys))))
    return [one.graph() for one in searches]


class _Options(NamedTuple):
    """What can be drafted from the table of the context with this number: place int64 [n] in the table, token, and
    probability float64 [n] of every option."""

    number: int
    place: NDArray[np.int64]
    token: list[int]
    probability: NDArray[np.float64]


def _options_of(number: int, hypotheses: Hypotheses, order: Sequence[int]) -> _Options:
    listed = [(place, token, probability) for place in order for token, probability in hypotheses[place]]
    return _Options(
        number,
        np.array([place for place, _, _ in listed], dtype=np.int64),
        [token for _, token, _ in listed],
        np.array([probability for _, _, probability in listed], dtype=np.float64),
    )


class _Search:
    """One context's candidates: the children of every expanded state, and the states kept. An option is a commit to
    draft; a state's children add one that it lacks. Options of the root's block come first, then the `entrance` to the
    next one, then those below it, for which slots are counted on."""

    def __init__(
        self,
        context: DraftContext,
        blocks: Sequence[_Options],
        entrance: Entrance | None,
        merged: bool,
        width: int | None,
        one_call: bool,
    ) -> None:
        self.context = context
        self.one_call = one_call
        self.width = context.budget if width is None else width
        self.merged = merged
        self.blocks = blocks
        self.commits = _commits(context, blocks[0])
        self.deepest = context.room
        self.enters = len(self.commits)
        self.entrance = entrance
        if entrance is not None:
            self.commits += [entrance.first, *_commits(entrance.context, blocks[1])]
            self.deepest += 1 + entrance.context.room
        self.option_slot = [position - context.state.start for position, _ in self.commits]
        self.endings = _endings(context, self.commits, entrance is not None)
        self.root: _Key = 0 if merged else ()
        self.edges: dict[_Key, _Edges] = {}
        self.kept: dict[_Key, float] = {}
        self.states_scored = 0
        self.asked = 0
        if context.budget < 1 or self.deepest < 1:
            self.edges[self.root] = _NO_EDGES

    def query(self, key: _Key) -> Query:
        """What is asked about a state."""
        entered = self._entered(key)
        first = len(self.context.state.tokens) if entered else 0
        drafted = (option for option in _options(key) if not entered or option > self.enters)
        slots = tuple(sorted(self.option_slot[option] - first for option in drafted))
        return self.blocks[entered].number, slots, len(slots)

    def _entered(self, key: _Key) -> bool:
        """Whether a state lies in the next block, past its first commit."""
        return key >> self.enters > 0 if isinstance(key, int) else self.enters in key

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

    def expand(self, keys: Sequence[_Key], scores: Sequence[NDArray[np.float64]]) -> None:
        """Add the children of states, the heaviest first, from the probabilities [m] of each one's slots."""
        self.states_scored += len(keys)
        inside = [self._entered(key) for key in keys]
        for number, block in enumerate(self.blocks):
            first = number * (self.enters + 1)
            asked = [place for place, entered in enumerate(inside) if entered == number]
            if asked:
                self._expand([keys[place] for place in asked], [scores[place] for place in asked], block, first)

    def _expand(self, keys: Sequence[_Key], scores: Sequence[NDArray[np.float64]], block: _Options, first: int) -> None:
        """The same for states of one block, whose options are numbered from `first`."""
        weights = np.array(scores).take(block.place, axis=1) * block.probability
        heaviest = np.argsort(-weights, axis=1, kind="stable")[:, : self.width]
        weights = weights[np.arange(len(keys))[:, None], heaviest]
        counts = (weights > 0).sum(axis=1).tolist()
        for key, options, shares, count in zip(keys, (heaviest + first).tolist(), weights, counts, strict=True):
            edges = _Edges(_children(key, options[:count]), options[:count], shares[:count])
            self._lead(key, edges)
            if self.entrance is not None and first == 0 and _depth(key) + 1 == self.context.room:
                for child in self.edges[key].children:
                    inner = _children(child, [self.enters])
                    self._lead(child, _Edges(inner, [self.enters], np.array([self.entrance.probability])))

    def _lead(self, key: _Key, edges: _Edges) -> None:
        """Note a state's edges."""
        self.edges[key] = self._going_on(key, edges) if self.endings else edges

    def _going_on(self, key: _Key, edges: _Edges) -> _Edges:
        """The edges of a state that lead to one that does not end the request."""
        drafted = set(_options(key))
        filled = sum(1 << self.option_slot[option] for option in drafted)
        if (self.endings[0][0] & ~filled).bit_count() > 1:
            return edges
        going = [
            place
            for place, option in enumerate(edges.options)
            if not self._ends({*drafted, option}, filled | 1 << self.option_slot[option])
        ]
        options = [edges.options[place] for place in going]
        return _Edges([edges.children[place] for place in going], options, edges.weights[going])

    def _ends(self, drafted: Collection[int], filled: int) -> bool:
        for needed, option in self.endings:
            if needed & filled != needed:
                return False
            if option is None or option in drafted:
                return True
        return False

    def _select(self) -> Iterator[list[_Key]]:
        """Choose the best states from the root: keep the heaviest that is reached until the budget or the floor is met.
        In a search of one call, ask for what has to be known on the way."""
        context = self.context
        reached = _Reached(self.edges)
        reached.spread(self.root, 1.0)
        while len(reached.kept) < context.budget and (found := reached.heaviest()) is not None:
            key, mass = found
            if mass < max(context.floor, context.price.floor(len(reached.kept))):
                break
            reached.keep(key)
            if self.one_call and len(reached.kept) < context.budget and self._worth_asking(key, mass):
                ahead = reached.heaviest_ones(_AHEAD)
                yield [key, *(one for one, weighs in ahead if self._worth_asking(one, weighs))]
            reached.spread(key, mass)
        self.kept = reached.kept_masses()

    def _worth_asking(self, key: _Key, mass: float) -> bool:
        """Whether a state's children are unknown, could be kept and could be worth the scoring."""
        return key not in self.edges and mass >= self.context.price.state and _depth(key) < self.deepest

    def graph(self) -> DraftGraph:
        """The kept states as a graph; a state is added under its first kept parent."""
        graph = DraftGraph(merged=self.merged, calls=self.asked, states_scored=self.states_scored)
        node_of = {self.root: 0}
        waiting = [self.root]
        for parent in waiting:
            edges = self.edges.get(parent, _NO_EDGES)
            for child, option in zip(edges.children, edges.options, strict=True):
                if child in self.kept and child not in node_of:
                    step = frozenset((self.commits[option],))
                    node_of[child] = graph.add(node_of[parent], step, self.kept[child])
                    waiting.append(child)
        return graph


class _Edges(NamedTuple):
    """A state's children, the options that lead to them and what share of its mass each takes."""

    children: list[_Key]
    options: list[int]
    weights: NDArray[np.float64]


_NO_EDGES = _Edges([], [], np.zeros(0))


def _options(key: _Key) -> Sequence[int]:
    """The options of a state."""
    if not isinstance(key, int):
        return key
    options: list[int] = []
    while key:
        options.append((key & -key).bit_length() - 1)
        key &= key - 1
    return options


def _depth(key: _Key) -> int:
    """How many options a state has taken."""
    return key.bit_count() if isinstance(key, int) else len(key)


def _children(key: _Key, options: Sequence[int]) -> list[_Key]:
    if isinstance(key, int):
        return [key | 1 << option for option in options]
    return [(*key, option) for option in options]


class _Reached:
    """States that kept states lead to, numbered in the order in which they were first reached, with the mass that has
    reached them so far. kept: numbers of the chosen ones."""

    def __init__(self, edges: Mapping[_Key, _Edges]) -> None:
        self.kept: dict[_Key, int] = {}
        self._edges = edges
        self._number: dict[_Key, int] = {}
        self._keys: list[_Key] = []
        self._below: dict[_Key, NDArray[np.int64]] = {}
        self._mass = np.zeros(256)
        self._waiting = np.zeros(256)
        """Masses of those that are not kept, -inf for those that are."""

    def spread(self, source: _Key, amount: float) -> None:
        """Send a new state's mass down its edges, level by level, through the states that are kept already."""
        level = {source: amount}
        while level:
            below = {key: self._numbers(key) for key in level}
            added = np.zeros(len(self._mass))
            for key, numbers in below.items():
                added[numbers] += level[key] * self._edges.get(key, _NO_EDGES).weights
            self._mass += added
            self._waiting += added
            level = {key: float(added[number]) for key, number in self.kept.items() if added[number] > 0}

    def keep(self, key: _Key) -> None:
        number = self.kept[key] = self._number[key]
        self._waiting[number] = -np.inf

    def heaviest(self) -> tuple[_Key, float] | None:
        """The heaviest state that is not kept, the first one reached among equals, and its mass; None for none."""
        number = int(self._waiting.argmax())
        mass = float(self._waiting[number])
        return (self._keys[number], mass) if mass > 0 else None

    def heaviest_ones(self, count: int) -> list[tuple[_Key, float]]:
        """The heaviest `count` states that are not kept."""
        numbers = self._waiting.argpartition(-count)[-count:]
        masses = self._waiting[numbers].tolist()
        return [(self._keys[number], mass) for number, mass in zip(numbers.tolist(), masses, strict=True) if mass > 0]

    def kept_masses(self) -> dict[_Key, float]:
        return {key: float(self._mass[number]) for key, number in self.kept.items()}

    def _numbers(self, parent: _Key) -> NDArray[np.int64]:
        """The numbers of an expanded state's children."""
        known = self._below.get(parent)
        if known is None:
            found: list[int] = []
            for child in self._edges.get(parent, _NO_EDGES).children:
                number = self._number.setdefault(child, len(self._keys))
                if number == len(self._keys):
                    self._keys.append(child)
                found.append(number)
            known = self._below[parent] = np.array(found, dtype=np.int64)
            while len(self._keys) > len(self._mass):
                self._mass, self._waiting = (np.append(one, np.zeros(len(one))) for one in (self._mass, self._waiting))
        return known


def _commits(context: DraftContext, options: _Options) -> list[Commit]:
    """The options as commits."""
    slots = context.tables[0].slots[options.place].tolist()
    return [Commit(context.state.start + slot, token) for slot, token in zip(slots, options.token, strict=True)]


def _endings(context: DraftContext, commits: Sequence[Commit], runs_on: bool) -> list[tuple[int, int | None]]:
    """How a state can end the request (`blocks.finished_length`): slots that have to be filled, as bits, more and more
    from one to the next, and an option that has to be among those drafted. A forward over such a state tells
    nothing. runs_on: drafts may lie in the next block."""
    ending, state = context.ending, context.state
    if ending is None:
        return []
    found: list[tuple[int, int | None]] = []
    needed = 0
    last = ending.end - state.start
    tokens = (*state.tokens, *state.following().tokens) if runs_on else state.tokens
    for slot in range(max(ending.first - state.start, 0), min(last, len(tokens))):
        token = tokens[slot]
        if token == state.mask_id:
            at = state.start + slot
            stops = [n for n, one in enumerate(commits) if one.position == at and one.token in ending.stop_ids]
            found += [(needed, option) for option in stops]
            needed |= 1 << slot
        elif token in ending.stop_ids:
            return [*found, (needed, None)]
    return [*found, (needed, None)] if last <= len(tokens) else found
