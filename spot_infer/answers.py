"""What the target answers at every masked slot of a packed forward, computed in chunks over slots.

The vocabulary projection runs at masked slots only, a chunk at a time; logits of all replicas never exist at once.
A token is drawn only at the slots that commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from spot_infer.blocks import Commit, Step
from spot_infer.fixed_shape import HEAD_ROWS, FixedShapeTarget, fill_rows
from spot_infer.graph import Proposal
from spot_infer.noise import GumbelNoise
from spot_infer.packing import Packed
from spot_infer.rejection import accept_or_replace
from spot_infer.table import StaleTable, split_table, stale_table
from spot_infer.targets.protocol import Target
from spot_infer.transition import CommitRule, Sampling, confidence, draw, pick, ranking_values, select_slots, token_law

Outcome = TypeVar("Outcome")
_CHUNK_ELEMENTS = 2**25
ReadState = tuple[int, int, GumbelNoise | None]
"""A state to read: its index in the packed forward, its block's start, the request's noise at temperature > 0."""


@dataclass(frozen=True)
class Answers:
    """Per masked slot of a state: ranking value, log-odds and best token [m] each. The values and log-odds are those of
    the rule's temperature, 1 for every rule but those of published decoders."""

    values: list[float]
    log_odds: list[float]
    best: list[int]


@runtime_checkable
class WatchedTarget(Protocol):
    """A target that watches what is done with its logits."""

    def read(self, hidden: Tensor, read: Callable[[Tensor], Outcome]) -> Outcome:
        """`read` of the logits of hidden [m, H]."""
        ...


