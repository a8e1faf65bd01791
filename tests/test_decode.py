"""The decode loop's promises one at a time: stops, limits, accounting, refusals, rows that come and go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from fake_dlm import FakeTarget
from lossless_cases import Outcome, run
from lossless_targets import tiny_qwen3
from odd_drafters import HugeDrafter

import spot_infer.answers
from spot_infer.decode import decode
from spot_infer.drafters import ChainDrafter, OracleDrafter, RandomDrafter
from spot_infer.errors import SpotError
from spot_infer.requests import DecodeSettings, Request
from spot_infer.transition import CommitRule, Sampling

L = 4


def target_of(**fields: Any) -> FakeTarget:
    return FakeTarget(**{"seed": 1, "block_length": L, "stop_ids": (), **fields})


def prompts(lengths: list[int], seed: int = 0) -> list[Request]:
    random = np.random.default_rng(seed)
    return [Request(tuple(random.integers(0, 11, size=n).tolist()), index) for index, n in enumerate(lengths)]


def outcome(target: Any, request: Request, settings: DecodeSettings) -> Outcome:
    return run(target, [request], settings, None)[0]


@pytest.mark.parametrize("prompt_length", [1, 3, 4, 5, 8])
@pytest.mark.parametrize("limit", [1, 3, 4, 7, 9])
def test_draft_free_accounting(prompt_length: int, limit: int) -> None:
    target = target_of()
    one = outcome(target, prompts([prompt_length])[0], DecodeSettings(max_new_tokens=limit))
    stats = one.rounds[-1].result.stats  # type: ignore[union-attr]
    first, last = prompt_length // L, (prompt_length + limit - 1) // L
    assert len(one.decoded.tokens) == limit
    assert one.decoded.finish_reason == "length"
    assert stats.cache_writes == last - first
    assert stats.nfe == target.forwards == stats.commits + stats.cache_writes
    assert limit <= stats.commits <= (last + 1) * L - prompt_length
    assert stats.positions == stats.nfe * L
    assert (stats.accepted, stats.drafted, stats.drafter_calls, stats.drafted_rounds) == (0, 0, 0, 0)


def test_nothing_is_returned_committed_or_forwarded_after_a_stop() -> None:
    stopped = 0
    for seed in range(16):
        target = target_of(seed=seed, stop_ids=(0, 1), stop_rate=0.3)
        settings = DecodeSettings(max_new_tokens=20)
        one = outcome(target, prompts([3], seed)[0], settings)
        tokens = one.decoded.tokens
        assert not set(tokens[:-1]) & {0, 1}
        assert (one.decoded.finish_reason == "stop") is (tokens[-1] in (0, 1))
        assert target.forwards == one.nfe
        stopped += one.decoded.finish_reason == "stop"
        longer = outcome(target, prompts([3], seed)[0], replace(settings, ignore_stop=True))
        assert longer.decoded.tokens[: len(tokens)] == tokens
        assert len(longer.decoded.tokens) == 20
        assert longer.decoded.steps[: len(one.decoded.steps)] == one.decoded.steps
    assert stopped >= 6


def test_a_stop_id_in_the_prompt_is_harmless() -> None:
    request = Request((0, 5, 1, 1, 0), 3)
    with_stop = outcome(target_of(stop_ids=(0, 1), stop_rate=0.0), request, DecodeSettings(max_new_tokens=1))
    assert len(with_stop.decoded.tokens) == 1
    assert len(with_stop.decoded.steps) >= 1


def test_a_stop_string_ends_a_row_where_it_first_appears() -> None:
    request, settings = prompts([3])[0], DecodeSettings(max_new_tokens=16)
    whole = outcome(target_of(), request, settings).decoded
    for length in (1, 2):
        for start in range(8):
            string = whole.text[start : start + length]
            cut = outcome(target_of(), request, replace(settings, stop=("no such text", string))).decoded
            first = whole.text.index(string)
            assert cut.text == whole.text[:first]
            assert cut.finish_reason == "stop"
            assert cut.tokens == whole.tokens[: first + length]


def test_more_requests_than_rows_are_refilled_in_order_and_finished_rows_leave() -> None:
    requests = prompts([1, 4, 9, 2, 5, 3, 8], seed=3)
    settings = DecodeSettings(max_new_tokens=9, batch_size=3, sampling=Sampling(1.0))
    target = target_of(stop_ids=(0, 1), stop_rate=0.2)
    together = run(target, requests, settings, None)
    in_batches = target.forwards
    target.forwards = 0
    alone = [run(target, [request], settings, None)[0] for request in requests]
    assert [one.decoded for one in together] == [one.decoded for one in alone]
    assert [one.nfe for one in together] == [one.nfe for one in alone]
    assert in_batches < target.forwards == sum(one.nfe for one in alone)
    starts = [round_.request for round_ in decode(target, requests, settings)]
    assert list(dict.fromkeys(starts)) == list(range(len(requests)))


def test_noise_depends_on_the_requests_own_seed_and_nothing_around_it() -> None:
    settings = DecodeSettings(max_new_tokens=10, sampling=Sampling(1.5), batch_size=4)
    target = target_of(strength=0.2)
    request = Request((3, 4, 5), 77)
    alone = outcome(target, request, settings).decoded
    for seed in range(4):
        company = [Request((3, 4, 5), 1000 + seed), *prompts([6, 2, 9], seed), request]
        assert run(target, company, settings, None)[-1].decoded == alone
    assert outcome(target, replace(request, seed=78), settings).decoded != alone


def test_padding_and_layout_change_positions_only() -> None:
    requests = prompts([2, 7], seed=4)
    plain = DecodeSettings(max_new_tokens=8, budget=3, batch_size=1, boundary="separate")
    runs = {
        (layout, pad): run(target_of(), requests, replace(plain, layout=layout, pad=pad), ChainDrafter())
        for layout in ("concat", "batch")
        for pad in (False, True)
    }
    decoded = [[one.decoded for one in outcomes] for outcomes in runs.values()]
    assert all(other == decoded[0] for other in decoded)
    for (_, pad), outcomes in runs.items():
        for one in outcomes:
            stats = one.rounds[-1].result.stats  # type: ignore[union-attr]
            assert stats.positions == L * (4 * stats.nfe if pad else stats.nfe + stats.drafted)


def test_a_perfect_drafter_needs_two_forwards_a_block_and_its_cache_write() -> None:
    target, request = target_of(block_length=8), prompts([8])[0]
    settings = DecodeSettings(max_new_tokens=24, boundary="separate")
    free = outcome(target, request, settings)
    oracle = OracleDrafter("joint", {0: free.decoded.steps})
    drafted = run(target, [request], replace(settings, budget=7), oracle)[0]
    assert (free.nfe, drafted.nfe) == (24 + 2, 2 * 3 + 2)
    stats = drafted.rounds[-1].result.stats  # type: ignore[union-attr]
    assert stats.accepted == 24 - 6
    assert stats.drafted_rounds == 3
    assert stats.accepted_per_round == 6


def test_a_budget_of_zero_is_draft_free_whatever_the_drafter() -> None:
    one = run(target_of(), prompts([3]), DecodeSettings(max_new_tokens=9, budget=0), RandomDrafter(0))[0]
    assert all(round_.graph is None for round_ in one.rounds)


def test_drafts_of_a_block_never_meet_its_opening_forward() -> None:
    settings = DecodeSettings(max_new_tokens=13, budget=4, boundary="separate")
    one = run(target_of(), prompts([3]), settings, HugeDrafter(merged=True))[0]
    opened: set[int] = set()
    for round_ in one.rounds:
        assert (round_.graph is None) is (round_.state.start not in opened or len(round_.state.masked_slots) < 2)
        opened.add(round_.state.start)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, top_k=4)])
def test_projecting_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch, sampling: Sampling) -> None:
    settings = DecodeSettings(max_new_tokens=9, budget=4, sampling=sampling, rule=CommitRule(resolution="bfloat16"))
    whole = run(target_of(), prompts([2, 5, 9]), settings, ChainDrafter())
    for elements in (1, 30, 50):
        monkeypatch.setattr(spot_infer.answers, "_CHUNK_ELEMENTS", elements)
        widths: list[int] = []

        class Counting(FakeTarget):
            def logits(self, hidden: torch.Tensor) -> torch.Tensor:
                widths.append(len(hidden))  # noqa: B023
                return super().logits(hidden)

        parts = run(Counting(seed=1, block_length=L, stop_ids=()), prompts([2, 5, 9]), settings, ChainDrafter())
        assert [one.decoded for one in parts] == [one.decoded for one in whole]
        assert max(widths) <= max(L, elements // 12)


def test_an_inexact_prefix_cache_is_never_called_distribution_preserving() -> None:
    for exact in (True, False):
        one = outcome(target_of(exact_prefix_cache=exact), prompts([3])[0], DecodeSettings(max_new_tokens=3))
        assert one.rounds[-1].result.stats.distribution_preserving is exact  # type: ignore[union-attr]


def test_a_cache_whose_first_rows_never_needed_a_prefix_grows_with_the_batch() -> None:
    """Rows that are admitted after the buffers were made may exceed them; their own prefix is still empty."""
    target, _ = tiny_qwen3(0, 4, 50)
    cache = target.new_cache()
    target.prefill(cache, [cache.add_row()], [[5, 6, 7, 8]])
    for _ in range(12):
        cache.add_row()
    settings = DecodeSettings(max_new_tokens=6, batch_size=13)
    requests = [Request((5, 6, 7, 8, 9), 0), *[Request((5 + n,), n) for n in range(12)]]
    together = run(target, requests, settings, None)
    alone = [outcome(target, request, settings) for request in requests]
    assert [one.decoded for one in together] == [one.decoded for one in alone]
    from spot_infer.blocks import BlockState
    from spot_infer.packing import Replica, RowStates, pack

    states = [BlockState(4, (49,) * 4, 49)] + [BlockState(0, (49,) * 4, 49)] * 12
    packed = pack([RowStates(n, cache.lengths[n], (Replica(state),)) for n, state in enumerate(states)], "concat")
    hidden = target.forward(packed, cache)
    assert torch.equal(hidden[4:8], hidden[-4:])
    assert not torch.equal(hidden[:4], hidden[4:8])


@dataclass
class Exhausted(FakeTarget):
    """A target whose machine is too small."""

    error: type[Exception] = MemoryError

    def forward(self, packed: Any, cache: Any) -> torch.Tensor:
        raise self.error("unable to allocate memory")


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_running_out_of_memory_names_batch_and_budget(error: type[Exception]) -> None:
    with pytest.raises(SpotError, match="batch_size 5 and budget 3"):
        run(Exhausted(error=error), prompts([3]), DecodeSettings(batch_size=5, budget=3), None)


@pytest.mark.parametrize(
    ("prompt", "fields", "words"),
    [
        ((), {}, "prompt 1 is empty"),
        ((3, 11, 4), {}, "mask token"),
        ((3, 12), {}, "token id 12"),
        ((3, -1), {}, "token id -1"),
        ((3,) * 30, {"max_new_tokens": 3}, "36 positions"),
        ((3,), {"max_new_tokens": 0}, "max_new_tokens"),
        ((3,), {"batch_size": 0}, "batch_size"),
        ((3,), {"budget": -1}, "budget"),
    ],
)
def test_what_cannot_be_decoded_is_refused_before_the_first_forward(
    prompt: tuple[int, ...], fields: dict[str, Any], words: str
) -> None:
    target = target_of(max_positions=32)
    with pytest.raises(SpotError, match=words):
        list(decode(target, [Request((1, 2)), Request(prompt)], DecodeSettings(**{"max_new_tokens": 4, **fields})))
    assert target.forwards == 0
