"""NFE of any drafter from recorded trajectories, with no target. Exact at temperature 0: it mimics the decode loop.

A block that no accepted draft opened starts with one draft-free round and goes on in drafted ones; a request's first,
where boundaries are seamless, in the forward that encodes its prompt, which is not counted. With separate boundaries a
block costs one cache-writing forward, unless it is the row's last. Drafts are accepted while the recorded step leads to
a drafted state, across a block's end as well. At temperature > 0 the same holds for drafters that read the table's
drawn tokens alone. Nobody records tables of unopened blocks, nor what rejected states say: a drafter that reads them is
counted as it drafts without, and takes fewer forwards when it decodes; one made to cross blocks is refused.
Knows nothing about training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spot_infer.allocate import Experience, Pace, Passed, allocate, price, settle, writes_apart
from spot_infer.blocks import BlockState, Step
from spot_infer.cost import CostCurve
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, Drafter, DraftGraph, Ending, crosses_blocks, tables_read
from spot_infer.presets import Preset
from spot_infer.replicas import lay_out
from spot_infer.requests import Boundary
from spot_train.trajectory import Trajectory

ANY_TOKEN = 2**63
"""More than any token id: a trajectory does not know its target's vocabulary."""
_MASK = -1


@dataclass(frozen=True)
class ReplayResult:
    """One trajectory's accounting. nfe: target forwards, cache writes included; draft_free_nfe: what the control
    needs; accepted: drafts, the target's own commits excluded; drafted_rounds: rounds with at least one draft; sizes:
    replicas of each forward, in order; proposals: rounds in which the drafter was asked; opened: the prompt's forward,
    which is not counted, opened the first block."""

    nfe: int
    draft_free_nfe: int
    rounds: int
    drafted_rounds: int
    accepted: int
    drafted: int
    drafter_calls: int
    states_scored: int
    sizes: tuple[int, ...] = ()
    proposals: int = 0
    opened: bool = False

    @property
    def reduction(self) -> float:
        """How many times fewer forwards than draft-free decoding."""
        return self.draft_free_nfe / self.nfe if self.nfe else 1.0


@dataclass(frozen=True)
class Drafted:
    """One drafted round, as an observer sees it. context, graph: what was asked and proposed; nodes: those passed, the
    root first; following: the target's own step at the last of them; block: the block's number in its trajectory."""

    context: DraftContext
    graph: DraftGraph
    nodes: tuple[int, ...]
    following: Step
    block: int


def draft_free(trajectory: Trajectory) -> ReplayResult:
    """What the control needs: a forward a step and one for each finished block that is written."""
    steps, blocks = len(trajectory), len(set(trajectory.block_start.tolist()))
    nfe = steps + (max(blocks - 1, 0) if trajectory.writes else 0)
    return ReplayResult(nfe, nfe, steps, 0, 0, 0, 0, 0, (1,) * nfe)


def replayable(drafter: Drafter) -> Drafter:
    """The drafter that decodes as replay counts it: without responses and tables of the next block, which a replay's
    contexts lack."""
    return Preset(response=0.0, ahead=False).apply(drafter)


