"""Oracles: drafters that know part of the answer, to see what that part is worth (paper section 3.1).

They look the answer up in the recorded trajectory of the draft-free control, so no look-ahead forward has to be
subtracted. `position` knows the slots and takes stale tokens, `token` knows the tokens and takes the stale-confidence
order, `joint` knows both. Where the context completes, all of them fill the block, and `joint`, which needs no table,
runs on into the next ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from spot_infer.blocks import Commit, Step
from spot_infer.drafters.chain import chain_graph
from spot_infer.drafters.hypotheses import token_hypotheses
from spot_infer.drafters.stale import slots_per_step, stale_order
from spot_infer.graph import DraftContext, DraftGraph
from spot_infer.transition import CommitRule

OracleKind = Literal["position", "token", "joint"]


class OracleDrafter:
    """A chain from the control; `trajectories` maps a request's index to its draft-free steps, in order."""

    def __init__(
        self, kind: OracleKind, trajectories: Mapping[int, Sequence[Step]], rule: CommitRule | None = None
    ) -> None:
        if kind not in ("position", "token", "joint"):
            raise ValueError(f"oracle kind is {kind!r}; use position, token or joint")
        self.kind = kind
        self.trajectories = trajectories
        self.rule = rule or CommitRule()

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        return [self._chain(context) for context in contexts]

    def _chain(self, context: DraftContext) -> DraftGraph:
        beyond = self.kind == "joint" and context.completes
        future = future_steps(context, self.trajectories[context.request], beyond)
        if self.kind == "joint":
            return _steps_graph(context, future)
        start = context.state.start
        slots = context.tables[0].slots.tolist()
        stale = {slot: pairs[0][0] for slot, pairs in zip(slots, token_hypotheses(context), strict=True)}
        if self.kind == "position":
            return _steps_graph(
                context,
                [frozenset(Commit(position, stale[position - start]) for position, _ in step) for step in future],
            )
        true = {commit.position: commit.token for step in future for commit in step}
        order = [slots[index] for index in stale_order(context, self.rule)]
        commits = [(Commit(start + slot, true.get(start + slot, stale[slot])), 1.0) for slot in order]
        return chain_graph(context, commits, slots_per_step(self.rule))


def future_steps(context: DraftContext, steps: Sequence[Step], beyond: bool = False) -> list[Step]:
    """The control's steps on slots still masked in the root, in its block or, with `beyond`, in those after it too."""
    start = context.state.start
    left = {start + slot for slot in context.state.masked_slots}
    if beyond:
        after = start + len(context.state.tokens)
        left |= {commit.position for step in steps for commit in step if commit.position >= after}
    return [step for step in steps if step and all(commit.position in left for commit in step)]


def _steps_graph(context: DraftContext, steps: Sequence[Step]) -> DraftGraph:
    graph = DraftGraph()
    node = 0
    room, after = context.room, context.state.start + len(context.state.tokens)
    for step in steps[: context.budget]:
        room -= sum(commit.position < after for commit in step)
        if room < 0:
            break
        node = graph.add(node, step, 1.0)
    return graph