def chunk_rows(vocab_size: int) -> int:
    """Slots projected to the vocabulary at once."""
    return max(1, _CHUNK_ELEMENTS // vocab_size)


def _project(target: Target, hidden: Tensor, read: Callable[[Tensor], Outcome]) -> Outcome:
    return target.read(hidden, read) if isinstance(target, WatchedTarget) else read(target.logits(hidden))


def read_logits(target: Target, hidden: Tensor, read: Callable[[Tensor], Sequence[Tensor]]) -> list[Tensor]:
    """The columns [M, ...] that `read` makes of the logits of hidden [M, H], row by row, a chunk at a time.

    Chunks of a target of fixed shape are filled up, so that a row's bits don't depend on how many others are read.
    """
    fixed = isinstance(target, FixedShapeTarget)
    parts: list[list[Tensor]] = []
    for rows in hidden.split(HEAD_ROWS if fixed else chunk_rows(target.spec.vocab_size)):
        columns = _project(target, fill_rows(rows) if fixed else rows, read)
        parts.append([column[: len(rows)] for column in columns])
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def read_answers(
    target: Target, packed: Packed, hidden: Tensor, rule: CommitRule, states: Sequence[int]
) -> dict[int, Answers]:
    """Project the hidden [M, H] of `states` and keep what the commit rule needs, by state."""
    forbidden = torch.tensor(target.spec.forbidden_ids, device=hidden.device)

    def read(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ranked = logits if rule.temperature == 1 else logits / rule.temperature
        log_odds, best, _ = confidence(ranked, forbidden)
        return ranking_values(log_odds, rule, ranked, forbidden), log_odds, best

    slots = [range(packed.state_start[state], packed.state_start[state + 1]) for state in states]
    rows = [row for own in slots for row in own]
    if not rows:
        return {}
    columns = [column.tolist() for column in read_logits(target, hidden[rows], read)]
    ends = accumulate(map(len, slots))
    return {
        state: Answers(*(column[end - len(own) : end] for column in columns))
        for state, own, end in zip(states, slots, ends, strict=True)
    }


def steps_of_states(
    target: Target,
    packed: Packed,
    hidden: Tensor,
    answers: Mapping[int, Answers],
    rule: CommitRule,
    sampling: Sampling,
    states: Sequence[ReadState],
    committed: Mapping[int, int] | None = None,
    proposals: Mapping[int, Proposal] | None = None,
) -> dict[int, Step]:
    """The transition at each of `states`.

    `committed`: commits in a state's block since it opened, by state index, for a rule that asks; 0 where missing.
    `proposals`, of the states that have one, are accepted or replaced by rejection sampling (paper appendix B).
    """
    committed = committed or {}
    chosen: list[tuple[int, int, int]] = []
    for state, start, _ in states:
        own, first = answers[state], packed.state_start[state]
        picks = select_slots(own.values, own.log_odds, rule, committed.get(state, 0))
        chosen += [(state, first + pick, start) for pick in picks]
    slots = packed.read_slot[[row for _, row, _ in chosen]].tolist()
    positions = [start + slot for (_, _, start), slot in zip(chosen, slots, strict=True)]
    if sampling.temperature == 0 or not chosen:
        tokens = [answers[state].best[row - packed.state_start[state]] for state, row, _ in chosen]
    else:
        noise_of = {state: noise for state, _, noise in states}
        noises = [noise_of[state] for state, _, _ in chosen]
        known = [(proposals or {}).get(state) for state, _, _ in chosen]
        links = [
            one if one is not None and one.commit.position == position else None
            for one, position in zip(known, positions, strict=True)
        ]
        tokens = _draw_rows(target, hidden, [row for _, row, _ in chosen], positions, noises, sampling, links)
    steps: dict[int, set[Commit]] = {}
    for (state, _, _), position, token in zip(chosen, positions, tokens, strict=True):
        steps.setdefault(state, set()).add(Commit(position, token))
    return {state: frozenset(commits) for state, commits in steps.items()}


def _draw_rows(
    target: Target,
    hidden: Tensor,
    rows: list[int],
    positions: list[int],
    noises: Sequence[GumbelNoise | None],
    sampling: Sampling,
    links: Sequence[Proposal | None],
) -> list[int]:
    """The tokens committed at `rows` of hidden; a row's link, if any, is a proposal for its position."""
    forbidden = torch.tensor(target.spec.forbidden_ids, device=hidden.device)
    tokens: list[int] = []
    size = chunk_rows(target.spec.vocab_size)
    for first in range(0, len(rows), size):
        part = slice(first, first + size)
        (log_law,) = read_logits(target, hidden[rows[part]], lambda logits: (token_law(logits, sampling, forbidden),))
        noise = _noise_rows(noises[part], positions[part]).to(hidden.device)
        tokens += accept_or_replace(log_law, pick(log_law, noise), noise, links[part]).tolist()
    return tokens


def _noise_rows(noises: Sequence[GumbelNoise | None], positions: Sequence[int]) -> Tensor:
    rows = [noise.rows([position]) for noise, position in zip(noises, positions, strict=True) if noise is not None]
    return torch.cat(rows)


def read_tables(
    target: Target,
    packed: Packed,
    hidden: Tensor,
    sampling: Sampling,
    states: Sequence[ReadState],
) -> list[StaleTable]:
    """The stale tables of `states`, in that order."""
    forbidden = torch.tensor(target.spec.forbidden_ids, device=hidden.device)
    tables: list[StaleTable] = []
    group: list[ReadState] = []
    limit = chunk_rows(target.spec.vocab_size)

    def flush() -> None:
        counts = [packed.state_start[state + 1] - packed.state_start[state] for state, _, _ in group]
        rows = [row for state, _, _ in group for row in range(packed.state_start[state], packed.state_start[state + 1])]
        slots = packed.read_slot[rows]
        noise = None
        if sampling.temperature > 0:
            starts = [start for (_, start, _), count in zip(group, counts, strict=True) for _ in range(count)]
            noises = [noise for (_, _, noise), count in zip(group, counts, strict=True) for _ in range(count)]
            positions = [start + slot for start, slot in zip(starts, slots.tolist(), strict=True)]
            noise = _noise_rows(noises, positions).to(hidden.device)

        def read(logits: Tensor) -> StaleTable:
            drawn = None if noise is None else draw(logits, noise, sampling, forbidden)
            return stale_table(slots, logits, *confidence(logits, forbidden), forbidden, drawn)

        tables.extend(split_table(_project(target, hidden[rows], read), counts))

    pending = 0
    for entry in states:
        count = packed.state_start[entry[0] + 1] - packed.state_start[entry[0]]
        if group and pending + count > limit:
            flush()
            group, pending = [], 0
        group.append(entry)
        pending += count
    if group:
        flush()
    return tables
