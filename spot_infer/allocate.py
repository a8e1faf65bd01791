"""How many drafted states a round is worth, from their masses and what replicas cost. Pure; it measures nothing.

A request's time is its rounds' costs, and its commits are fixed, so the least time is the largest rate of commits over
cost in the long run. A round that drafts the states of a set S commits 1 + mass(S) in expectation and costs c(replicas)
and what the drafter took. With the rate r that the whole run attains, a set is worth mass(S) - r c(S) (Dinkelbach's
transform of the ratio): so a state is worth its replica while its mass exceeds r times the marginal cost. r is not
known; `allocate` takes the prefix of the states, heaviest first, that maximises

    (commits so far + rows + mass of the prefix) / (cost so far + c(replicas of the prefix))

which is that rule with r the rate attained including this round, needs no starting value, scans every prefix (so that a
curve may be flat, stepped or concave) and settles at the long-run rate. Rows of a batch share one forward, so their
states compete in one order. A state that fills its block costs two replicas and also saves the next block's undrafted
opening; one that runs on stands on the same finished block and costs one.

Masses are the drafter's word. What they predicted and what was accepted in the request's past rounds gives a trust t,
and a state at depth d counts mass * t^d. Whether to ask the drafter at all is decided from past rounds too, before the
stale table is read, so that requests that drafting can't speed up cost what draft-free decoding does; a request begins
with what its run knows. All of it is a function of the curve and of what the run's rounds were, so forwards are
reproducible where the curve is pinned.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from spot_infer.cost import CostCurve
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, Drafter, DraftGraph, Price

MOST_STATES = 32
"""Most states that a round drafts where none are asked for: beyond it no named curve has ever gained."""
_LOSS = 0.02
_STAKE = 2.0
_OPTIMISM = 0.9
_MEMORY = 0.5
_DOUBT = 1.0
_BISECTIONS = 30


def budget_option(text: str) -> int | Literal["auto"]:
    """What the command line names: a number of states, or auto."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise SpotError(f"budget is {text!r}; use a number of drafted states, or auto") from None


@dataclass(eq=False, kw_only=True)
class Account:
    """cost: of forwards and drafts so far, in the curve's unit; worth: what draft-free decoding would have taken for
    the same steps."""

    cost: float = 0.0
    worth: float = 0.0

    def affords(self, loss: float) -> bool:
        """Whether with `loss` more all that was lost stays below 2% of draft-free decoding's cost."""
        return self.cost - self.worth + loss <= _LOSS * self.worth


@dataclass(eq=False, kw_only=True)
class Experience(Account):
    """What drafting brought all requests of a run so far. gain, spent: sums over `rounds` drafted rounds of what drafts
    earned beyond their replicas, in commits, and of what drafting itself cost."""

    gain: float = 0.0
    spent: float = 0.0
    rounds: int = 0


@dataclass(eq=False)
class Pace(Account):
    """One request's past rounds, and its `run`'s. commits: sum; predicted: mass drafted, by depth; accepted: drafts;
    gain, spent: recent means a drafted round, the run's at first; failed: drafted rounds in a row that did not pay;
    wait: rounds left undrafted."""

    curve: CostCurve
    run: Experience = field(default_factory=Experience)
    commits: float = 0.0
    predicted: Counter[int] = field(default_factory=Counter)
    accepted: int = 0
    gain: float | None = None
    spent: float = 0.0
    failed: int = 0
    wait: int = 0

    def __post_init__(self) -> None:
        if self.run.rounds:
            self.gain, self.spent = self.run.gain / self.run.rounds, self.run.spent / self.run.rounds

    @property
    def rate(self) -> float:
        """Commits over cost so far; draft-free decoding's at first."""
        return self.commits / self.cost if self.cost else 1 / self.curve.cost(1)

    def price(self, replicas: int, more: int) -> float:
        """Commits that the time of `more` replicas beside `replicas` would bring."""
        return self.rate * (self.curve.cost(replicas + more) - self.curve.cost(replicas))

    @property
    def trust(self) -> float:
        """t in (0, 1] with sum over depths of predicted mass * t^depth = accepted drafts, and `_DOUBT` standard
        deviations more, so that a drafter whose word is true is believed through bad luck."""
        likely = self.accepted + _DOUBT * math.sqrt(self.accepted + 1)
        if sum(self.predicted.values()) <= likely:
            return 1.0
        low, high = 0.0, 1.0
        for _ in range(_BISECTIONS):
            t = (low + high) / 2
            expected = sum(mass * t**depth for depth, mass in self.predicted.items())
            low, high = (t, high) if expected < likely else (low, t)
        return high

    def drafts(self) -> bool:
        """Whether the next round is worth asking the drafter. After one that was not, it is asked again in 1, 3, 7, ...
        rounds, while all the time that the run lost stays below 2% of draft-free decoding's."""
        stake = -_STAKE * self.curve.cost(1)
        if not (self.run.affords(stake) and self.affords(stake)):
            return False
        if self.gain is None:
            return _best_gain(self.curve, self.rate) > self.rate * _least_spent(self.curve)
        if self.gain > self.rate * self.spent or not self.spent:
            return True
        return self.wait <= 0 and self.run.affords(self.spent)

    def passed(self, commits: int, cost: float) -> None:
        """Note a round that was not drafted."""
        self._note(commits, cost, cost)
        self.wait -= 1

    def drafted(self, graph: DraftGraph, accepted: int, commits: int, root: float, extra: float, spent: float) -> None:
        """Note a drafted round: `root`, what its forward would have cost undrafted; `extra` for drafted replicas;
        `spent` on drafting."""
        trust = self.trust
        depths = _depths(graph)
        gain = sum(mass * trust**depth for mass, depth in zip(graph.masses[1:], depths[1:], strict=True))
        gain -= self.rate * extra
        old = 0.0 if self.gain is None else _MEMORY
        self.gain = old * (self.gain or 0.0) + (1 - old) * gain
        self.spent = old * self.spent + (1 - old) * spent
        self.run.gain += gain
        self.run.spent += spent
        self.run.rounds += 1
        self.predicted.update(dict(_by_depth(graph, depths)))
        self.accepted += accepted
        self._note(commits, root + extra + spent, root * (1 + accepted))
        self.failed = self.failed + 1 if self.gain <= self.rate * self.spent else 0
        self.wait = 2**self.failed - 1

    def _note(self, commits: int, cost: float, worth: float) -> None:
        self.commits += commits
        for account in (self, self.run):
            account.cost += cost
            account.worth += worth


