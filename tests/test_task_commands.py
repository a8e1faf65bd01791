"""Tasks on the command line, and places and names that are refused before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from task_rows import GSM8K, write_rows

from spot_infer import SpotError, load_drafter, load_target
from spot_infer.atomic import check_place
from spot_train.cli import run
from spot_train.tasks import TASKS

COMPARE = ["compare", "builtin:recipes/tiny.yaml", "--drafter", "builtin:data/tiny-sdar-drafter"]


def test_tasks_are_listed_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tasks", "list"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()] == list(TASKS)
    rows = write_rows(tmp_path / "rows.jsonl", GSM8K)
    assert run(["tasks", "show", "gsm8k", "--path", str(rows), "--limit", "2"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["prompt"][0]["content"].split("\n")[0] for one in shown] == [row["question"] for row in GSM8K]


def test_compare_takes_a_task_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, out = write_rows(tmp_path / "rows.jsonl", GSM8K), tmp_path / "out.jsonl"
    quick = ["--task", "gsm8k", "--path", str(rows), "--prompts", "1", "--budget", "2", "--output", str(out)]
    assert run([*COMPARE, *quick, "--set", "collect.max_new_tokens=4"]) == 0
    assert "1 prompts" in capsys.readouterr().out
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["task"] for row in written} == {"gsm8k"}
    assert {tuple(row["accuracy_by_family"]) for row in written} == {("gsm8k",)}
    assert {row["code_execution"] for row in written} == {None}


REFUSED: dict[str, tuple[list[str], str]] = {
    "a pool and a task": ([*COMPARE, "--pool", "a", "--task", "mbpp"], "--pool stands for --task tiny --path"),
    "an unknown task": ([*COMPARE, "--task", "mmlu"], "there is no task 'mmlu'"),
    "compare to nowhere": ([*COMPARE, "--output", "missing/rows.jsonl"], "missing/rows.jsonl can't be written"),
    "compare to a folder": ([*COMPARE, "--output", "."], ". can't be written"),
    "eval to nowhere": (
        ["eval", "--drafter", "builtin:data/tiny-sdar-drafter", "--data", "x", "--output", "missing/rows.json"],
        "missing/rows.json can't be written",
    ),
    "replay to nowhere": (
        ["replay", "--data", "x", "--output", "missing/rows.jsonl"],
        "missing/rows.jsonl can't be written",
    ),
    "a graph to nowhere": (
        ["calibrate", "graph", "builtin:recipes/tiny.yaml", "--out", "missing/graph.json"],
        "missing/graph.json can't be written",
    ),
    "a name that is too long": (
        ["calibrate", "graph", "builtin:recipes/tiny.yaml", "--out", "x" * 300],
        "can't be written (File name too long)",
    ),
    "a file of shards": (["shards", "verify", "file"], "file is not a folder; give the --out of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_sentence_before_any_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, expected = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ") and expected in printed.err and printed.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_empty_name_is_not_the_current_folder() -> None:
    for load in (load_target, load_drafter):
        with pytest.raises(SpotError, match="is empty; give a folder or a hub id"):
            load("")


def test_a_checked_place_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("kept")
    for name in ("old", "new"):
        check_place(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "kept"
