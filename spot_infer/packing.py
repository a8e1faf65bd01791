"""Replicas -> one forward: input ids, positions, attention mask and where to read (paper appendix D.2).

A replica is one block state laid out behind its row's cached prefix. It attends to that prefix, to the finished blocks
before it that are in the same forward (its ancestors) and to itself, so its logits are what the target would compute at
that state alone. Two layouts, same answers: `concat` puts a row's replicas in one sequence, `batch` gives each its own,
or as few as fit one where some have ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
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
class Replica:
    """A state to lay out. `ancestor`: the replica of the block before it, by its index in the row, where that block is
    in this forward rather than in the cache; it stands before its descendants. `read`: whether its slots are read."""

    state: BlockState
    ancestor: int | None = None
    read: bool = True


@dataclass(frozen=True)
class RowStates:
    """One row's replicas: the prefix-cache row they attend to, that prefix's length, and the replicas."""

    row: int
    prefix_length: int
    replicas: Sequence[Replica]


@dataclass(frozen=True)
class PromptBlocks:
    """The whole blocks of a prompt, to be encoded into the empty cache row `row`, and the block behind them that
    decoding opens with; None to leave that out."""

    row: int
    tokens: Sequence[int]
    state: BlockState | None = None


def lineage(replicas: Sequence[Replica], index: int) -> tuple[int, ...]:
    """The replicas that replica `index` of a row attends to: its ancestors, first block first, and itself."""
    ancestor = replicas[index].ancestor
    return (index,) if ancestor is None else (*lineage(replicas, ancestor), index)


@dataclass(frozen=True)
class Packed:
    """One target forward over N sequences of Q tokens, S replicas in all, M slots to read.

    input_ids, position_ids int64 [N, Q]; attention_mask bool [N, 1, Q, P + Q], True where a query attends, the first P
    keys being the cached prefix of `cache_rows[n]` (padded to the longest prefix P) and the rest the sequence itself.
    read_index int64 [M]: rows of the flattened [N * Q] output that predict the masked slots, replica by replica;
    read_slot int64 [M]; state_start [S + 1]: replica s reads rows state_start[s]..state_start[s + 1].
    row_states [B + 1]: input row b owns replicas row_states[b]..row_states[b + 1]; row_sequences [B]: its sequences.
    sequence_of, offset_of [S]: where in the N sequences replica s lies (in one of them, if it lies in several).
    encodes_prompts: the sequences begin with prompts (`pack_prompts`).
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
    encodes_prompts: bool = field(default=False, kw_only=True)

    @property
    def positions_forwarded(self) -> int:
        """Token positions computed by this forward, padding included."""
        return self.input_ids.numel()

    def positions_of(self, row: int) -> int:
        """Token positions computed for input row `row`, padding included."""
        return self.row_sequences[row] * self.input_ids.shape[1]


_Sequence = list[int]
"""Replicas of one row, by index, in the order in which one sequence holds them."""


def pack(rows: Sequence[RowStates], layout: Layout, device: torch.device | str = "cpu", pad_states: int = 0) -> Packed:
    """Lay out every row's replicas. Each row is padded with dummy replicas to at least `pad_states` of them."""
    block_length = len(rows[0].replicas[0].state.tokens)
    width = _width(rows, layout, pad_states)
    placed = [_place(row, width, pad_states) for row in rows]
    sequences = [(row, sequence) for row, own in zip(rows, placed, strict=True) for sequence in own]
    row_states, sequence_of, offset_of = [0], list[int](), list[int]()
    first = 0
    for row, own in zip(rows, placed, strict=True):
        for index in range(len(row.replicas)):
            number = next(number for number, sequence in enumerate(own) if index in sequence)
            sequence_of.append(first + number)
            offset_of.append(own[number].index(index) * block_length)
        first += len(own)
        row_states.append(len(sequence_of))
    input_ids, position_ids = _tokens(sequences, width)
    read_index, read_slot, state_start = _reads(rows, sequence_of, offset_of, width * block_length)
    prefix_width = max(row.prefix_length for row in rows)
    return Packed(
        input_ids=input_ids.to(device),
        position_ids=position_ids.to(device),
        attention_mask=_mask(sequences, prefix_width, width, block_length, device),
        cache_rows=torch.tensor([row.row for row, _ in sequences], device=device),
        read_index=torch.tensor(read_index, dtype=torch.int64, device=device),
        read_slot=torch.tensor(read_slot, dtype=torch.int64, device=device),
        state_start=tuple(state_start),
        row_states=tuple(row_states),
        row_sequences=tuple(len(own) for own in placed),
        sequence_of=tuple(sequence_of),
        offset_of=tuple(offset_of),
        prefix_width=prefix_width,
    )