def _by_depth(graph: DraftGraph, depths: Sequence[int]) -> Counter[int]:
    masses: Counter[int] = Counter()
    for mass, depth in zip(graph.masses[1:], depths[1:], strict=True):
        masses[depth] += mass  # type: ignore[assignment]
    return masses


def _depths(graph: DraftGraph) -> list[int]:
    """Steps between the root and every node."""
    depths = [0]
    for parent in graph.parents[1:]:
        depths.append(depths[parent] + 1)
    return depths


def _best_gain(curve: CostCurve, rate: float) -> float:
    """Commits that a good drafter's chain could earn in a round, beyond what its replicas cost."""
    expected, best = 0.0, 0.0
    for states in range(1, MOST_STATES + 1):
        expected += _OPTIMISM**states
        best = max(best, expected - rate * (curve.cost(1 + states) - curve.cost(1)))
    return best


def _least_spent(curve: CostCurve) -> float:
    """What asking the drafter costs at least."""
    return curve.round_extra + (0.0 if curve.drafter is None else curve.drafter.total(1, 1, 1))


def writes_apart(curve: CostCurve, rows: int) -> bool:
    """Whether a finished block is cheaper written in a forward of its own than in the next block's opening, in a
    forward of `rows` none of which drafts: a second replica in one of them is one more in each."""
    return curve.cost(2 * rows) - curve.cost(rows) > curve.cost(rows) / rows


def price(paces: Sequence[Pace], drafting: int, replicas: int) -> Price:
    """What drafting costs each row in a forward of the rows of `paces`, `drafting` of which draft, beside `replicas` of
    undrafted states: at the rate that they would attain with no draft in it, the least that a draft has to raise."""
    curve = paces[0].curve
    cost = sum(one.cost for one in paces) + curve.cost(replicas) + drafting * _least_spent(curve)
    rate = (sum(one.commits for one in paces) + len(paces)) / cost
    costs = [curve.cost(replicas + states) for states in range(MOST_STATES + 2)]
    floors: list[float] = []
    least = float("inf")
    for dearer, cost in zip(reversed(costs[1:]), reversed(costs[:-1]), strict=True):
        least = min(least, dearer - cost)
        floors.append(rate * least)
    drafter = curve.drafter
    state, call = (0.0, 0.0) if drafter is None else (rate * drafter.state, rate * drafter.call / drafting)
    return Price(tuple(reversed(floors)), state, call)


def propose_what_pays(
    drafter: Drafter, paces: Sequence[Pace], contexts: Sequence[DraftContext], idle: Mapping[Pace, int]
) -> list[DraftGraph]:
    """The drafts of `contexts` that pay, one graph a context and pace. idle: the replicas that the other rows of the
    forward take."""
    priced = price((*paces, *idle), len(contexts), len(contexts) + sum(idle.values()))
    asked = [replace(one, price=priced) for one in contexts]
    return allocate(paces, asked, drafter.propose(asked), list(idle), sum(idle.values()))


