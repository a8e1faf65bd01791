"""Drafted decoding equals draft-free decoding, and draft-free decoding equals the slow decoder: a quick sample.

`pytest -m slow tests/test_lossless_slow.py` runs the same properties over thousands of cases.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_dlm import FakeTarget
from hypothesis import given, settings
from lossless_cases import Case, cases, check, make_drafter, run
from lossless_targets import fake_targets, full_attention_targets, moe_targets, qwen3_targets, tiny_qwen3
from slow_decoder import fake_full_logits, slow_decode

from spot_infer.cost import load_curve
from spot_infer.requests import DecodeSettings, Request
from spot_infer.transition import Sampling


def check_against_slow_decoder(case: Case) -> None:
    free = run(case.target, case.requests, replace(case.settings, budget=0), None)
    for outcome, request in zip(free, case.requests, strict=True):
        assert outcome.decoded == slow_decode(case.target, case.full_logits, request, case.settings)


@settings(max_examples=70)
@given(cases(fake_targets()))
def test_drafted_equals_draft_free_on_the_fake_target(case: Case) -> None:
    check(case)


@settings(max_examples=20)
@given(cases(qwen3_targets()))
def test_drafted_equals_draft_free_on_a_float64_qwen3(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["fake", "qwen3"])
def test_blocks_that_a_batch_writes_apart_lose_nothing(kind: str, temperature: float) -> None:
    """Four rows at different phases whose drafts never pay, on a curve where another replica in each is dear."""
    fake = FakeTarget(block_length=4, vocab_size=40)
    target, full_logits = (fake, fake_full_logits(fake)) if kind == "fake" else tiny_qwen3(0, 4, 40)
    requests = tuple(Request((3, 4, 5, 6, 7, 8, 9)[:length], length) for length in (2, 4, 5, 7))
    chosen = DecodeSettings(
        max_new_tokens=12,
        sampling=Sampling(temperature),
        budget=16,
        batch_size=4,
        ignore_stop=True,
        curve=load_curve("cpu-core"),
    )
    case = Case(target, full_logits, requests, chosen, "wrong", (2, 0, 3, 1), drafted_batch=4)
    check(case)
    drafted = run(target, requests, chosen, make_drafter("wrong", case, {}))
    results = [one.rounds[-1].result for one in drafted]
    assert sum(result.stats.cache_writes for result in results if result is not None) > 0


@settings(max_examples=40)
@given(cases(fake_targets()))
def test_draft_free_equals_the_slow_decoder_on_the_fake_target(case: Case) -> None:
    check_against_slow_decoder(case)


@settings(max_examples=12)
@given(cases(qwen3_targets()))
def test_draft_free_equals_the_slow_decoder_on_a_float64_qwen3(case: Case) -> None:
    check_against_slow_decoder(case)


@settings(max_examples=20)
@given(cases(full_attention_targets()))
def test_drafted_equals_draft_free_under_full_attention_and_its_caches(case: Case) -> None:
    check(case)


@settings(max_examples=10)
@given(cases(full_attention_targets()))
def test_draft_free_equals_the_slow_decoder_under_full_attention_and_its_caches(case: Case) -> None:
    check_against_slow_decoder(case)


@settings(max_examples=12)
@given(cases(moe_targets()))
def test_drafted_equals_draft_free_on_a_mixture_of_experts(case: Case) -> None:
    check(case)


@settings(max_examples=4)
@given(cases(moe_targets()))
def test_draft_free_equals_the_slow_decoder_on_a_mixture_of_experts(case: Case) -> None:
    check_against_slow_decoder(case)
