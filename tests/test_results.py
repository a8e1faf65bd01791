"""Results files: rows survive the round trip, torn lines are never read, identities find cells again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_results import cell, curve, made_up_rows, real_cell
from pydantic import ValidationError

from spot_infer.errors import SpotError
from spot_train.results import append_rows, drop_rows, read_rows


def test_rows_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "results.jsonl"
    rows = made_up_rows()
    append_rows(path, rows[:3])
    append_rows(path, rows[3:])
    assert read_rows(path) == rows
    assert len({row.key for row in rows}) == len(rows)


@given(cut=st.integers(min_value=0))
def test_a_file_cut_anywhere_holds_whole_rows_and_can_be_continued(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "results.jsonl"
    rows = [cell(), real_cell(), curve()]
    append_rows(path, rows)
    data = path.read_bytes()
    path.write_bytes(data[: cut % (len(data) + 1)])
    kept = read_rows(path)
    assert kept == rows[: len(kept)]
    append_rows(path, rows[len(kept) :])
    assert path.read_bytes() == data


def test_identity_is_what_was_asked_and_not_what_came_out():
    assert cell().key == cell(nfe=(1, 2, 3, 4), drafter_calls=5.0).key
    for changes in (
        {"budget": 9},
        {"options": {"floor": 0.1}},
        {"seed": 1},
        {"verifier": "greedy"},
        {"suite": "oracle"},
    ):
        assert cell(**changes).key != cell().key


def test_dropped_rows_are_gone_and_the_rest_is_unchanged(tmp_path):
    path = tmp_path / "results.jsonl"
    rows = [cell(), real_cell(), curve()]
    append_rows(path, rows)
    drop_rows(path, {rows[1].key})
    assert read_rows(path) == [rows[0], rows[2]]


@pytest.mark.parametrize(
    ("change", "named"),
    [({"nfe": "many"}, "nfe"), ({"budgets": 3}, "budgets"), ({"kind": "picture"}, "kind"), ({"n": None}, "n")],
)
def test_a_line_that_is_no_row_is_named_with_its_key(tmp_path, change, named):
    path = tmp_path / "results.jsonl"
    append_rows(path, [curve()])
    with path.open("a") as file:
        file.write(json.dumps(cell().model_dump() | change) + "\n")
    with pytest.raises(SpotError, match=rf"results.jsonl line 2.*{named}"):
        read_rows(path)


def test_a_missing_file_is_a_user_error(tmp_path):
    with pytest.raises(SpotError, match="can't be read"):
        read_rows(tmp_path / "none.jsonl")


def test_unequal_lengths_are_refused():
    with pytest.raises(ValidationError):
        curve(x=[0, 1])
    with pytest.raises(ValidationError):
        cell(per_prompt={"nfe": [1, 2], "draft_free_nfe": [3]})
