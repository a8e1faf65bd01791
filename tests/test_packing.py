"""Packing against a slow, obvious form: for every token of every replica, the (position, token) pairs it attends to."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from spot_infer.blocks import BlockState
from spot_infer.packing import Packed, RowStates, pack

L = 3
MASK = 9
Pair = tuple[int, int]


@st.composite
def batches(draw: Any) -> list[RowStates]:
    rows = []
    order = draw(st.permutations(range(draw(st.integers(1, 4)))))
    for row in order:
        blocks = draw(st.integers(0, 3))
        tokens = st.lists(st.sampled_from([1, 2, MASK]), min_size=L, max_size=L).map(tuple)
        states = draw(st.lists(tokens, min_size=1, max_size=4))
        read = draw(st.booleans())
        states = tuple(BlockState(blocks * L, state, MASK) for state in states)
        rows.append(RowStates(row, blocks * L, states, read))
    return rows


def cached(row: int, width: int, length: int) -> list[Pair | None]:
    """A cache row as the target would see it: distinct tokens by row and position, None beyond its length."""
    return [(position, 100 * (row + 1) + position) if position < length else None for position in range(width)]


def seen(packed: Packed, lengths: dict[int, int], sequence: int, query: int) -> list[Pair | None]:
    row = int(packed.cache_rows[sequence])
    own = zip(packed.position_ids[sequence].tolist(), packed.input_ids[sequence].tolist(), strict=True)
    keys = [*cached(row, packed.prefix_width, lengths[row]), *own]
    mask = packed.attention_mask[sequence, 0, query].tolist()
    assert len(mask) == len(keys)
    return [key for key, visible in zip(keys, mask, strict=True) if visible]


@given(batches(), st.sampled_from(["concat", "batch"]), st.integers(0, 6))
def test_a_replica_sees_its_rows_prefix_and_itself_at_their_positions(
    rows: list[RowStates], layout: Any, pad_states: int
) -> None:
    packed = pack(rows, layout, pad_states=pad_states)
    lengths = {row.row: row.prefix_length for row in rows}
    width = packed.input_ids.shape[1]
    state_index = 0
    for index, row in enumerate(rows):
        assert packed.row_states[index] == state_index
        for state in row.states:
            sequence, offset = packed.sequence_of[state_index], packed.offset_of[state_index]
            expected = cached(row.row, row.prefix_length, row.prefix_length)
            expected += [(state.start + slot, token) for slot, token in enumerate(state.tokens)]
            for slot in range(L):
                assert seen(packed, lengths, sequence, offset + slot) == expected
                assert int(packed.position_ids[sequence, offset + slot]) == state.start + slot
            reads = slice(packed.state_start[state_index], packed.state_start[state_index + 1])
            masked = list(state.masked_slots) if row.read else []
            assert packed.read_slot[reads].tolist() == masked
            assert packed.read_index[reads].tolist() == [sequence * width + offset + slot for slot in masked]
            state_index += 1
    assert packed.row_states[-1] == len(packed.state_start) - 1 == state_index
    assert packed.state_start[-1] == len(packed.read_index)


@given(batches(), st.sampled_from(["concat", "batch"]), st.integers(0, 6))
def test_fillers_see_only_their_own_row_and_are_never_read(rows: list[RowStates], layout: Any, pad_states: int) -> None:
    packed = pack(rows, layout, pad_states=pad_states)
    lengths = {row.row: row.prefix_length for row in rows}
    assert bool(packed.attention_mask.any(-1).all())
    for sequence in range(len(packed.input_ids)):
        for query in range(packed.input_ids.shape[1]):
            assert None not in seen(packed, lengths, sequence, query)
    places = list(zip(packed.sequence_of, packed.offset_of, strict=True))
    assert len(set(places)) == len(places)
    owned = {n * packed.input_ids.shape[1] + offset + slot for n, offset in places for slot in range(L)}
    assert set(packed.read_index.tolist()) <= owned


@given(batches(), st.sampled_from(["concat", "batch"]), st.integers(0, 6))
def test_positions_forwarded_are_counted_with_their_padding(
    rows: list[RowStates], layout: Any, pad_states: int
) -> None:
    packed = pack(rows, layout, pad_states=pad_states)
    states = [max(pad_states, len(row.states)) for row in rows]
    each = [max(states)] * len(rows) if layout == "concat" else states
    assert [packed.positions_of(index) for index in range(len(rows))] == [count * L for count in each]
    assert packed.positions_forwarded == sum(each) * L == packed.input_ids.numel()
    assert packed.input_ids.dtype == packed.position_ids.dtype == packed.read_index.dtype == torch.int64
