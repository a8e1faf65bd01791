"""How often a stale proposal survives a fresh forward, per verifier (paper sections 3.2 and 4.3, appendix B).

A pair is one commit's slot seen twice: its law some steps before the commit (stale) and its law when it was made
(fresh); a draft at depth d is d + 1 steps old. Everything but the pairs is in closed form, so nothing is simulated.
Knows nothing of drafters: the slot is taken as right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from spot_infer.answers import read_tables
from spot_infer.blocks import BlockState, Step, open_block
from spot_infer.packing import Replica, RowStates, pack
from spot_infer.rejection import proposal_law
from spot_infer.requests import Request
from spot_infer.table import StaleTable
from spot_infer.targets.protocol import Target
from spot_infer.transition import Sampling, token_law
from spot_train.trajectory import Trajectory

Law = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """One commit. stale, fresh: the target's laws over the same tokens [V]; proposal: the law that a stale table holds
    of it (top 32, rounded), which rejection sampling draws from."""

    stale: Law
    fresh: Law
    proposal: Law


@dataclass(frozen=True)
class Agreement:
    """Per pair [M]. delta: total variation of stale and fresh; coupled: probability that both draw one token under the
    same Gumbel row; bound: its least value, (1 - delta) / (1 + delta); uncoupled: probability that the target draws the
    stale argmax; independent: that it draws what an independent draw from the stale law gives; rejection: probability
    that a token drawn from the proposal law is accepted, 1 - TV."""

    delta: Law
    bound: Law
    coupled: Law
    uncoupled: Law
    independent: Law
    rejection: Law

    def means(self) -> dict[str, float]:
        """Mean of every measure; empty without pairs."""
        return {field.name: float(getattr(self, field.name).mean()) for field in fields(self) if len(self.delta)}


def total_variation(p: Law, q: Law) -> Law:
    """Total variation [...] of laws [..., V]."""
    return np.abs(p - q).sum(axis=-1) / 2


def coupled_agreement(p: Law, q: Law) -> Law:
    """Probability that argmax(log p + G) = argmax(log q + G) for one Gumbel row G; p, q [..., V], result [...].

    The sum over v of 1 / sum_w max(p_w / p_v, q_w / q_v): sorted by p_w / q_w, the maximum is the second ratio before v
    and the first from v on.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((p > 0) | (q > 0), p / q, 0.0)
    order = np.argsort(ratio, axis=-1)
    p, q = np.take_along_axis(p, order, -1), np.take_along_axis(q, order, -1)
    from_here = np.cumsum(p[..., ::-1], axis=-1)[..., ::-1]
    before = np.cumsum(q, axis=-1) - q
    both = (p > 0) & (q > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        agreed = np.where(both, 1 / (from_here / p + before / q), 0.0)
    return agreed.sum(axis=-1)


def coupling_bound(delta: Law) -> Law:
    """The least coupled agreement at total variation `delta`: (1 - delta) / (1 + delta)."""
    return (1 - delta) / (1 + delta)


def agreement(pairs: Iterable[Pair]) -> Agreement:
    """Every measure of `pairs`."""
    rows = [_measures(pair) for pair in pairs]
    return Agreement(*(np.array(column) for column in zip(*rows, strict=True))) if rows else _nothing()


def _measures(pair: Pair) -> tuple[float, ...]:
    delta = total_variation(pair.stale, pair.fresh)
    return (
        float(delta),
        float(coupling_bound(delta)),
        float(coupled_agreement(pair.stale, pair.fresh)),
        float(pair.fresh[pair.stale.argmax()]),
        float(pair.stale @ pair.fresh),
        float(1 - total_variation(pair.proposal, pair.fresh)),
    )


def _nothing() -> Agreement:
    return Agreement(*(np.zeros(0) for _ in fields(Agreement)))


def live_pairs(
    target: Target, request: Request, steps: Sequence[Step], sampling: Sampling, age: int = 1
) -> Iterator[Pair]:
    """Pairs over the whole vocabulary along `steps`, a request's committed steps; one forward a block.

    sampling.temperature > 0; the steps may come from a run at any temperature. age: steps between stale and fresh, in
    one block.
    """
    length = target.spec.block_length
    canvas = list(request.prompt_ids)
    for start, group in groupby(steps, key=lambda step: min(step).position // length * length):
        states = [open_block(canvas, start, length, target.spec.mask_id)]
        block_steps = list(group)
        for step in block_steps:
            states.append(states[-1].with_commits(step))
        yield from _block_pairs(target, canvas[:start], states[:-1], block_steps, sampling, age)
        canvas[start:] = states[-1].tokens


def _block_pairs(
    target: Target,
    prefix: Sequence[int],
    states: Sequence[BlockState],
    steps: Sequence[Step],
    sampling: Sampling,
    age: int,
) -> Iterator[Pair]:
    with torch.inference_mode():
        cache = target.new_cache()
        row = cache.add_row()
        target.prefill(cache, [row], [prefix])
        packed = pack([RowStates(row, len(prefix), [Replica(state) for state in states])], "batch", target.device)
        hidden = target.forward(packed, cache)
        start = states[0].start
        tables = read_tables(target, packed, hidden, Sampling(), [(index, start, None) for index in range(len(states))])
        forbidden = torch.tensor(target.spec.forbidden_ids, device=hidden.device)
        for index in range(age, len(states)):
            for position, _ in sorted(steps[index]):
                rows = [
                    packed.state_start[state] + states[state].masked_slots.index(position - start)
                    for state in (index - age, index)
                ]
                stale, fresh = token_law(target.logits(hidden[rows]), sampling, forbidden).exp().cpu().numpy()
                yield Pair(stale, fresh, _proposal(tables[index - age], position - start, sampling, len(stale)))


def _proposal(table: StaleTable, slot: int, sampling: Sampling, vocab_size: int) -> Law:
    row = table.slots.tolist().index(slot)
    known = table.top_token[row] >= 0
    law = np.zeros(vocab_size)
    law[table.top_token[row][known]] = proposal_law(table, sampling)[row][known]
    return law


def recorded_pairs(trajectory: Trajectory, sampling: Sampling, age: int = 1) -> Iterator[Pair]:
    """Pairs from a recorded trajectory, whose laws are those of its tables: the 32 likeliest tokens, renormalised.

    sampling.temperature > 0, whatever the trajectory was recorded at; the proposal is the stale law itself.
    """
    for index in range(age, len(trajectory)):
        start = int(trajectory.block_start[index])
        if start != trajectory.block_start[index - age]:
            continue
        tables = trajectory.table(index - age), trajectory.table(index)
        vocab_size = 1 + max(int(table.top_token.max()) for table in tables)
        for position, _ in sorted(trajectory.step(index)):
            stale, fresh = (_proposal(table, position - start, sampling, vocab_size) for table in tables)
            yield Pair(stale, fresh, stale)
