"""The block grid: opening, committing, finishing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spot_infer.blocks import BlockState, Commit, finished_length, open_block

MASK = 9


@given(st.lists(st.integers(0, 8), max_size=20), st.integers(1, 6), st.integers(0, 4))
def test_an_opened_block_holds_the_canvas_and_masks_after_it(canvas: list[int], length: int, block: int) -> None:
    state = open_block(canvas, block * length, length, MASK)
    padded = canvas + [MASK] * (length * (block + 1))
    assert list(state.tokens) == padded[block * length : (block + 1) * length]
    assert state.masked_slots == tuple(s for s in range(length) if block * length + s >= len(canvas))


@given(st.data(), st.integers(1, 8), st.integers(0, 40))
def test_commits_in_any_order_and_grouping_reach_one_state(data: st.DataObject, length: int, start: int) -> None:
    tokens = data.draw(st.lists(st.integers(0, MASK), min_size=length, max_size=length))
    state = BlockState(start, tuple(tokens), MASK)
    commits = [Commit(start + slot, slot % 5) for slot in state.masked_slots]
    shuffled = data.draw(st.permutations(commits))
    one_by_one = state
    for commit in shuffled:
        assert not one_by_one.finished
        one_by_one = one_by_one.with_commits([commit])
    assert one_by_one == state.with_commits(frozenset(commits))
    assert one_by_one.finished
    assert state.tokens == tuple(tokens)


@pytest.mark.parametrize("position", [7, 8, 12])
def test_a_commit_off_the_masked_slots_is_refused(position: int) -> None:
    state = BlockState(8, (1, MASK, MASK, 2), MASK)
    with pytest.raises(ValueError, match=f"position {position}"):
        state.with_commits([Commit(position, 3)])


def slow_finished_length(generated: list[int], stops: set[int], limit: int) -> int | None:
    """Every prefix that could be returned, shortest first: filled, and either at the limit or ending in a stop."""
    for length in range(limit + 1):
        prefix = generated[:length]
        if len(prefix) < length or MASK in prefix:
            return None
        if length == limit or (prefix and prefix[-1] in stops):
            return length
    return None


@given(st.lists(st.integers(0, MASK), max_size=12), st.sets(st.integers(0, 3), max_size=2), st.integers(0, 12))
def test_finished_length_is_the_shortest_returnable_prefix(generated: list[int], stops: set[int], limit: int) -> None:
    assert finished_length(generated, MASK, stops, limit) == slow_finished_length(generated, stops, limit)


def test_a_stop_beyond_a_mask_or_the_limit_does_not_finish_a_row() -> None:
    assert finished_length([5, MASK, 0], MASK, {0}, 3) is None
    assert finished_length([5, 0, MASK], MASK, {0}, 3) == 2
    assert finished_length([5, 6, 0], MASK, {0}, 2) == 2
    assert finished_length([5, 0, MASK], MASK, (), 3) is None
