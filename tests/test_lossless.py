"""Drafted decoding equals draft-free decoding, and draft-free decoding equals the slow decoder: a quick sample.

`pytest -m slow tests/test_lossless_slow.py` runs the same properties over thousands of cases.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from lossless_cases import Case, cases, check, run
from lossless_targets import fake_targets, full_attention_targets, moe_targets, qwen3_targets
from slow_decoder import slow_decode


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
