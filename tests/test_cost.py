"""Cost curves: interpolation, JSON round trip, and what is refused."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spot_infer.cost import NAMED_CURVES, CostCurve, DrafterCost, load_curve, save_curve
from spot_infer.errors import SpotError

costs = st.floats(1e-6, 1e3)


@st.composite
def curves(draw: st.DrawFn) -> CostCurve:
    sizes = draw(st.lists(st.integers(2, 60), unique=True, max_size=6))
    replicas = (1, *sorted(sizes))
    seconds = draw(st.tuples(*(costs for _ in replicas)))
    drafter = draw(st.none() | st.builds(DrafterCost, costs, costs, costs, st.text()))
    return CostCurve("any", replicas, seconds, draw(st.sampled_from(["s", "c1"])), "x", 0.5, 0.25, drafter)


@settings(max_examples=30)
@given(curves(), st.integers(1, 80))
def test_a_curve_passes_through_its_points_and_is_linear_between_them(curve: CostCurve, size: int) -> None:
    assert [curve.cost(r) for r in curve.replicas] == pytest.approx(curve.seconds)
    assert curve.ratio(1) == 1
    assert curve.ratio(size) == pytest.approx(curve.cost(size) / curve.seconds[0])
    for (a, low), (b, high) in pairwise(zip(curve.replicas, curve.seconds, strict=True)):
        assert curve.cost((a + b) / 2) == pytest.approx((low + high) / 2)
        assert min(low, high) * (1 - 1e-9) <= curve.cost(a + (b - a) * 0.3) <= max(low, high) * (1 + 1e-9)


@settings(max_examples=30)
@given(curves())
def test_beyond_the_last_point_the_last_segment_goes_on_and_never_falls(curve: CostCurve) -> None:
    last = curve.replicas[-1]
    beyond = [curve.cost(last + more) for more in (0, 1, 2)]
    assert beyond[1] - beyond[0] == pytest.approx(beyond[2] - beyond[1], abs=1e-9 * beyond[2])
    assert beyond[2] >= beyond[0]


@settings(max_examples=30)
@given(curves())
def test_a_curve_survives_json(curve: CostCurve) -> None:
    assert CostCurve.from_dict(json.loads(json.dumps(curve.to_dict()))) == curve


def test_a_file_holds_the_curve_and_what_stands_beside_it(tmp_path: Path) -> None:
    curve = CostCurve("mine", (1, 3), (0.5, 0.75), drafter=DrafterCost(0.1, 0.2, 0.3, "d"), setup={"rows": 1})
    save_curve(curve, tmp_path / "curve.json", provenance={"argv": []})
    assert load_curve(tmp_path / "curve.json") == curve
    assert json.loads((tmp_path / "curve.json").read_text())["provenance"] == {"argv": []}


@pytest.mark.parametrize("name", list(NAMED_CURVES))
def test_named_curves_are_ratios_with_a_source(name: str) -> None:
    curve = load_curve(name)
    assert curve.unit == "c1" and curve.ratio(1) == 1 and curve.source and curve.drafter is None
    assert curve.ratio(21) > curve.ratio(9)


def test_the_papers_own_points() -> None:
    assert [load_curve("paper-gsm8k").ratio(r) for r in (9, 13, 21)] == [1.4, 1.6, 2.2]
    assert [load_curve("paper-mbpp").ratio(r) for r in (9, 13, 21)] == [1.7, 2.0, 2.7]


GOOD: dict[str, Any] = CostCurve("good", (1, 2), (1.0, 2.0), drafter=DrafterCost(1.0, 1.0, 1.0)).to_dict()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"replicas": [1, 1], "seconds": [1.0, 1.0]}, "start at 1 and rise"),
        ({"replicas": [2, 3], "seconds": [1.0, 1.0]}, "start at 1 and rise"),
        ({"replicas": [1, 2.5], "seconds": [1.0, 1.0]}, "whole numbers"),
        ({"replicas": [True, 2], "seconds": [1.0, 1.0]}, "whole numbers"),
        ({"replicas": [], "seconds": []}, "one cost a size"),
        ({"replicas": [1, 2, 3]}, "one cost a size"),
        ({"seconds": [1.0, 0.0]}, "a cost of 0.0"),
        ({"seconds": [1.0, -1.0]}, "positive"),
        ({"seconds": [math.nan, 1.0]}, "a cost of nan"),
        ({"seconds": [1.0, math.inf]}, "finite"),
        ({"seconds": ["1", 1.0]}, "a cost of '1'"),
        ({"seconds": 1.0}, "list of numbers"),
        ({"unit": "ms"}, "unit 'ms'"),
        ({"prefill": -1.0}, "prefill -1.0"),
        ({"round_extra": math.nan}, "round_extra nan"),
        ({"drafter": {"proposal": 1.0}}, "proposal, call and state"),
        ({"drafter": {"proposal": 1.0, "call": -2.0, "state": 0.0}}, "drafter.call -2.0"),
        ({"machine": []}, "machine is []"),
        ({"format_version": 2}, "format_version 2"),
        ({"format": "other"}, "not a cost curve"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "curve.json"
    file.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(SpotError) as raised:
        load_curve(file)
    assert words in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "[1, 2]", "{", "null"])
def test_a_file_that_is_no_curve_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "curve.json"
    file.write_text(text)
    with pytest.raises(SpotError, match=r"measure it again|not a cost curve"):
        load_curve(file)
    with pytest.raises(SpotError, match="paper-gsm8k"):
        load_curve(tmp_path / "absent.json")


def test_fewer_than_one_replica_is_a_bug() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        load_curve("cpu-core").cost(0)
