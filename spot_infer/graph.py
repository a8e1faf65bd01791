"""The draft graph: drafted states under one root, and the two interfaces around it, context in and graph out.

A node is keyed by the commits that lead to it from the root. In a merged graph the key is the SET of commits, so two
orders that reach one state are one node; in a tree (the paper's form) it is the path. Paper section 4.2.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spot_infer.blocks import BlockState, Commit, Step
from spot_infer.noise import GumbelNoise
from spot_infer.responses import Responses
from spot_infer.table import StaleTable
from spot_infer.votes import Votes

Key = frozenset[Commit] | tuple[Step, ...]


@dataclass(frozen=True)
class Proposal:
    """A commit drafted from a node with the law q that its token was drawn from (paper equation 12).

    tokens int64 [k], probabilities float64 [k] summing to 1: q at the commit's position. uniform: the number in (0, 1)
    that decides whether it is accepted.
    """

    commit: Commit
    tokens: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    uniform: float


@dataclass
class DraftGraph:
    """Drafted states in an order in which a parent always stands before its children; node 0 is the root.

    commits[i] is the set of commits between the root and node i, masses[i] the probability, as the drafter sees it,
    that the target's trajectory passes through node i, parents[i] the node it was first drafted from. `merged` says how
    nodes are keyed. proposals, for rejection sampling only: the drafted link out of a node.
    """

    merged: bool = True
    keys: list[Key] = field(default_factory=list)
    commits: list[frozenset[Commit]] = field(default_factory=list)
    masses: list[float] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    index: dict[Key, int] = field(default_factory=dict)
    calls: int = 0
    states_scored: int = 0
    proposals: dict[int, Proposal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.keys:
            self._append(frozenset() if self.merged else (), frozenset(), 1.0, 0)

    def __len__(self) -> int:
        """Number of drafted states, the root excluded."""
        return len(self.keys) - 1

    def child(self, node: int, step: Step) -> int | None:
        """The drafted state that `step` leads to from `node`, or None."""
        return self.index.get(self._extend(node, step))

    def add(self, node: int, step: Step, mass: float) -> int:
        """Draft the state that `step` leads to from `node`; a state already drafted keeps its row."""
        key = self._extend(node, step)
        if key in self.index:
            return self.index[key]
        return self._append(key, self.commits[node] | step, mass, node)

    def trimmed(self, kept: Collection[int]) -> DraftGraph:
        """The graph of the nodes in `kept`, which hold every kept node's parent; the root always stays."""
        graph = DraftGraph(merged=self.merged, calls=self.calls, states_scored=self.states_scored)
        place = {0: 0}
        for node in sorted(kept):
            parent, key = self.parents[node], self.keys[node]
            step = self.commits[node] - self.commits[parent] if isinstance(key, frozenset) else key[-1]
            place[node] = graph.add(place[parent], step, self.masses[node])
        return graph

    def _extend(self, node: int, step: Step) -> Key:
        key = self.keys[node]
        return key | step if isinstance(key, frozenset) else (*key, step)

    def _append(self, key: Key, commits: frozenset[Commit], mass: float, parent: int) -> int:
        self.index[key] = len(self.keys)
        self.keys.append(key)
        self.commits.append(commits)
        self.masses.append(mass)
        self.parents.append(parent)
        return self.index[key]


@dataclass(frozen=True)
class Price:
    """What drafting costs, in commits: what the time would commit otherwise. floors: the least mass that any n-th
    drafted state must have to be worth a replica, never falling, the last for all beyond; state, call: of scoring a
    state, and of one more network call."""

    floors: tuple[float, ...] = (0.0,)
    state: float = 0.0
    call: float = 0.0

    def floor(self, drafted: int) -> float:
        """The least mass of a state that is drafted beside `drafted` others."""
        return self.floors[min(drafted, len(self.floors) - 1)]


@dataclass(frozen=True)
class Ending:
    """Where a request ends. first: absolute position of its first generated token; end: first position that is never
    returned; stop_ids: tokens that end it, none where they are ignored."""

    first: int
    end: int
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class DraftContext:
    """All a drafter may read. state: the root; tables: most recent first, one for a drafter that reads no more, else as
    many as its `tables_read` where the block has had so many steps.

    tables[0] is the stale table, computed at the root's predecessor: its slots hold all of the root's masked slots.
    budget, floor: most drafted states and smallest mass; temperature, noise: of the draws that the drafter can share
    with the target; 0 and None where there are none, at temperature 0 and under verifiers other than `coupled`.
    completes: a state that fills the block is worth drafting, since another block follows; its commits may be followed
    by commits in that block. ending: where the request ends, if that is known. price: where time is known, what a
    drafted state has to earn. next_table: for a drafter with `looks_ahead`, the table of the next block, all masked,
    behind this one as the stale table before filled it (`ahead.py`); None in a round with none at hand.
    responses, votes: for a drafter with `reads_responses`, what the block's forwards tell of how its slots respond to
    commits, and which tokens the states of the newest one name.
    """

    request: int
    state: BlockState
    tables: Sequence[StaleTable]
    budget: int
    floor: float
    temperature: float
    noise: GumbelNoise | None = None
    completes: bool = False
    next_table: StaleTable | None = None
    price: Price = Price()
    ending: Ending | None = None
    responses: Responses | None = None
    votes: Votes | None = None

    def changes(self) -> NDArray[np.float32] | None:
        """What filling each of the stale table's m slots with its drafted token does to the log-odds of the others,
        [m, m], 0 where that was not measured; None where nothing was."""
        if self.responses is None:
            return None
        table = self.tables[0]
        drawn = table.drawn_token if self.temperature > 0 else None
        slots = table.slots.astype(np.int64)
        root = np.array(self.state.tokens)[slots]
        drafted = table.top_token[:, 0] if drawn is None else drawn
        return self.responses.between(slots, np.where(root == self.state.mask_id, drafted, root))

    @property
    def room(self) -> int:
        """Most masked slots of the root that a drafted state is worth filling: all but the last, or all."""
        return len(self.state.masked_slots) - (not self.completes)


@dataclass(frozen=True)
class Entrance:
    """How a draft enters the next block: by its first commit, with the probability that it is that one; what is drafted
    from then on is `context`, whose root has it."""

    first: Commit
    probability: float
    context: DraftContext


class Drafter(Protocol):
    """Anything that proposes future states. It may be wrong in any way: only speed depends on it.

    One with a true attribute `looks_ahead` gets `next_table` where drafts may cross into the next block, from forwards
    near a block's end, where its two lightest states make room for that; one that `crosses_blocks` needs it, and is
    refused elsewhere. One whose attribute `tables_read` is 2 gets the table of the step before beside the newest.
    """

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        """One graph a context, each of at most `budget` drafted states. A state that fills the block is worth its
        forward only where the context `completes`."""
        ...


def looks_ahead(drafter: Drafter | None) -> bool:
    """Whether `drafter` reads `next_table`."""
    return bool(getattr(drafter, "looks_ahead", False))


def crosses_blocks(drafter: Drafter | None) -> bool:
    """Whether `drafter` was asked to run on into the next block, so that it is an error where it can't."""
    return bool(getattr(drafter, "crosses_blocks", False))


def tables_read(drafter: Drafter | None) -> int:
    """How many of a block's newest tables `drafter` reads."""
    return int(getattr(drafter, "tables_read", 1))


def reads_responses(drafter: Drafter | None) -> bool:
    """Whether `drafter` reads `responses` and `votes`, for which every drafted state is read."""
    return bool(getattr(drafter, "reads_responses", False))
