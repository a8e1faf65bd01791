"""What loading takes: `pytest -q -s -m figures tests/test_loading_cost.py` prints docs/targets.md's table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from loading_cost import HEAD, SHAPES, cells, measure

pytestmark = pytest.mark.figures
MOST = 1.3
"""Peak memory of a load, in multiples of the weights."""
rows: list[list[str]] = []


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    yield
    lines = [["dtype", *HEAD], ["---"] * (1 + len(HEAD)), *rows]
    print("\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))


@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_loading_holds_no_second_copy_of_the_weights(dtype: str, family: str) -> None:
    one = measure(family, dtype)
    rows.append([dtype, *cells(family, one)])
    assert one["peak"] < MOST * one["weights"]
