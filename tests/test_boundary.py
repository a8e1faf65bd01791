"""Block boundaries: cache writes fused into forwards, drafts that run on, and the table of a block not open yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_dlm import FakeTarget
from hypothesis import given
from hypothesis import strategies as st
from lossless_cases import Outcome, run
from odd_drafters import CrossingDrafter

from spot_infer.blocks import BlockState, Commit, unfold
from spot_infer.drafters import OracleDrafter
from spot_infer.graph import DraftGraph
from spot_infer.packing import PromptBlocks, pack_prompts
from spot_infer.replicas import lay_out
from spot_infer.requests import Boundary, DecodeSettings, Request, Stats

L = 4
MASK = 9
END = 100
VOCABULARY = 10


def stats_of(outcome: Outcome) -> Stats:
    result = outcome.rounds[-1].result
    assert result is not None
    return result.stats


def target_of(**fields: Any) -> FakeTarget:
    return FakeTarget(**{"seed": 1, "block_length": L, "stop_ids": (), **fields})


@given(st.data(), st.integers(0, 3), st.integers(1, 12))
def test_commits_unfold_into_the_blocks_they_finish_and_the_state_they_lead_to(
    data: st.DataObject, committed: int, count: int
) -> None:
    """The next `count` commits in any order within a block; a commit too early or past the end is no state."""
    root = BlockState(8, (1,) * committed + (MASK,) * (L - committed), MASK)
    commits = [Commit(8 + committed + index, index % 5) for index in range(count)]
    blocks = unfold(root, frozenset(commits), END)
    assert blocks is not None
    assert all(block.finished for block in blocks[:-1]) and not blocks[-1].finished
    assert [block.start for block in blocks] == [8 + L * index for index in range(len(blocks))]
    tokens = [token for block in blocks for token in block.tokens if token != MASK]
    assert tokens == [1] * committed + [token for _, token in commits]
    assert len(blocks) == 1 + (committed + count) // L
    gone = data.draw(st.integers(0, count - 1))
    last_block = (commits[-1].position // L) == (commits[gone].position // L)
    assert (unfold(root, frozenset(commits[:gone] + commits[gone + 1 :]), END) is None) is not last_block
    end = data.draw(st.integers(9, 30))
    assert (unfold(root, frozenset(commits), end) is None) is (blocks[-1].start >= end)


def test_states_that_finish_a_block_alike_share_its_replica_and_impossible_ones_get_none() -> None:
    root = BlockState(0, (1, 2, 3, MASK), MASK)
    last, other = frozenset([Commit(3, 5)]), frozenset([Commit(3, 6)])
    after = [frozenset([Commit(position, 7)]) for position in (4, 5)]
    graph = DraftGraph()
    filled, twin = graph.add(0, last, 0.5), graph.add(0, other, 0.3)
    children = [graph.add(filled, step, 0.2) for step in after]
    niece = graph.add(twin, after[0], 0.1)
    early = graph.add(0, after[0], 0.1)
    unknown = graph.add(0, frozenset([Commit(3, VOCABULARY)]), 0.1)
    again = graph.add(0, frozenset([Commit(1, 2), Commit(3, 7)]), 0.1)
    laid = lay_out((), root, graph, END, VOCABULARY)
    ancestors = [None if at is None else laid.replicas[at].ancestor for at in laid.of_node]
    assert laid.of_node[early] is laid.of_node[unknown] is laid.of_node[again] is None
    assert ancestors[0] is None
    assert ancestors[filled] == ancestors[children[0]] == ancestors[children[1]] is not None
    assert ancestors[twin] == ancestors[niece] not in (None, ancestors[filled])
    assert len(laid.replicas) == 1 + 5 + 2
    assert lay_out((), root, graph, 4, VOCABULARY).of_node == [0] + [None] * 8


@pytest.mark.parametrize("layout", ["concat", "batch"])
@pytest.mark.parametrize("prompt_length", [1, 3, 4, 7])
@pytest.mark.parametrize("limit", [1, 4, 5, 9, 12])
def test_fused_draft_free_decoding_takes_a_forward_a_commit(prompt_length: int, limit: int, layout: Any) -> None:
    target = target_of()
    request = Request(tuple(range(prompt_length)), 5)
    plain = run(target, [request], DecodeSettings(limit, layout=layout), None)[0]
    target.forwards = 0
    fused = run(target, [request], DecodeSettings(limit, layout=layout, boundary="fused"), None)[0]
    assert fused.decoded == plain.decoded
    before, stats = stats_of(plain), stats_of(fused)
    assert stats.boundaries == before.boundaries == before.cache_writes
    assert stats.cache_writes == 0
    assert stats.nfe == stats.commits == target.forwards == before.nfe - before.cache_writes
    assert stats.positions == before.positions == L * before.nfe
    assert stats.draft_free_nfe == before.draft_free_nfe == before.nfe


@pytest.mark.parametrize("prompt_length", [1, 3, 4, 11])
@pytest.mark.parametrize("limit", [1, 2, 9])
def test_the_forward_that_encodes_a_prompt_opens_its_first_block(prompt_length: int, limit: int) -> None:
    """One forward less, if there is a whole block to encode; not counted, as that of the prompt never is."""
    target = target_of()
    request = Request(tuple(range(prompt_length)), 5)
    fused, seamless = (
        run(target, [request], DecodeSettings(limit, boundary=boundary), None)[0] for boundary in ("fused", "seamless")
    )
    before, stats = stats_of(fused), stats_of(seamless)
    assert seamless.decoded == fused.decoded
    assert stats.nfe == before.nfe - (prompt_length >= L)
    assert stats.positions == before.positions
    assert stats.draft_free_nfe == before.draft_free_nfe
    numbers = [round_.forward for round_ in seamless.rounds]
    assert numbers == list(range(-1 if prompt_length >= L else 0, stats.nfe))


def test_prompts_of_several_lengths_are_opened_together_as_they_are_alone() -> None:
    """Also rows that finish in the forward that opens them, and rows with no whole block, which wait for the next."""
    target = target_of()
    requests = [Request(tuple(at % 9 for at in range(length)), length) for length in (9, 2, 4, 13, 3, 8)]
    for limit in (1, 7):
        settings = DecodeSettings(limit, boundary="seamless", batch_size=1)
        alone = [run(target, [request], settings, None)[0] for request in requests]
        together = run(target, requests, replace(settings, batch_size=4), None)
        assert [one.decoded for one in together] == [one.decoded for one in alone]
        assert [one.nfe for one in together] == [one.nfe for one in alone]


@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, 3))
def test_a_packed_prompt_reads_the_masked_slots_of_the_block_behind_it(blocks: int, more: int, told: int) -> None:
    rows = [(blocks, told), (blocks + more, 0), (0, 3)]
    prompts = [
        PromptBlocks(
            row,
            tuple(range(L * count)),
            BlockState(L * count, (1,) * tail + (MASK,) * (L - tail), MASK) if row != 1 else None,
        )
        for row, (count, tail) in enumerate(rows)
    ]
    packed = pack_prompts(prompts, L, MASK)
    width = packed.input_ids.shape[1]
    assert width == max(L * (blocks + 1), L * (blocks + more))
    assert packed.row_states == (0, 1, 1, 2) and packed.sequence_of == (0, 2)
    assert packed.state_start == (0, L - told, L - told + 1)
    assert packed.read_slot.tolist() == [*range(told, L), 3]
    flat = packed.input_ids.flatten()[packed.read_index]
    assert flat.tolist() == [MASK] * (L - told + 1)
    assert packed.position_ids.flatten()[packed.read_index].tolist() == [*range(L * blocks + told, L * (blocks + 1)), 3]
    sees = packed.attention_mask[0, 0]
    assert all(sees[query, key] == (key // L <= query // L) for query in range(width) for key in range(width))


@pytest.mark.parametrize("budget", [3, 7, 20])
def test_a_perfect_drafter_that_runs_on_commits_a_budget_and_one_a_round(budget: int) -> None:
    target, request = target_of(block_length=8), Request(tuple(range(8)), 3)
    free = run(target, [request], DecodeSettings(max_new_tokens=24), None)[0]
    oracle = OracleDrafter("joint", {0: free.decoded.steps})
    fused = run(target, [request], DecodeSettings(24, budget=budget, boundary="fused"), oracle)[0]
    assert fused.decoded == free.decoded
    rounds = 1
    committed = 1
    while committed < 24:
        opens = committed % 8 == 0
        committed += 1 if opens else 1 + min(budget, 24 - committed - 1)
        rounds += 1
    assert fused.nfe == rounds


@pytest.mark.parametrize("boundary", ["separate", "fused"])
@pytest.mark.parametrize("layout", ["concat", "batch"])
def test_blocks_are_crossed_with_no_forward_of_their_own_where_a_draft_was_right(
    boundary: Boundary, layout: Any
) -> None:
    """In either mode: what the draft crossed is cached from the forward that verified it."""
    target, request = target_of(), Request((1, 2, 3), 3)
    free = run(target, [request], DecodeSettings(max_new_tokens=21), None)[0]
    drafter = CrossingDrafter({0: free.decoded.steps}, target.spec.mask_id, merged=True)
    one = run(target, [request], DecodeSettings(21, budget=8, boundary=boundary, layout=layout), drafter)[0]
    assert one.decoded == free.decoded
    stats = stats_of(one)
    assert stats.boundaries == stats_of(free).boundaries == 5
    assert stats.cache_writes < 3
    spans = [{position // L for step in round_.steps for position, _ in step} for round_ in one.rounds]
    assert max(map(len, spans)) > 1
