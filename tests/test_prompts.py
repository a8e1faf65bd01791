"""Prompts: read from every kind of file, skipped for a counted reason, held out by what they say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collecting import fake_target
from hypothesis import given, settings
from hypothesis import strategies as st

from spot_infer.decode import check_requests
from spot_infer.errors import SpotError
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets.protocol import Target
from spot_train.prompts import content_hash, is_heldout, load_prompts
from spot_train.recipe.recipe import parse_recipe


class WordTokenizer:
    """One id a word, in order of first use; a chat template that wraps turns in marks."""

    chat_template = "words"

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [2 + self.ids.setdefault(word, len(self.ids)) for word in text.split()]}

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **_: object) -> str:
        return " ".join(f"<{turn['role']}> {turn['content']} <end>" for turn in messages) + " <assistant>"


def target(**changed: Any) -> Target:
    fake = fake_target()
    fake.tokenizer = WordTokenizer()  # type: ignore[assignment]
    fake.spec = replace(fake.spec, vocab_size=1000, mask_id=999, forbidden_ids=(999,), **changed)
    return fake  # type: ignore[return-value]


def load(folder: Path, rows: Sequence[Any], on: Target | None = None, **section: Any) -> tuple[list[Any], Any]:
    file = folder / "pool.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"path_or_id": str(file), **section.pop("source", {})}
    collect = section.pop("collect", {})
    tree = {"target": {"path_or_id": "x"}, "prompts": {"sources": [source], **section}, "collect": collect}
    return load_prompts(parse_recipe(tree), on or target())


def test_every_skipped_row_is_counted_by_reason(tmp_path: Path) -> None:
    evaluation = tmp_path / "evaluation.jsonl"
    evaluation.write_text('{"question": "What  is\\nhidden?"}\n')
    rows = [
        {"prompt": "one two"},
        {"prompt": "one two"},
        {"prompt": "  "},
        {"prompt": None},
        {"prompt": "What is hidden?"},
        {"prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "What is hidden?"}]},
        {"prompt": [{"role": "user", "content": "  "}]},
        {"prompt": [5, 999]},
        {"prompt": "long " * 90},
        {"prompt": [4, 5, 6]},
    ]
    prompts, report = load(
        tmp_path,
        rows,
        target(max_positions=128),
        evaluation=[{"path_or_id": str(evaluation), "field": "question"}],
        collect={"max_new_tokens": 40},
    )
    assert report.skipped == {"empty": 3, "evaluation": 2, "duplicate": 1, "mask_token": 1, "too_long": 1}
    assert (report.rows, report.used) == (10, 2)
    assert prompts[1].prompt_ids == (4, 5, 6)
    assert [match["row"] for match in report.evaluation_matches] == [4, 5]
    assert len({match["content_hash"] for match in report.evaluation_matches}) == 1
    assert "1 too long" in report.sentence()
    assert "1 mask token" in report.sentence()


def test_strings_go_through_the_template_unless_raw(tmp_path: Path) -> None:
    on = target()
    words = on.tokenizer
    templated = load(tmp_path, [{"prompt": "hello"}], on)[0][0].prompt_ids
    assert templated == tuple(words("<user> hello <end> <assistant>")["input_ids"])
    assert load(tmp_path, [{"prompt": "hello"}], on, raw=True)[0][0].prompt_ids == tuple(words("hello")["input_ids"])
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    several = load(tmp_path, [{"messages": turns}], on)[0][0].prompt_ids
    expected = words("<user> a <end> <assistant> b <end> <user> c <end> <assistant>")["input_ids"]
    assert several == tuple(expected)


def test_columns_templates_and_limits(tmp_path: Path) -> None:
    rows = [{"ask": f"q{i}", "input": "x" if i % 2 else None, "answer": [i]} for i in range(8)]
    assert len(load(tmp_path, rows, source={"field": "ask", "limit": 5})[0]) == 5
    assert load(tmp_path, rows, source={"field": "ask"}, limit=3)[1].rows == 3
    on = target()
    filled = load(tmp_path, rows, on, source={"template": "{ask} of {input}"}, raw=True)[0]
    assert filled[1].prompt_ids == tuple(on.tokenizer("q1 of x")["input_ids"])
    assert filled[0].prompt_ids == tuple(on.tokenizer("q0 of")["input_ids"])
    braces = load(tmp_path, [{"prompt": "use {this} and {ask}", "ask": "no"}], on, source={"template": "{prompt}"})
    assert braces[0][0].content_hash == content_hash("use {this} and {ask}")


def test_parquet_reads_like_jsonl(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{"prompt": f"prompt {i}", "other": i} for i in range(20)]
    file = tmp_path / "pool.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    lines, _ = load(tmp_path, rows)
    tree = {"target": {"path_or_id": "x"}, "prompts": {"sources": [{"path_or_id": str(file)}]}}
    columns, _ = load_prompts(parse_recipe(tree), target())
    assert [prompt.content_hash for prompt in columns] == [prompt.content_hash for prompt in lines]
    assert [prompt.heldout for prompt in columns] == [prompt.heldout for prompt in lines]


def test_held_out_depends_on_content_and_not_on_place(tmp_path: Path) -> None:
    rows = [{"prompt": f"question {i}"} for i in range(400)]
    chosen = {prompt.content_hash for prompt in load(tmp_path, rows, heldout_fraction=0.25)[0] if prompt.heldout}
    assert 60 < len(chosen) < 140
    shuffled = rows[::-1] + [{"prompt": f"more {i}"} for i in range(50)]
    again = {prompt.content_hash for prompt in load(tmp_path, shuffled, heldout_fraction=0.25)[0] if prompt.heldout}
    assert chosen <= again
    assert chosen == again & {content_hash(row["prompt"]) for row in rows}
    assert not any(prompt.heldout for prompt in load(tmp_path, rows, heldout_fraction=0.0)[0])
    wrapped = [{"role": "system", "content": "be brief"}, {"role": "user", "content": " question  7\n"}]
    assert content_hash(wrapped) == content_hash("question 7")
    assert content_hash("question 7") != content_hash("question 8")


@given(st.text("0123456789abcdef", min_size=64, max_size=64), st.floats(0, 0.99), st.floats(0, 0.99))
def test_a_larger_fraction_holds_out_more(digest: str, one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert is_heldout(digest, large) or not is_heldout(digest, small)


@settings(max_examples=30)
@given(length=st.integers(1, 140), new_tokens=st.integers(1, 120))
def test_too_long_is_what_the_decoder_refuses(
    tmp_path_factory: pytest.TempPathFactory, length: int, new_tokens: int
) -> None:
    on = target(max_positions=128)
    folder = tmp_path_factory.mktemp("pool")
    ids = list(range(2, 2 + length))
    _, report = load(folder, [{"prompt": ids}, {"prompt": [999 - 1]}], on, collect={"max_new_tokens": new_tokens})
    request, settings_ = Request(tuple(ids)), DecodeSettings(max_new_tokens=new_tokens)
    if report.skipped["too_long"]:
        with pytest.raises(SpotError, match="the target holds 128"):
            check_requests(on.spec, [request], settings_)
    else:
        check_requests(on.spec, [request], settings_)


def test_the_report_names_the_prompts_it_stands_for(tmp_path: Path) -> None:
    rows = [{"prompt": f"question {i}"} for i in range(6)]
    one = load(tmp_path, rows)[1].sha256
    assert one == load(tmp_path, [*rows, rows[0]])[1].sha256
    assert one != load(tmp_path, rows[::-1])[1].sha256
    assert one != load(tmp_path, rows[:5])[1].sha256
