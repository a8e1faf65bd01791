"""The prompt pools: splits, seeds, gold answers, wordings."""

import json
from functools import partial
from pathlib import Path

import make_pools
import pytest
from problems import SPLITS

from spot_train.tasks import CodeExecutionNotAllowed
from spot_train.tasks.sandbox import Limits, passes
from spot_train.tasks.tiny import score

DATA = Path(__file__).parent.parent / "data"


def read(split: str) -> list[dict]:
    lines = (DATA / "pools" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def pools() -> dict[str, list[dict]]:
    return {split: read(split) for split in SPLITS}


def test_sizes_and_families(pools):
    assert {split: len(rows) for split, rows in pools.items()} == make_pools.ROWS
    for rows in pools.values():
        counts = [sum(row["family"] == family for row in rows) for family in make_pools.FAMILIES]
        assert min(counts) >= 0.2 * len(rows)


def test_splits_are_disjoint_by_prompt_and_by_content(pools):
    for key in ("prompt", "content"):
        seen = [{row[key] for row in pools[split]} for split in SPLITS]
        assert not seen[0] & seen[1]
        assert not seen[2] & (seen[0] | seen[1])
    for rows in pools.values():
        assert len({row["prompt"] for row in rows}) == len(rows)


@pytest.mark.parametrize("split", SPLITS)
def test_the_seed_reproduces_the_bytes(split, tmp_path):
    path = tmp_path / f"{split}.jsonl"
    make_pools.write_pool(path, make_pools.make_pool(split, make_pools.ROWS[split], seed=0))
    assert path.read_bytes() == (DATA / "pools" / path.name).read_bytes()


def test_another_seed_gives_other_rows():
    first, second = (make_pools.make_pool("heldout", 20, seed) for seed in (0, 1))
    assert first != second


def test_a_fifth_of_eval_is_worded_as_nothing_else_is(pools):
    unseen = [row for row in pools["eval"] if row["wording"] == "unseen"]
    assert len(unseen) * 5 == len(pools["eval"])
    assert {row["family"] for row in unseen} == set(make_pools.FAMILIES)
    assert all(row["wording"] == "seen" for row in pools["train"] + pools["heldout"])


def test_unseen_wordings_are_not_seen_ones():
    import problems_code
    import problems_json
    import problems_list
    import problems_math
    from problems import Phrases

    for module in (problems_code, problems_json, problems_list, problems_math):
        values = [v for v in vars(module).values() if isinstance(v, Phrases)]
        values += list(getattr(module, "_WORDS", {}).values())
        assert values
        for phrases in values:
            assert not set(phrases.seen) & set(phrases.unseen)


def test_most_tasks_need_computing(pools):
    computing = [row["task"] not in make_pools.COPYING_TASKS for row in pools["eval"]]
    assert sum(computing) >= len(computing) / 2


def test_gold_answers_are_solved(pools):
    for row in pools["eval"] + pools["heldout"]:
        if row["family"] != "code":
            assert score(row, row["answer"]), row
    for row in [row for row in pools["eval"] if row["family"] == "code"][:20]:
        assert score(row, row["answer"], allow_code_execution=True), row


def test_wrong_answers_are_not_solved(pools):
    rows = [row for row in pools["heldout"] if row["family"] != "code"]
    for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
        assert not score(row, "")
        assert not score(row, row["answer"] + " or so")
        if row["scorer"] != other["scorer"]:
            assert not score(row, other["answer"])


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return x",
        "def f(x)\n    return x + 1",
        "def f(x):\n    while True: pass",
        "raise SystemExit(0)",
        "def f(x):\n    return ' ' * 10**10",
        "",
    ],
)
def test_wrong_code_is_not_solved(text, monkeypatch):
    monkeypatch.setattr("spot_train.tasks.tiny.passes", partial(passes, limits=Limits(cpu_s=1)))
    row = {"scorer": {"type": "code", "function": "f", "tests": ["assert f(1) == 2"]}}
    assert score(row, "def f(x):\n    return x + 1", allow_code_execution=True)
    assert not score(row, text, allow_code_execution=True)


def test_code_runs_only_when_allowed():
    row = {"scorer": {"type": "code", "function": "f", "tests": ["assert f(1) == 2"]}}
    with pytest.raises(CodeExecutionNotAllowed, match="allow_code_execution=True"):
        score(row, "def f(x):\n    return x + 1")


def test_json_scoring_tells_numbers_from_booleans():
    row = {"scorer": {"type": "json", "value": {"a": 1}}}
    assert score(row, 'text first\n{"a": 1}')
    assert not score(row, '{"a": true}')
    assert not score(row, '{"a": 1, "b": 2}')
