"""Answers that are right, and answers that look right: numbers, boxed LaTeX, the pools' lists and JSON values."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from answer_pairs import GSM8K, MATH, TINY, Pairs
from hypothesis import given
from hypothesis import strategies as st

from spot_train.tasks import gsm8k, latex, math500, tiny


def cases(table: Pairs) -> list[tuple[Any, str, bool]]:
    right = [(reference, text, True) for reference, texts, _ in table for text in texts]
    return right + [(reference, text, False) for reference, _, texts in table for text in texts]


@pytest.mark.parametrize("table", [GSM8K, MATH, TINY], ids=["gsm8k", "math500", "tiny"])
def test_the_tables_are_large_enough(table: Pairs) -> None:
    solved = [one for *_, one in cases(table)]
    assert len(solved) >= 40 and sum(solved) >= 10 and len(solved) - sum(solved) >= 15


@pytest.mark.parametrize(("reference", "text", "solved"), cases(GSM8K))
def test_gsm8k(reference: str, text: str, solved: bool) -> None:
    assert gsm8k.score({"answer": reference}, text) is solved


@pytest.mark.parametrize(("reference", "text", "solved"), cases(MATH))
def test_math500(reference: str, text: str, solved: bool) -> None:
    assert math500.score({"answer": reference}, text) is solved


@pytest.mark.parametrize(("scorer", "text", "solved"), cases(TINY))
def test_tiny(scorer: dict, text: str, solved: bool) -> None:
    assert tiny.score({"scorer": scorer}, text) is solved


@given(st.integers(-(10**12), 10**12))
def test_any_number_is_read_as_written(value: int) -> None:
    for text in (f"#### {value}", f"#### {value:,}", f"It is {value:,}.", f"####{value}.0"):
        assert gsm8k.extract(text) == value


@given(st.fractions(max_denominator=500), st.sampled_from(["frac", "dfrac", "tfrac"]))
def test_a_fraction_has_one_normal_form(value: Fraction, command: str) -> None:
    sign = "-" if value < 0 else ""
    top, bottom = abs(value.numerator), value.denominator
    spelled = f"{sign}\\{command}{{{top}}}{{{bottom}}}"
    forms = (spelled, f"{sign}{top}/{bottom}", f"\\frac{{{sign}{2 * top}}}{{{2 * bottom}}}")
    assert {latex.normal_form(form) for form in forms} == {str(value)}


@given(st.text(alphabet="\\{}[](),-+0123456789./^_ abfrcxsqt&$%\n", max_size=60))
def test_normal_form_takes_any_text_and_is_one(text: str) -> None:
    assert isinstance(latex.normal_form(text), str)
    latex.last_boxed("\\boxed" + text)
    gsm8k.extract(text)


def test_braces_inside_a_box_are_matched() -> None:
    assert latex.last_boxed(r"\boxed{\frac{\sqrt{3}}{2}}") == r"\frac{\sqrt{3}}{2}"
    assert latex.last_boxed(r"\boxed{\left\{ x \right.}") == r"\left\{ x \right."
    assert latex.last_boxed(r"\boxed 7") == "7"


def test_references_solve_themselves() -> None:
    for reference, *_ in MATH:
        assert math500.score({"answer": reference}, f"\\boxed{{{reference}}}"), reference