def allocate(
    paces: Sequence[Pace],
    contexts: Sequence[DraftContext],
    graphs: Sequence[DraftGraph],
    others: Sequence[Pace] = (),
    idle: int = 0,
) -> list[DraftGraph]:
    """The drafts of rows that share a forward, trimmed to those that pay, parents before children.

    paces, contexts, graphs: of the rows that draft; others: of the rows that don't, which take `idle` replicas.
    """
    curve = paces[0].curve
    commits = sum(one.commits for one in (*paces, *others)) + len(paces) + len(others)
    cost = sum(one.cost for one in (*paces, *others)) + sum(spent(curve, graphs))
    opening = max(0.0, (commits / cost if cost else 1 / curve.cost(1)) * curve.cost(2) - 1)
    order = _order(paces, contexts, graphs, opening)
    base = len(graphs) + idle
    best, kept = commits / (cost + curve.cost(base)), 0
    gained, replicas = 0.0, base
    for number, (worth, size, _, _) in enumerate(order, 1):
        gained += worth
        replicas += size
        rate = (commits + gained) / (cost + curve.cost(replicas))
        if rate > best:
            best, kept = rate, number
    chosen: list[list[int]] = [[] for _ in graphs]
    for _, _, row, node in order[:kept]:
        chosen[row].append(node)
    return [graph.trimmed(nodes) for graph, nodes in zip(graphs, chosen, strict=True)]


def spent(curve: CostCurve, graphs: Sequence[DraftGraph]) -> list[float]:
    """What drafting `graphs` in one proposal cost each row: its table, its states and its share of the calls."""
    calls = max(graph.calls for graph in graphs) / len(graphs)
    return [
        curve.round_extra + (0.0 if curve.drafter is None else curve.drafter.total(1, calls, graph.states_scored))
        for graph in graphs
    ]


@dataclass(frozen=True)
class Passed:
    """What a forward did for one row. replicas: those laid out; commits: made; graph: drafted, None where the drafter
    was not asked; accepted: drafts."""

    replicas: int
    commits: int
    graph: DraftGraph | None = None
    accepted: int = 0


def settle(paces: Sequence[Pace], rows: Sequence[Passed]) -> None:
    """Note one forward in its rows' paces. Roots share the cost of what was not drafted, drafted replicas the rest."""
    curve = paces[0].curve
    costs = iter(spent(curve, drafts) if (drafts := [one.graph for one in rows if one.graph is not None]) else ())
    roots = [one.replicas if one.graph is None else 1 for one in rows]
    drafted = sum(one.replicas for one in rows) - sum(roots)
    least = curve.cost(sum(roots))
    more = curve.cost(sum(roots) + drafted) - least
    for pace, one, root in zip(paces, rows, roots, strict=True):
        own = least * root / sum(roots)
        if one.graph is None:
            pace.passed(one.commits, own)
        else:
            extra = more * (one.replicas - root) / drafted if drafted else 0.0
            pace.drafted(one.graph, one.accepted, one.commits, own, extra, next(costs))


def _order(
    paces: Sequence[Pace], contexts: Sequence[DraftContext], graphs: Sequence[DraftGraph], opening: float
) -> list[tuple[float, int, int, int]]:
    """(worth, replicas, row, node) of every state in the order it is drafted in: by worth a replica, after its parent.

    A state that fills its block and goes no further is worth its mass and what the next block's undrafted opening would
    have cost.
    """
    heap: list[tuple[float, int, int]] = []
    children: list[dict[int, list[int]]] = []
    worths: list[list[tuple[float, int]]] = []
    for pace, context, graph in zip(paces, contexts, graphs, strict=True):
        trust, after = pace.trust, context.state.start + len(context.state.tokens)
        masked = len(context.state.masked_slots)
        below: dict[int, list[int]] = {}
        worth: list[tuple[float, int]] = []
        for node, depth in enumerate(_depths(graph)):
            fills = len(graph.commits[node]) == masked and all(position < after for position, _ in graph.commits[node])
            mass = graph.masses[node] * trust**depth
            worth.append((mass * (1 + opening), 2) if fills else (mass, 1))
            if node:
                below.setdefault(graph.parents[node], []).append(node)
        children.append(below)
        worths.append(worth)
    order: list[tuple[float, int, int, int]] = []

    def push(row: int, parent: int) -> None:
        for node in children[row].get(parent, ()):
            value, size = worths[row][node]
            heapq.heappush(heap, (-value / size, row, node))

    for row in range(len(graphs)):
        push(row, 0)
    while heap:
        _, row, node = heapq.heappop(heap)
        order.append((*worths[row][node], row, node))
        push(row, node)
    return order