class _Replay:
    """Where one trajectory stands. `step` is the next recorded step; roots are rebuilt from the recorded commits.
    `fused`: boundaries take no forward of their own; `opened`: nor does the first block's opening; `reads`: tables of a
    block that the drafter reads; `sizes`: replicas of every forward so far; `unread`: first steps, whose tables were
    not read while it rested."""

    def __init__(
        self, request: int, trajectory: Trajectory, boundary: Boundary, reads: int, pace: Pace | None = None
    ) -> None:
        self.request = request
        self.trajectory = trajectory
        self.steps = [trajectory.step(index) for index in range(len(trajectory))]
        self.starts = trajectory.block_start.tolist()
        self.block_length = trajectory.block_tokens.shape[-1]
        self.step = 0
        self.state: BlockState | None = None
        self.fused, self.reads = boundary != "separate", reads
        self.opened = boundary == "seamless" and bool(self.starts) and self.starts[0] > 0
        self.pace = pace
        self.resting = False
        self.unread = 0
        self.sizes: list[int] = []
        names = ("rounds", "proposals", "drafted_rounds", "accepted", "drafted", "calls", "scored")
        self.counts = dict.fromkeys(names, 0)
        self._open()

    def _open(self) -> None:
        """Commit opening rounds until a root with something to draft, or the end."""
        while self.step < len(self.steps):
            start = self.starts[self.step]
            size = 1
            if self.state is None or self.state.start != start:
                finished = self.trajectory.writes and self.state is not None
                if finished and (not self.fused or self._writes_apart):
                    self._forwarded(Passed(1, 0))
                elif finished:
                    size = 2
            elif not self.resting and (len(self.state.masked_slots) > 1 or self._completes):
                return
            self.counts["rounds"] += 1
            step = self.steps[self.step]
            self._commit(step)
            self._forwarded(Passed(size, len(step)), of_prompt=self.opened and self.step == 1)

    def _forwarded(self, passed: Passed, of_prompt: bool = False) -> None:
        """Note a forward."""
        if not of_prompt:
            self.sizes.append(passed.replicas)
        if self.pace is not None:
            settle([self.pace], [passed])
            self.resting = not self.pace.drafts()
            self.unread = self.step if self.resting else self.unread

    @property
    def _writes_apart(self) -> bool:
        return self.resting and self.pace is not None and writes_apart(self.pace.curve, 1)

    @property
    def _end(self) -> int:
        """First position that no drafted state reaches."""
        limit = self.trajectory.max_new_tokens
        if not self.trajectory.writes or limit is None:
            return int(self.starts[self.step]) + self.block_length
        return self.trajectory.prompt_length + limit

    @property
    def _ending(self) -> Ending | None:
        one = self.trajectory
        if one.max_new_tokens is None:
            return None
        return Ending(one.prompt_length, one.prompt_length + one.max_new_tokens, frozenset(one.stop_ids))

    @property
    def _completes(self) -> bool:
        return self.fused and self.starts[self.step] + self.block_length < self._end

    def _opened(self, start: int) -> BlockState:
        tokens = self.trajectory.block_tokens[(start - self.starts[0]) // self.block_length].tolist()
        for slot in self.trajectory.table(self.step).slots.tolist():
            tokens[slot] = _MASK
        return BlockState(start, tuple(tokens), _MASK)

    def _commit(self, step: Step) -> None:
        start = self.starts[self.step]
        if self.state is None or self.state.start != start:
            self.state = self._opened(start)
        tokens = list(self.state.tokens)
        for position, token in step:
            tokens[position - start] = token
        self.state = BlockState(start, tuple(tokens), _MASK)
        self.step += 1

    def context(self, budget: int, floor: float, temperature: float) -> DraftContext:
        assert self.state is not None
        recent = range(self.step - 1, max(self.unread, self.step - self.reads) - 1, -1)
        start = self.starts[self.step]
        tables = tuple(self.trajectory.table(step) for step in recent if self.starts[step] == start)
        return DraftContext(
            self.request,
            self.state,
            tables,
            budget,
            floor,
            temperature,
            completes=self._completes,
            ending=self._ending,
        )

    def advance(self, context: DraftContext, graph: DraftGraph) -> Drafted:
        """Accept what the recorded steps lead to, then the target's own commit; open what comes next."""
        size = len(lay_out((), context.state, graph, self._end, ANY_TOKEN).replicas)
        self.counts["rounds"] += 1
        self.counts["proposals"] += 1
        self.counts["drafted_rounds"] += len(graph) > 0
        self.counts["drafted"] += len(graph)
        self.counts["calls"] += graph.calls
        self.counts["scored"] += graph.states_scored
        node: int | None = 0
        nodes: list[int] = []
        start, first = self.starts[self.step], self.step
        while node is not None and self.step < len(self.steps):
            nodes.append(node)
            step = self.steps[self.step]
            node = graph.child(node, step)
            self._commit(step)
        self.counts["accepted"] += len(nodes) - 1
        commits = sum(map(len, self.steps[first : self.step]))
        self._forwarded(Passed(size, commits, graph, len(nodes) - 1))
        block = (start - self.starts[0]) // self.block_length
        self._open()
        return Drafted(context, graph, tuple(nodes), step, block)

    @property
    def done(self) -> bool:
        return self.step >= len(self.steps)

    def result(self) -> ReplayResult:
        counts = self.counts
        return ReplayResult(
            nfe=len(self.sizes),
            draft_free_nfe=draft_free(self.trajectory).nfe,
            rounds=counts["rounds"],
            drafted_rounds=counts["drafted_rounds"],
            accepted=counts["accepted"],
            drafted=counts["drafted"],
            drafter_calls=counts["calls"],
            states_scored=counts["scored"],
            sizes=tuple(self.sizes),
            proposals=counts["proposals"],
            opened=self.opened,
        )


def replay(
    drafter: Drafter,
    trajectories: Sequence[Trajectory],
    budget: int,
    floor: float = 0.0,
    temperature: float = 0.0,
    batch_size: int = 64,
    boundary: Boundary = "auto",
    curve: CostCurve | None = None,
    observe: Callable[[Drafted], None] = lambda drafted: None,
) -> list[ReplayResult]:
    """One result a trajectory, in order; `batch_size` of them draft together. Request indices are list indices.

    `curve`: what replicas cost, where every round drafts only what pays, as requests decoded one after the other do.
    `observe` sees every drafted round. Raises SpotError for a drafter that was made to cross blocks, and where
    boundaries are fused and a trajectory does not know its limit or its target caches no block.
    """
    if crosses_blocks(drafter):
        raise SpotError(
            "this drafter reads tables of blocks that are not open yet, which shards do not record; decode with the "
            "target instead, or turn the drafter's cross_block off"
        )
    run = Experience()
    batch_size = batch_size if curve is None else 1
    results: list[ReplayResult | None] = [None] * len(trajectories)
    waiting = iter(range(len(trajectories)))
    active: list[_Replay] = []
    while True:
        for one in active:
            if one.done:
                results[one.request] = one.result()
        active = [one for one in active if not one.done]
        while len(active) < batch_size and (index := next(waiting, None)) is not None:
            trajectory = trajectories[index]
            pace = None if curve is None else Pace(curve, run)
            active.append(_Replay(index, trajectory, _in_force(trajectory, boundary), tables_read(drafter), pace))
        drafting = [one for one in active if not one.done]
        if not active:
            break
        if drafting:
            contexts = [one.context(budget, floor, temperature) for one in drafting]
            for one, context, graph in zip(drafting, contexts, _proposed(drafter, drafting, contexts), strict=True):
                observe(one.advance(context, graph))
    return [result for result in results if result is not None]


def _proposed(drafter: Drafter, drafting: Sequence[_Replay], contexts: Sequence[DraftContext]) -> list[DraftGraph]:
    """What is drafted: all that the drafter proposes or, where drafts have to pay, what each row alone would keep."""
    paces = [one.pace for one in drafting if one.pace is not None]
    if not paces:
        return drafter.propose(contexts)
    priced = [replace(context, price=price([pace], 1, 1)) for pace, context in zip(paces, contexts, strict=True)]
    graphs = drafter.propose(priced)
    return [allocate([pace], [context], [graph])[0] for pace, context, graph in zip(paces, priced, graphs, strict=True)]


def _in_force(trajectory: Trajectory, boundary: Boundary) -> Boundary:
    """What the decoder makes of `boundary` for what was recorded."""
    if boundary == "auto":
        boundary = "seamless" if trajectory.writes else "separate"
    if boundary != "separate" and not trajectory.writes:
        raise SpotError("these trajectories are of a target that caches no block; use boundary separate")
    if boundary != "separate" and trajectory.max_new_tokens is None:
        raise SpotError(f"replay with {boundary} boundaries needs the limit that the trajectories were recorded under")
    return boundary


def mean_reduction(results: Sequence[ReplayResult]) -> float:
    """Forwards of the control over forwards of the drafted run, summed over rows."""
    nfe = sum(result.nfe for result in results)
    return sum(result.draft_free_nfe for result in results) / nfe if nfe else 1.0


def replay_summary(results: Sequence[ReplayResult]) -> dict[str, float]:
    """Means a row (nfe, rounds, accepted a drafted round, states scored) and the reduction of the sums."""
    rows = max(len(results), 1)
    drafted_rounds = sum(result.drafted_rounds for result in results)
    return {
        "nfe": float(np.sum([result.nfe for result in results])) / rows,
        "draft_free_nfe": float(np.sum([result.draft_free_nfe for result in results])) / rows,
        "reduction": mean_reduction(results),
        "accepted_per_round": sum(result.accepted for result in results) / max(drafted_rounds, 1),
        "drafter_calls": float(np.sum([result.drafter_calls for result in results])) / rows,
        "states_scored": float(np.sum([result.states_scored for result in results])) / rows,
    }


def steps_of(trajectory: Trajectory) -> list[Step]:
    """All recorded steps in order, as an oracle reads them."""
    return [trajectory.step(index) for index in range(len(trajectory))]
