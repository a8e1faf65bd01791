"""The lossless properties over 2,300 drafted cases; `pytest -m slow -s tests/test_lossless_slow.py` prints counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from lossless_cases import Case, cases, check
from lossless_targets import fake_targets, full_attention_targets, moe_targets, qwen3_targets
from test_lossless import check_against_slow_decoder

pytestmark = pytest.mark.slow
counts: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def totals() -> Iterator[None]:
    yield
    print(
        f"\nlossless: {counts['cases']} cases, {counts['rows']} rows, {counts['free']} forwards draft-free and "
        f"{counts['drafted']} drafted, {counts['cases'] - counts['equal']} cases with a difference"
    )


def count(case: Case) -> None:
    counts["cases"] += 1
    counts["rows"] += len(case.requests)
    free, drafted = check(case)
    counts["free"] += free
    counts["drafted"] += drafted
    counts["equal"] += 1


@settings(max_examples=1500)
@given(cases(fake_targets()))
def test_drafted_equals_draft_free_on_the_fake_target(case: Case) -> None:
    count(case)


@settings(max_examples=350)
@given(cases(qwen3_targets()))
def test_drafted_equals_draft_free_on_a_float64_qwen3(case: Case) -> None:
    count(case)


@settings(max_examples=150)
@given(cases(fake_targets()))
def test_draft_free_equals_the_slow_decoder_on_the_fake_target(case: Case) -> None:
    check_against_slow_decoder(case)


@settings(max_examples=50)
@given(cases(qwen3_targets()))
def test_draft_free_equals_the_slow_decoder_on_a_float64_qwen3(case: Case) -> None:
    check_against_slow_decoder(case)


@settings(max_examples=250)
@given(cases(full_attention_targets()))
def test_drafted_equals_draft_free_under_full_attention_and_its_caches(case: Case) -> None:
    count(case)


@settings(max_examples=60)
@given(cases(full_attention_targets()))
def test_draft_free_equals_the_slow_decoder_under_full_attention_and_its_caches(case: Case) -> None:
    check_against_slow_decoder(case)


@settings(max_examples=200)
@given(cases(moe_targets()))
def test_drafted_equals_draft_free_on_a_mixture_of_experts(case: Case) -> None:
    count(case)
