"""Replicas -> one forward: input ids, positions, attention mask and where to read (paper appendix D.2).

A replica is one block state laid out behind its row's cached prefix. It attends to that prefix and to itself only, so
its logits are what the target would compute at that state alone. Two layouts, same answers: `concat` puts a row's
replicas in one sequence under a block-diagonal mask, `batch` gives each replica a sequence of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spot_infer.blocks import BlockState

Layout = Literal["auto", "concat", "batch"]
"""`auto` is `batch` on a CPU, where attention across the block diagonal costs more than it saves, else `concat`."""


def resolve_layout(layout: Layout, device: torch.device) -> Layout:
    """What `auto` means on `device`."""
    if layout != "auto":
        return layout
    return "batch" if device.type == "cpu" else "concat"


@dataclass(frozen=True)
class RowStates:
    """One row's replicas: the prefix-cache row they attend to, that prefix's length, the states, and which are read."""

    row: int
    prefix_length: int
    states: tuple[BlockState, ...]
    read: bool = True


@dataclass(frozen=True)
class Packed:
    """One target forward over N sequences of Q tokens, S states in all, M slots to read.

    input_ids, position_ids int64 [N, Q]; attention_mask bool [N, 1, Q, P + Q], True where a query attends, the first P
    keys being the cached prefix of `cache_rows[n]` (padded to the longest prefix P) and the rest the sequence itself.
    read_index int64 [M]: rows of the flattened [N * Q] output that predict the masked slots, state by state;
    read_slot int64 [M]; state_start [S + 1]: state s reads rows state_start[s]..state_start[s + 1].
    row_states [B + 1]: input row b owns states row_states[b]..row_states[b + 1]; row_sequences [B]: its sequences.
    sequence_of, offset_of [S]: where in the N sequences state s lies.
    """

    input_ids: Tensor
    position_ids: Tensor
    attention_mask: Tensor
    cache_rows: Tensor
    read_index: Tensor
    read_slot: Tensor
    state_start: tuple[int, ...]
    row_states: tuple[int, ...]
    row_sequences: tuple[int, ...]
    sequence_of: tuple[int, ...]
    offset_of: tuple[int, ...]
    prefix_width: int

    @property
    def positions_forwarded(self) -> int:
        """Token positions computed by this forward, padding included."""
        return self.input_ids.numel()

    def positions_of(self, row: int) -> int:
        """Token positions computed for input row `row`, padding included."""
        return self.row_sequences[row] * self.input_ids.shape[1]


def pack(rows: Sequence[RowStates], layout: Layout, device: torch.device | str = "cpu", pad_states: int = 0) -> Packed:
    """Lay out every row's states. Each row is padded with dummy replicas to at least `pad_states` states."""
    block_length = len(rows[0].states[0].tokens)
    widest = max(pad_states, *(len(row.states) for row in rows))
    per_sequence = widest if layout == "concat" else 1
    sequences: list[list[BlockState | None]] = []
    sequence_rows: list[RowStates] = []
    sequence_of: list[int] = []
    offset_of: list[int] = []
    row_states = [0]
    row_sequences: list[int] = []
    for row in rows:
        slots: list[BlockState | None] = list(row.states)
        slots += [None] * (max(pad_states, len(slots)) - len(slots))
        first = len(sequences)
        for index in range(len(row.states)):
            sequence_of.append(first + index // per_sequence)
            offset_of.append(index % per_sequence * block_length)
        if layout == "concat":
            slots += [None] * (widest - len(slots))
        groups = [slots[i : i + per_sequence] for i in range(0, len(slots), per_sequence)]
        sequences += groups
        sequence_rows += [row] * len(groups)
        row_sequences.append(len(groups))
        row_states.append(len(sequence_of))
    input_ids, position_ids = _tokens(sequences, sequence_rows, block_length)
    width = per_sequence * block_length
    read_index, read_slot, state_start = _reads(rows, sequence_of, offset_of, width)
    prefix_width = max(row.prefix_length for row in rows)
    return Packed(
        input_ids=input_ids.to(device),
        position_ids=position_ids.to(device),
        attention_mask=_mask(sequence_rows, prefix_width, per_sequence, block_length, device),
        cache_rows=torch.tensor([row.row for row in sequence_rows], device=device),
        read_index=torch.tensor(read_index, dtype=torch.int64, device=device),
        read_slot=torch.tensor(read_slot, dtype=torch.int64, device=device),
        state_start=tuple(state_start),
        row_states=tuple(row_states),
        row_sequences=tuple(row_sequences),
        sequence_of=tuple(sequence_of),
        offset_of=tuple(offset_of),
        prefix_width=prefix_width,
    )


def _tokens(
    sequences: list[list[BlockState | None]], sequence_rows: list[RowStates], block_length: int
) -> tuple[Tensor, Tensor]:
    ids: list[list[int]] = []
    positions: list[list[int]] = []
    for states, row in zip(sequences, sequence_rows, strict=True):
        filler = row.states[0]
        ids.append([token for state in states for token in (state or filler).tokens])
        positions.append([(state or filler).start + slot for state in states for slot in range(block_length)])
    return torch.tensor(ids, dtype=torch.int64), torch.tensor(positions, dtype=torch.int64)


def _reads(
    rows: Sequence[RowStates], sequence_of: list[int], offset_of: list[int], width: int
) -> tuple[list[int], list[int], list[int]]:
    read_index: list[int] = []
    read_slot: list[int] = []
    state_start = [0]
    state = 0
    for row in rows:
        for block in row.states:
            slots = block.masked_slots if row.read else ()
            first = sequence_of[state] * width + offset_of[state]
            read_index += [first + slot for slot in slots]
            read_slot += slots
            state_start.append(len(read_index))
            state += 1
    return read_index, read_slot, state_start


def _mask(
    sequence_rows: list[RowStates], prefix_width: int, per_sequence: int, block_length: int, device: torch.device | str
) -> Tensor:
    lengths = torch.tensor([row.prefix_length for row in sequence_rows], device=device)
    prefix = torch.arange(prefix_width, device=device) < lengths[:, None]
    replica = torch.arange(per_sequence * block_length, device=device) // block_length
    own = replica[:, None] == replica[None, :]
    queries = per_sequence * block_length
    prefix = prefix[:, None, None, :].expand(-1, 1, queries, -1)
    return torch.cat([prefix, own.expand(len(sequence_rows), 1, -1, -1)], dim=-1)
