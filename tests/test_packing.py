"""Packing against a slow, obvious form: for every token of every replica, the (position, token) pairs it attends to."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from spot_infer.blocks import BlockState
from spot_infer.packing import Packed, Replica, RowStates, pack

L = 3
MASK = 9
Pair = tuple[int, int]


@st.composite
def batches(draw: Any) -> list[RowStates]:
    """Rows of replicas; about half of them hang under an earlier one, a block further on."""
    rows = []
    for row in draw(st.permutations(range(draw(st.integers(1, 4))))):
        blocks = draw(st.integers(0, 3))
        replicas: list[Replica] = []
        for index in range(draw(st.integers(1, 6))):
            tokens = tuple(draw(st.lists(st.sampled_from([1, 2, MASK]), min_size=L, max_size=L)))
            ancestor = draw(st.one_of(st.none(), st.integers(0, index - 1))) if index else None
            start = blocks * L if ancestor is None else replicas[ancestor].state.start + L
            replicas.append(Replica(BlockState(start, tokens, MASK), ancestor, draw(st.booleans())))
        rows.append(RowStates(row, blocks * L, tuple(replicas)))
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


def lineage(row: RowStates, replica: Replica | None) -> list[BlockState]:
    """The blocks a replica stands on in this forward and its own."""
    blocks: list[BlockState] = []
    while replica is not None:
        blocks.insert(0, replica.state)
        replica = None if replica.ancestor is None else row.replicas[replica.ancestor]
    return blocks


@given(batches(), st.sampled_from(["concat", "batch"]), st.integers(0, 6))
def test_a_replica_sees_its_rows_prefix_its_ancestors_and_itself_at_their_positions(
    rows: list[RowStates], layout: Any, pad_states: int
) -> None:
    packed = pack(rows, layout, pad_states=pad_states)
    lengths = {row.row: row.prefix_length for row in rows}
    width = packed.input_ids.shape[1]
    place = 0
    for index, row in enumerate(rows):
        assert packed.row_states[index] == place
        for replica in row.replicas:
            state = replica.state
            sequence, offset = packed.sequence_of[place], packed.offset_of[place]
            expected: list[Any] = cached(row.row, row.prefix_length, row.prefix_length)
            for block in lineage(row, replica):
                expected += [(block.start + slot, token) for slot, token in enumerate(block.tokens)]
            assert [position for position, _ in expected] == list(range(state.start + L))
            for slot in range(L):
                found = seen(packed, lengths, sequence, offset + slot)
                assert None not in found
                assert sorted(found) == sorted(expected)  # type: ignore[type-var]
                assert int(packed.position_ids[sequence, offset + slot]) == state.start + slot
            reads = slice(packed.state_start[place], packed.state_start[place + 1])
            masked = list(state.masked_slots) if replica.read else []
            assert packed.read_slot[reads].tolist() == masked
            assert packed.read_index[reads].tolist() == [sequence * width + offset + slot for slot in masked]
            place += 1
    assert packed.row_states[-1] == len(packed.state_start) - 1 == place
    assert packed.state_start[-1] == len(packed.read_index)


@given(batches(), st.sampled_from(["concat", "batch"]), st.integers(0, 6))
def test_fillers_see_only_their_own_row_and_are_never_read(rows: list[RowStates], layout: Any, pad_states: int) -> None:
    packed = pack(rows, layout, pad_states=pad_states)
    lengths = {row.row: row.prefix_length for row in rows}
    assert bool(packed.attention_mask.any(-1).all())
    for sequence in range(len(packed.input_ids)):
        for query in range(packed.input_ids.shape[1]):
            keys = seen(packed, lengths, sequence, query)
            assert None not in keys
            assert len({position for position, _ in keys}) == len(keys)  # type: ignore[misc]
    places = list(zip(packed.sequence_of, packed.offset_of, strict=True))
    assert len(set(places)) == len(places)
    owned = {n * packed.input_ids.shape[1] + offset + slot for n, offset in places for slot in range(L)}
    assert set(packed.read_index.tolist()) <= owned


@given(batches(), st.sampled_from(["concat", "batch"]), st.integers(0, 6))
def test_positions_forwarded_are_counted_with_their_padding(
    rows: list[RowStates], layout: Any, pad_states: int
) -> None:
    packed = pack(rows, layout, pad_states=pad_states)
    counts = [max(pad_states, len(row.replicas)) for row in rows]
    forwarded = [packed.positions_of(index) for index in range(len(rows))]
    assert packed.positions_forwarded == sum(forwarded) == packed.input_ids.numel()
    assert packed.input_ids.dtype == packed.position_ids.dtype == packed.read_index.dtype == torch.int64
    if layout == "concat":
        assert forwarded == [max(counts) * L] * len(rows)
    elif all(replica.ancestor is None for row in rows for replica in row.replicas):
        assert forwarded == [count * L for count in counts]
    else:
        assert all(positions >= count * L for positions, count in zip(forwarded, counts, strict=True))


def test_states_of_one_ancestor_share_it_and_lone_states_fill_the_room_beside() -> None:
    """A finished block with two states behind it, and three states of its own block: six replicas, or 2 + 2 + 2 + 1."""
    first = [Replica(BlockState(0, (1, 2, token), MASK)) for token in (MASK, 5, MASK, MASK)]
    behind = [Replica(BlockState(L, (token,) * L, MASK), ancestor=1) for token in (MASK, 7)]
    row = RowStates(0, 0, (*first, *behind))
    assert pack([row], "concat").positions_of(0) == 6 * L
    assert pack([row], "batch").positions_of(0) == 4 * 2 * L
