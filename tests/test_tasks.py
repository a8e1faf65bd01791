"""Tasks by name: rows from files and the hub, prompts, exemplars, splits, and what is said when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from task_rows import MBPP, ROWS, write_rows

from spot_infer.errors import SpotError
from spot_train.tasks import TASKS, load_task
from spot_train.tasks.mbpp import question


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    names = {"gsm8k": "g.jsonl", "math500": "m.jsonl.gz", "mbpp": "b.jsonl", "humaneval": "h.jsonl.gz"}
    return {task: write_rows(tmp_path / name, ROWS[task]) for task, name in names.items()}


@pytest.mark.parametrize("name", ["gsm8k", "math500"])
def test_mathematics_is_asked_zero_shot_in_chat(name: str, files: dict[str, Path]) -> None:
    task = load_task(name, files[name])
    assert [example.id for example in task.examples] == ["1", "2"]
    for example, row in zip(task.examples, ROWS[name], strict=True):
        (message,) = example.prompt
        assert isinstance(message, dict) and message["role"] == "user"
        assert message["content"].startswith(row.get("question") or row.get("problem") or "")
        assert ("####" if name == "gsm8k" else "\\boxed{}") in message["content"]
        assert row["answer"] not in message["content"]
    assert (task.max_new_tokens, task.runs_code, task.stop) == (256, False, ())
    answer = "\\boxed{0.75}" if name == "math500" else "#### 7"
    assert [task.score(example, answer) for example in task.examples] == [True, False]


def test_mbpp_is_asked_3_shot_with_the_exemplars_of_the_prompt_split(files: dict[str, Path]) -> None:
    task = load_task("mbpp", files["mbpp"])
    assert [example.id for example in task.examples] == ["11", "12"]
    prompt = task.examples[0].prompt
    assert isinstance(prompt, str)
    shots, last = prompt[: prompt.rindex("You are")], prompt[prompt.rindex("You are") :]
    expected = "".join(
        f"{question(row)}[BEGIN]\n{row['code'].replace(chr(13), '').strip()}\n[DONE]\n\n" for row in MBPP[:3]
    )
    assert shots == expected
    assert last == (
        "You are an expert Python programmer, and here is your task: Write a function to find a + b. Your code should "
        "pass these tests:\n\nassert sum(6, 3) == 9\nassert sum(8, 2) == 10\nassert sum(5, 5) == 10\n[BEGIN]\n"
    )
    assert (task.stop, task.runs_code) == (("[DONE]",), True)
    assert [example.id for example in load_task("mbpp", files["mbpp"], split="train").examples] == ["601"]


def test_humaneval_is_completed_as_text(files: dict[str, Path]) -> None:
    task = load_task("humaneval", files["humaneval"])
    (example,) = task.examples
    row = ROWS["humaneval"][0]
    assert (example.id, example.prompt, task.runs_code) == ("HumanEval/0", row["prompt"], True)
    assert task.score(example, row["canonical_solution"], allow_code_execution=True)
    assert not any(row["canonical_solution"].count(stop) for stop in task.stop)


def test_tiny_takes_the_families_in_turn() -> None:
    task = load_task("tiny", limit=9)
    families = [example.family for example in task.examples]
    assert len(set(families[:4])) == 4 and families[:4] == families[4:8]
    assert load_task("tiny", split="heldout").examples[0].prompt != task.examples[0].prompt
    assert [task.score(one, one.reference["answer"], allow_code_execution=True) for one in task.examples] == [True] * 9
    assert sum(one.runs_code for one in task.examples) == 2


def test_prompts_become_tokens_through_the_template_or_as_they_stand(files: dict[str, Path]) -> None:
    from spot_infer import load_target
    from spot_infer.api import encode_prompt

    target = load_target("builtin:data/tiny-sdar", device="cpu")
    chat = load_task("gsm8k", files["gsm8k"]).examples[0]
    assert chat.encode(target) == encode_prompt(target, chat.prompt[0]["content"])  # type: ignore[index]
    text = load_task("humaneval", files["humaneval"]).examples[0]
    assert text.encode(target) == tuple(target.tokenizer(text.prompt, add_special_tokens=False)["input_ids"])


def test_limit_takes_the_first(files: dict[str, Path]) -> None:
    assert [example.id for example in load_task("mbpp", files["mbpp"], limit=1).examples] == ["11"]


def test_the_hub_is_asked_for_the_documented_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = []

    def load_dataset(dataset: str, name: str | None, split: str) -> list[dict[str, Any]]:
        asked.append((dataset, name, split))
        task = next(task for task in ROWS if task.replace("math500", "math-500") in dataset.lower().replace("_", ""))
        low, high = {"test": (11, 510), "prompt": (1, 10)}[split]
        return [row for row in ROWS[task] if low <= row.get("task_id", 11) <= high] if task == "mbpp" else ROWS[task]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert [len(load_task(name).examples) for name in ROWS] == [2, 2, 2, 1]
    assert asked == [
        ("openai/gsm8k", "main", "test"),
        ("HuggingFaceH4/MATH-500", None, "test"),
        ("google-research-datasets/mbpp", "full", "test"),
        ("google-research-datasets/mbpp", "full", "prompt"),
        ("openai/openai_humaneval", None, "test"),
    ]


def test_offline_without_a_file_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load_dataset(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach the Hub\nsecond line")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for name in ROWS:
        with pytest.raises(SpotError, match=r"could not be fetched from the hub .*with --path$") as caught:
            load_task(name)
        assert "\n" not in str(caught.value)


WRONG: dict[str, tuple[dict[str, Any], bytes | None, str]] = {
    "an unknown task": ({"name": "gsm9k"}, None, "there is no task 'gsm9k'; use gsm8k, mbpp"),
    "no examples": ({"limit": 0}, None, "limit is 0"),
    "an unknown split": ({"name": "mbpp", "split": "dev"}, None, "no split 'dev'; use test, train"),
    "an unknown pool": ({"name": "tiny", "split": "test"}, None, "no split 'test'; use eval, heldout, train"),
    "a split of a file": ({"split": "train"}, b"{}", "split is 'train' beside a file"),
    "no file": ({"path": "nowhere.jsonl"}, None, "nowhere.jsonl can't be read"),
    "an empty file": ({}, b"\n", "holds no rows"),
    "no JSON": ({}, b'{"question": "a", "answer": "b"}\nnope\n', "line 2 is not a JSON object; give GSM8K rows"),
    "other columns": ({}, b'{"question": "a"}\n', "line 1 has no answer; give GSM8K rows (question, answer)"),
    "other values": ({}, b'{"question": "a", "answer": 7}\n', "line 1: answer is a int, not a str"),
    "not text": ({}, b"\xff\xfe", "can't be read"),
    "not gzip": ({"path": "rows.jsonl.gz"}, b"{}", "can't be read"),
    "no exemplars": (
        {"name": "mbpp"},
        json.dumps(MBPP[-1]).encode(),
        "has no task_id 2, 3, 4, an exemplar of the 3-shot prompt",
    ),
    "no row of the split": (
        {"name": "mbpp", "split": "validation"},
        "\n".join(map(json.dumps, MBPP)).encode(),
        "has no row of MBPP's validation split (task ids 511 to 600)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str, tmp_path: Path) -> None:
    fields, content, expected = WRONG[name]
    call: dict[str, Any] = {"name": "gsm8k", **fields}
    if content is not None:
        call["path"] = tmp_path / fields.get("path", "rows.jsonl")
        call["path"].write_bytes(content)
    with pytest.raises(SpotError) as caught:
        load_task(**call)
    assert expected in str(caught.value)


OFFICIAL = {
    "gsm8k": "gsm8k_test.jsonl",
    "mbpp": "mbpp.jsonl",
    "humaneval": "HumanEval.jsonl.gz",
    "math500": "math500.jsonl",
}
SIZES = {"gsm8k": 1319, "mbpp": 500, "humaneval": 164, "math500": 500}


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_official_rows(name: str, task_files: Path) -> None:
    task = load_task(name, task_files / OFFICIAL[name])
    assert len(task.examples) == SIZES[name]
    assert len({example.id for example in task.examples}) == SIZES[name]
    if name == "gsm8k":
        assert all(task.score(example, example.reference["answer"]) for example in task.examples)
    if name == "math500":
        assert all(task.score(one, f"\\boxed{{{one.reference['answer']}}}") for one in task.examples)
    if name == "mbpp":
        assert task.examples[0].id == "11" and str(task.examples[0].prompt).count("[BEGIN]") == 4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "solution"), [("mbpp", "code"), ("humaneval", "canonical_solution")])
def test_the_official_solutions_pass(name: str, solution: str, task_files: Path) -> None:
    task = load_task(name, task_files / OFFICIAL[name])
    failed = [
        one.id for one in task.examples if not task.score(one, one.reference[solution], allow_code_execution=True)
    ]
    assert not failed


def test_every_task_has_a_page() -> None:
    page = (Path(__file__).parent.parent / "docs" / "tasks.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in TASKS)
