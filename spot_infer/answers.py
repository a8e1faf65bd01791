"""What the target answers at every masked slot of a packed forward, computed in chunks over slots.

The vocabulary projection runs at masked slots only, a chunk at a time; logits of all replicas never exist at once.
A token is drawn only at the slots that commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from spot_infer.transition import (
    CommitRule,
    Sampling,
    confidence,
    draw,
    draw_from_all,
    pick,
    ranking_values,
    select_slots,
    token_law,
)

Outcome = TypeVar("Outcome")
_CHUNK_ELEMENTS = 2**25
ReadState = tuple[int, int, GumbelNoise | None]
"""A state to read: its index in the packed forward, its block's start, the request's noise at temperature > 0."""
_Place = tuple[GumbelNoise | None, int]
"""A position of a request."""
_GREEDY = Sampling()


@dataclass(frozen=True)
class Answers:
    """Per masked slot of a state: ranking value, log-odds, best token, and the token that an unfiltered draw would
    commit [m] each. The values and log-odds are those of the rule's temperature, 1 for every rule but those of
    published decoders."""

    values: list[float]
    log_odds: list[float]
    best: list[int]
    drawn: list[int]


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


def read_logits(target: Target, hidden: Tensor, read: Callable[[slice, Tensor], Sequence[Tensor]]) -> list[Tensor]:
    """The columns [M, ...] that `read` makes of the logits of hidden [M, H], row by row, a chunk at a time; it is told
    which rows those are.

    Chunks of a target of fixed shape are filled up with rows that are read and dropped, so that a row's bits don't
    depend on how many others there are.
    """
    fixed = isinstance(target, FixedShapeTarget)
    size = HEAD_ROWS if fixed else chunk_rows(target.spec.vocab_size)
    parts: list[list[Tensor]] = []
    for first in range(0, len(hidden), size):
        part = slice(first, min(first + size, len(hidden)))
        rows = fill_rows(hidden[part]) if fixed else hidden[part]
        columns = _project(target, rows, partial(read, part))
        parts.append([column[: part.stop - first] for column in columns])
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def read_answers(
    target: Target,
    packed: Packed,
    hidden: Tensor,
    rule: CommitRule,
    states: Sequence[ReadState],
    sampling: Sampling = _GREEDY,
) -> dict[int, Answers]:
    """Project the hidden [M, H] of `states` and keep what the commit rule needs, by state.

    sampling: how tokens are drawn everywhere, for drafting alone, where a filter is not worth its sort; at temperature
    0 they are the best ones.
    """
    forbidden = torch.tensor(target.spec.forbidden_ids, device=hidden.device)
    rows = _rows_of(packed, states)
    if not rows:
        return {}
    places = _places(packed, states, rows) if sampling.temperature > 0 else []

    def read(part: slice, logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ranked = logits if rule.temperature == 1 else logits / rule.temperature
        log_odds, best, _ = confidence(ranked, forbidden)
        values = ranking_values(log_odds, rule, ranked, forbidden)
        if not places:
            return values, log_odds, best, best
        noise = _noise_rows(places[part], logits.device)
        return values, log_odds, best, draw_from_all(logits[: len(noise)], noise, sampling.temperature, forbidden)

    columns = [column.tolist() for column in read_logits(target, hidden[rows], read)]
    counts = _counts(packed, states)
    return {
        state: Answers(*(column[end - count : end] for column in columns))
        for (state, _, _), count, end in zip(states, counts, accumulate(counts), strict=True)
    }


def _counts(packed: Packed, states: Sequence[ReadState]) -> list[int]:
    """How many masked slots each of `states` has."""
    return [packed.state_start[state + 1] - packed.state_start[state] for state, _, _ in states]


def _rows_of(packed: Packed, states: Sequence[ReadState]) -> list[int]:
    """Where the hidden states of their masked slots are, state by state."""
    return [row for state, _, _ in states for row in range(packed.state_start[state], packed.state_start[state + 1])]


def _places(packed: Packed, states: Sequence[ReadState], rows: Sequence[int]) -> list[_Place]:
    """The noise and the absolute position of each of their `rows`."""
    counts = _counts(packed, states)
    own = [(noise, start) for (_, start, noise), count in zip(states, counts, strict=True) for _ in range(count)]
    slots = packed.read_slot[rows].tolist()
    return [(noise, start + slot) for (noise, start), slot in zip(own, slots, strict=True)]


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
        places = [(noise_of[state], position) for (state, _, _), position in zip(chosen, positions, strict=True)]
        known = [(proposals or {}).get(state) for state, _, _ in chosen]
        links = [
            one if one is not None and one.commit.position == position else None
            for one, position in zip(known, positions, strict=True)
        ]
        tokens = _draw_rows(target, hidden, [row for _, row, _ in chosen], places, sampling, links)
    steps: dict[int, set[Commit]] = {}
    for (state, _, _), position, token in zip(chosen, positions, tokens, strict=True):
        steps.setdefault(state, set()).add(Commit(position, token))
    return {state: frozenset(commits) for state, commits in steps.items()}


def _draw_rows(
    target: Target,
    hidden: Tensor,
    rows: list[int],
    places: Sequence[_Place],
    sampling: Sampling,
    links: Sequence[Proposal | None],
) -> list[int]:
    """The tokens committed at `rows` of hidden; a row's link, if any, is a proposal for its position."""
    forbidden = torch.tensor(target.spec.forbidden_ids, device=hidden.device)

    def read(part: slice, logits: Tensor) -> tuple[Tensor]:
        noise = _noise_rows(places[part], logits.device)
        log_law = token_law(logits, sampling, forbidden)[: len(noise)]
        return (accept_or_replace(log_law, pick(log_law, noise), noise, links[part]),)

    (tokens,) = read_logits(target, hidden[rows], read)
    return [int(token) for token in tokens.tolist()]


def _noise_rows(places: Sequence[_Place], device: torch.device) -> Tensor:
    """float64 [len(places), V] on `device`."""
    row_of = {place: row for row, place in enumerate(dict.fromkeys(places))}
    rows = [noise.rows([position], device) for noise, position in row_of if noise is not None]
    return torch.cat(rows)[[row_of[place] for place in places]]


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
        rows = _rows_of(packed, group)
        slots = packed.read_slot[rows]
        noise = None
        if sampling.temperature > 0:
            noise = _noise_rows(_places(packed, group, rows), hidden.device)

        def read(logits: Tensor) -> StaleTable:
            drawn = None if noise is None else draw(logits, noise, sampling, forbidden)
            return stale_table(slots, logits, *confidence(logits, forbidden), forbidden, drawn)

        tables.extend(split_table(_project(target, hidden[rows], read), _counts(packed, group)))

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
