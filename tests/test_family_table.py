"""The table of families: `pytest -q -s -m figures tests/test_family_table.py` prints it (docs/targets.md has it)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from family_figures import COLUMNS, LOSSLESS, Row, measure
from official_blocks import TOLERANCE

pytestmark = pytest.mark.figures
REFERENCE = Path(__file__).resolve().parent.parent.parent / "shared" / "reference"
rows: list[Row] = []


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    yield
    lines = [COLUMNS, ["---"] * len(COLUMNS), *(row.cells() for row in rows)]
    print("\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines))


@pytest.mark.parametrize("family", LOSSLESS)
def test_a_family_is_what_it_was_published_as(family: str) -> None:
    row = measure(family, REFERENCE, 60)
    rows.append(row)
    assert max(row.full, row.cached, row.next_block or 0.0, row.isolation) < TOLERANCE
    assert row.ids is None or row.ids[0] == row.ids[1]
    assert row.lossless[0] == row.lossless[1] >= 60