def pack_prompts(
    rows: Sequence[PromptBlocks], block_length: int, mask_id: int, device: torch.device | str = "cpu"
) -> Packed:
    """Lay out every row's prompt blocks and its opening state in a sequence of its own, under the block-causal mask.

    Input row b owns one replica, its opening state, or none. Shorter sequences are filled up with masks.
    """
    starts = [len(one.tokens) for one in rows]
    sequences = [[*one.tokens, *(one.state.tokens if one.state else ())] for one in rows]
    width = max(map(len, sequences))
    opening = [(number, one.state) for number, one in enumerate(rows) if one.state is not None]
    read = [(number * width + starts[number] + slot, slot) for number, one in opening for slot in one.masked_slots]
    counts = [len(state.masked_slots) for _, state in opening]
    positions = torch.arange(width, device=device)
    block = positions // block_length
    return Packed(
        input_ids=torch.tensor([[*ids, *[mask_id] * (width - len(ids))] for ids in sequences], device=device),
        position_ids=positions.expand(len(rows), -1),
        attention_mask=(block[:, None] >= block[None, :]).expand(len(rows), 1, width, width),
        cache_rows=torch.tensor([one.row for one in rows], device=device),
        read_index=torch.tensor([index for index, _ in read], dtype=torch.int64, device=device),
        read_slot=torch.tensor([slot for _, slot in read], dtype=torch.int64, device=device),
        state_start=tuple(accumulate(counts, initial=0)),
        row_states=tuple(accumulate((one.state is not None for one in rows), initial=0)),
        row_sequences=(1,) * len(rows),
        sequence_of=tuple(number for number, _ in opening),
        offset_of=tuple(starts[number] for number, _ in opening),
        prefix_width=0,
        encodes_prompts=True,
    )


def _width(rows: Sequence[RowStates], layout: Layout, pad_states: int) -> int:
    """Replicas a sequence: all of the largest row under `concat`, the longest lineage under `batch`."""
    if layout == "concat":
        return max(pad_states, *(len(row.replicas) for row in rows))
    return max(len(lineage(row.replicas, index)) for row in rows for index in range(len(row.replicas)))


def _place(row: RowStates, width: int, pad_states: int) -> list[_Sequence]:
    """Put every replica into the first sequence that has room for it and for those of its ancestors not in there."""
    ancestors = {replica.ancestor for replica in row.replicas}
    sequences: list[_Sequence] = []
    for index in range(len(row.replicas)):
        if index in ancestors:
            continue
        members = lineage(row.replicas, index)
        for sequence in sequences:
            missing = [member for member in members if member not in sequence]
            if len(sequence) + len(missing) <= width:
                sequence += missing
                break
        else:
            sequences.append(list(members))
    while len(sequences) * width < pad_states:
        sequences.append([])
    return sequences


def _tokens(sequences: Sequence[tuple[RowStates, _Sequence]], width: int) -> tuple[Tensor, Tensor]:
    """Input ids and positions; what a sequence leaves free holds copies of its row's first replica."""
    ids: list[list[int]] = []
    positions: list[list[int]] = []
    for row, sequence in sequences:
        states = [row.replicas[index].state for index in [*sequence, *[0] * (width - len(sequence))]]
        ids.append([token for state in states for token in state.tokens])
        positions.append([state.start + slot for state in states for slot in range(len(state.tokens))])
    return torch.tensor(ids, dtype=torch.int64), torch.tensor(positions, dtype=torch.int64)


def _reads(
    rows: Sequence[RowStates], sequence_of: list[int], offset_of: list[int], width_tokens: int
) -> tuple[list[int], list[int], list[int]]:
    read_index: list[int] = []
    read_slot: list[int] = []
    state_start = [0]
    replicas = (replica for row in rows for replica in row.replicas)
    for replica, sequence, offset in zip(replicas, sequence_of, offset_of, strict=True):
        slots = replica.state.masked_slots if replica.read else ()
        read_index += [sequence * width_tokens + offset + slot for slot in slots]
        read_slot += slots
        state_start.append(len(read_index))
    return read_index, read_slot, state_start


def _mask(
    sequences: Sequence[tuple[RowStates, _Sequence]],
    prefix_width: int,
    width: int,
    block_length: int,
    device: torch.device | str,
) -> Tensor:
    lengths = torch.tensor([row.prefix_length for row, _ in sequences], device=device)
    prefix = torch.arange(prefix_width, device=device) < lengths[:, None]
    sees = torch.eye(width, dtype=torch.bool).repeat(len(sequences), 1, 1)
    for number, (row, sequence) in enumerate(sequences):
        for place, index in enumerate(sequence):
            for ancestor in lineage(row.replicas, index)[:-1]:
                sees[number, place, sequence.index(ancestor)] = True
    own = sees.to(device).repeat_interleave(block_length, dim=1).repeat_interleave(block_length, dim=2)
    prefix = prefix[:, None, :].expand(-1, width * block_length, -1)
    return torch.cat([prefix, own], dim=-1)[:, None]
