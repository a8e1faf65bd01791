"""`spot-infer`: one text with and without drafts, resumable files, the live picture, errors in one sentence."""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from fake_dlm import FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st
from lossless_cases import run as decode_all
from odd_drafters import HugeDrafter
from rich.console import Console
from small_families import save_llada
from small_target import save_small_target

from spot_infer import GenerationConfig
from spot_infer.blocks import BlockState, Commit
from spot_infer.checkpoint import PretrainedDrafter, save_drafter
from spot_infer.cli import app, run
from spot_infer.drafters import OracleDrafter, OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.generate_run import load_run
from spot_infer.graph import DraftGraph
from spot_infer.live import COMMITTED, DRAFTED, MASKED, NEW, LiveView, block_cells, graph_nodes, live_frames, visible
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_infer.prompts_io import ResultsFile, read_prompts
from spot_infer.requests import Boundary, DecodeSettings, Request, Round
from spot_infer.table import StaleTable
from spot_infer.transition import CommitRule, Sampling

BLOCK = 8


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags that name a small random target in float64 and a random drafter for it."""
    folder = tmp_path_factory.mktemp("models")
    save_small_target(folder / "target", block_size=BLOCK)
    torch.manual_seed(0)
    save_drafter(PretrainedDrafter(OrderModel(OrderModelConfig(BLOCK))), folder / "drafter")
    return ["--target", str(folder / "target"), "--drafter", str(folder / "drafter"), "--dtype", "float64"]


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_an_approximate_cache_is_named_before_anything_is_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_llada(tmp_path / "target")
    (tmp_path / "prompts.jsonl").write_text('{"tokens": [5, 6, 7]}\n')
    command = ["generate", "--target", str(tmp_path / "target"), "--input", str(tmp_path / "prompts.jsonl")]
    command += ["--block-length", "4", "--max-new-tokens", "4", "--json"]
    for cache, said in (("prefix", True), ("dual", True), ("none", False)):
        assert run([*command, "--cache", cache]) == 0
        shown = capsys.readouterr()
        assert (f"note: distribution_preserving: no, approximate {cache} cache" in shown.err) is said
        assert rows_of(shown.out)[0]["stats"]["distribution_preserving"] is not said


def test_drafts_change_forwards_and_not_the_text(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    common = ["generate", "--prompt", "two plus two", "--prompt", "name a fruit", "--n", "2", "--max-new-tokens", "20"]
    common += ["--temperature", "0.8", "--seed", "5", "--ignore-stop", "--json"]
    assert run([*common, *models, "--budget", "6"]) == 0
    drafted = rows_of(capsys.readouterr().out)
    assert run([*common, *models[:2], *models[4:], "--draft-free"]) == 0
    free = rows_of(capsys.readouterr().out)
    key = lambda row: (row["id"], row["sample"])  # noqa: E731
    assert sorted(map(key, drafted)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for one, other in zip(sorted(drafted, key=key), sorted(free, key=key), strict=True):
        assert one["tokens"] == other["tokens"]
        assert one["text"] == other["text"]
        assert len(one["tokens"]) == 20
        assert one["stats"]["draft_free_nfe"] == other["stats"]["draft_free_nfe"] == other["stats"]["nfe"]
        spared = one["stats"]["accepted"] + one["stats"]["boundaries"] + 1  # the first block's opening
        assert one["stats"]["nfe"] == other["stats"]["nfe"] - spared
    assert sum(row["stats"]["drafted"] for row in drafted) > 0
    assert len({tuple(row["tokens"]) for row in free}) == 4


def write_prompts(path: Path, count: int = 5) -> Path:
    lines = [{"prompt": f"say {n}", "id": f"row-{n}"} if n % 2 else {"tokens": [20 + n, 21, 22]} for n in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_cut_results_file_is_completed_to_what_an_uninterrupted_run_gives(
    models: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = write_prompts(tmp_path / "prompts.jsonl"), tmp_path / "results.jsonl"
    command = ["generate", "--input", str(prompts), "--output", str(out), "--max-new-tokens", "9", *models]
    assert run(command) == 0
    whole = out.read_bytes()
    names = {row["id"] for row in rows_of(whole.decode())}
    assert names == {0, "row-1", 2, "row-3", 4}
    lines = whole.splitlines(keepends=True)
    for cut in (0, len(lines[0]) - 1, len(lines[0]), len(whole) - 1, len(whole)):
        out.write_bytes(whole[:cut])
        assert run(command) == 0
        kept = whole[:cut].rfind(b"\n") + 1
        assert out.read_bytes()[:kept] == whole[:kept]
        again = rows_of(out.read_text())
        assert len(again) == 5
        assert {row["id"]: row["tokens"] for row in again} == {
            row["id"]: row["tokens"] for row in rows_of(whole.decode())
        }
    assert "5 were already there" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["prompts", "settings"])
def test_another_runs_rows_are_refused(
    models: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", 2), tmp_path / "results.jsonl"
    command = ["generate", "--input", str(prompts), "--output", str(out), "--max-new-tokens", "3", *models]
    assert run(command) == 0
    before = out.read_bytes()
    if change == "prompts":
        prompts.write_text(prompts.read_text() + '{"prompt": "one more"}\n')
    else:
        command += ["--seed", "1"]
    capsys.readouterr()
    assert run(command) == 2
    assert f"made with other {change}" in capsys.readouterr().err
    assert out.read_bytes() == before


json_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)


@settings(max_examples=40)
@given(st.lists(json_text, min_size=1, max_size=4), st.integers(0, 10**6))
def test_any_prefix_of_a_results_file_keeps_its_whole_rows(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], where: int
) -> None:
    path = tmp_path_factory.mktemp("results") / "results.jsonl"
    with ResultsFile(path, {"prompts": "a"}) as results:
        for index, text in enumerate(texts):
            results.append(index, 0, {"text": text})
    whole = path.read_bytes()
    cut = where % (len(whole) + 1)
    path.write_bytes(whole[:cut])
    with ResultsFile(path, {"prompts": "a"}) as results:
        assert results.done == {(index, 0) for index in range(whole[:cut].count(b"\n"))}
        results.append("last", 0, {"text": texts[0]})
    assert path.read_bytes().startswith(whole[: whole[:cut].rfind(b"\n") + 1])
    assert path.read_bytes().endswith(b"\n")


@given(st.lists(json_text.filter(lambda text: bool(text.strip())), min_size=1, max_size=4))
def test_prompts_of_any_characters_are_read_back(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}, ensure_ascii=False) + "\n" for text in texts), newline="\n")
    read = read_prompts(path)
    assert [(row.id, row.prompt, row.line) for row in read.rows] == [(i, t, i + 1) for i, t in enumerate(texts)]
    assert len(read.digest) == 16


def test_two_writers_of_one_results_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ResultsFile(path, {}), pytest.raises(SpotError, match="another process"), ResultsFile(path, {}):
        pass
    with ResultsFile(path, {}) as results:
        assert results.done == set()


BAD_COMMANDS = [
    (["--max-new-tokens", "4"], "--prompt"),
    (["--prompt", "a", "--input", "x.jsonl"], "one of the two"),
    (["--prompt", "a", "--output", "x.jsonl"], "--output needs --input"),
    (["--input", "missing.jsonl"], "missing.jsonl"),
    (["--prompt", "a", "--target", "no-such-folder"], "no-such-folder"),
    (["--prompt", "a", "--temperature", "-1"], "temperature is -1"),
    (["--prompt", "a", "--top-p", "0"], "top_p is 0"),
    (["--prompt", "a", "--top-k", "-3"], "top_k is -3"),
    (["--prompt", "a", "--layout", "diagonal"], "layout is 'diagonal'"),
    (["--prompt", "a", "--floor", "1"], "floor is 1"),
    (["--prompt", "a", "--n", "0"], "n is 0"),
    (["--prompt", "a", "--stop", ""], "stop holds an empty string"),
    (["--prompt", "a", "--resolution", "float8"], "resolution is 'float8'"),
    (["--prompt", "a", "--resolution", "0.9"], "resolution is 0.9"),
    (["--prompt", "a", "--ranking", "luck"], "ranking is 'luck'"),
    (["--prompt", "a", "--selection", "all"], "selection is 'all'"),
    (["--prompt", "a", "--quota", "0"], "quota is 0"),
    (["--prompt", "a", "--draft-free", "--drafter", "x"], "--draft-free and --drafter"),
    (["--prompt", "a", "--budget", "-1"], "error: budget is -1"),
    (["--prompt", "a", "--batch-size", "0"], "batch_size is 0"),
    (["--prompt", "a", "--verifier", "typical"], "verifier is 'typical'"),
]


@pytest.mark.parametrize(("flags", "words"), BAD_COMMANDS, ids=[words for _, words in BAD_COMMANDS])
def test_a_bad_flag_is_one_sentence_and_exit_code_2(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["generate", *flags]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert words in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


BAD_LINES = [
    (b"", "holds no prompts"),
    (b"{not json}\n", "line 1 is not JSON"),
    (b'{"prompt": "a"}\n[1]\n', "line 2 has no prompt"),
    (b'{"question": "a"}\n', "line 1 has no prompt"),
    (b'{"prompt": "a", "tokens": [1]}\n', "prompt and tokens"),
    (b'{"prompt": 3}\n', "prompt is 3"),
    (b'{"messages": []}\n', "messages is []"),
    (b'{"messages": ["hi"]}\n', "messages is ['hi']"),
    (b'{"messages": [{"role": "user"}]}\n', "role and content"),
    (b'{"tokens": [1, "2"]}\n', "tokens is [1, '2']"),
    (b'{"tokens": [1, true]}\n', "tokens is [1, True]"),
    (b'{"tokens": []}\n', "prompts.jsonl line 1 is empty"),
    (b'{"prompt": "a"}\n{"tokens": [3]}\n', "prompts.jsonl line 2 holds the mask token"),
    (b'{"prompt": "a", "id": true}\n', "id is True"),
    (b'{"tokens": [99999]}\n', "token id 99999"),
    (b'{"prompt": " "}\n', "is empty"),
    (b'{"prompt": "a"}\n{"tokens": [' + b"9, " * 300 + b"9]}\n", "line 2"),
    (b'{"prompt": "a", "id": 1.5}\n', "id is 1.5"),
    (b'{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}\n', "lines 1 and 2"),
    (b'{"prompt": "\xff"}\n', "not UTF-8"),
]


@pytest.mark.parametrize(("content", "words"), BAD_LINES, ids=[words for _, words in BAD_LINES])
def test_a_bad_prompt_file_is_one_sentence_that_names_the_line(
    content: bytes, words: str, models: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_bytes(content)
    assert run(["generate", "--input", str(prompts), "--output", str(out), "--max-new-tokens", "4", *models]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert words in printed.err
    assert "prompts.jsonl" in printed.err
    assert not out.exists()


def test_a_byte_order_mark_is_no_part_of_a_prompt_file(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n{"prompt": "b"}\n')
    assert [row.prompt for row in read_prompts(prompts).rows] == ["a", "b"]


@pytest.mark.parametrize("verifier", ["uncoupled", "greedy", "rejection"])
def test_a_verifier_is_recorded_with_what_it_promises(
    verifier: str, models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--prompt", "a", "--max-new-tokens", "8", "--temperature", "1", "--verifier", verifier, "--json"]
    assert run(["generate", *flags, *models]) == 0
    printed = capsys.readouterr()
    stats = json.loads(printed.out)["stats"]
    assert stats["distribution_preserving"] is (verifier != "greedy")
    assert stats["reason"]
    assert ("drafts no branches" in printed.err) is (verifier == "rejection")


@pytest.mark.parametrize("line", ["garbage", "{}", '{"id": 1, "sample": 0}', '{"id": 1, "sample": 0, "run": 3}'])
def test_a_file_of_something_else_is_not_taken_for_results(tmp_path: Path, line: str) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(SpotError, match="line 1"), ResultsFile(path, {"prompts": "a"}):
        pass
    assert path.read_text() == line + "\n"


def test_every_generation_setting_is_a_flag_with_the_same_default() -> None:
    command = typer.main.get_command(app).commands["generate"]  # type: ignore[attr-defined]
    options = {parameter.name: parameter for parameter in command.params}
    settings = {field.name: getattr(GenerationConfig(), field.name) for field in fields(GenerationConfig)}
    for name, value in {**settings, **CommitRule().to_dict()}.items():
        if name != "rule":
            expected = value or options[name].default
            assert options[name].default == (str(expected) if name == "budget" else expected)


def test_env_names_versions_machine_and_packaged_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runtime"]["torch"] == torch.__version__
    assert found["packaged"]["data/tiny-sdar"].endswith(" MB")
    assert found["torch_threads"] == torch.get_num_threads()
    assert run(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(found)
    assert all(": " in line for line in lines)


def letters(token: int) -> str:
    return chr(ord("a") + token)


def example_round() -> Round:
    """Slot 0 was filled; 2 was drafted and accepted, 1 is the target's own; 3 was drafted, 4 and 5 were not."""
    root = BlockState(8, (7, 9, 9, 9, 9, 9), 9)
    graph = DraftGraph()
    first = graph.add(0, frozenset([Commit(10, 2)]), 0.6)
    graph.add(first, frozenset([Commit(11, 3)]), 0.3)
    graph.add(0, frozenset([Commit(11, 5)]), 0.1)
    steps = (frozenset([Commit(10, 2)]), frozenset([Commit(9, 1)]))
    top = np.full((4, 32), -1, dtype=np.int32)
    top[:, 0] = [1, 4, 8, 0]
    table = StaleTable(
        np.array([1, 3, 4, 5], np.uint8),
        np.zeros((4, 32), np.float16),
        top,
        np.zeros(4, np.float32),
    )
    return Round(0, root, graph, steps, (table,))


def test_the_picture_tells_committed_drafted_and_masked_slots_apart() -> None:
    assert block_cells(example_round(), letters) == [
        ("h", COMMITTED),
        ("b", NEW),
        ("c✓", NEW),
        ("d", DRAFTED),
        ("i", MASKED),
        ("a", MASKED),
    ]


def test_the_graph_lists_every_state_under_a_parent_with_the_accepted_path_first() -> None:
    nodes = graph_nodes(example_round())
    assert [(line.node, line.parent, line.depth, line.accepted) for line in nodes] == [
        (1, 0, 0, True),
        (2, 1, 1, False),
        (3, 0, 0, False),
    ]
    assert nodes[1].commits == (Commit(11, 3),)


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize(("width", "boundary"), [(30, "fused"), (80, "separate"), (140, "fused")])
def test_every_round_of_a_run_can_be_drawn_and_the_statistics_end_at_the_results(
    merged: bool, width: int, boundary: Boundary
) -> None:
    target = FakeTarget(seed=4, block_length=8, vocab_size=20)
    decode_settings = DecodeSettings(max_new_tokens=20, budget=8, sampling=Sampling(1.0), boundary=boundary)
    outcome = decode_all(target, [Request((3, 4), 9)], decode_settings, HugeDrafter(merged))[0]
    console = Console(record=True, width=width, force_terminal=True, file=StringIO())
    view = LiveView(target.tokenizer.decode, target.tokenizer.decode, drafting=True)
    for round_ in outcome.rounds:
        view.update(round_)
        if round_.graph is not None:
            assert {line.node for line in graph_nodes(round_)} == set(range(1, len(round_.graph) + 1))
        console.print(view)
    stats = outcome.rounds[-1].result.stats  # type: ignore[union-attr]
    free = stats.draft_free_nfe
    assert f"NFE {stats.nfe} · draft-free {free} · {free / stats.nfe:.2f}x" in view.stats_line
    assert f"{stats.accepted_per_round:.1f} accepted a round" in view.stats_line
    lines = console.export_text().splitlines()
    assert len(lines) > 3 * len(outcome.rounds)
    assert all(len(line) <= width for line in lines)


def test_live_frames_follow_the_first_unfinished_request_of_a_batch() -> None:
    target = FakeTarget(seed=4, block_length=4, stop_ids=())
    decode_settings = DecodeSettings(max_new_tokens=6, budget=3, batch_size=2)
    requests = [Request((3,), 1), Request((5, 6), 2), Request((7,), 3)]
    steps = {index: one.decoded.steps for index, one in enumerate(decode_all(target, requests, decode_settings, None))}
    outcomes = decode_all(target, requests, decode_settings, OracleDrafter("joint", steps))
    console = Console(record=True, width=100, force_terminal=True, file=StringIO())
    with live_frames(lambda: LiveView(letters, target.tokenizer.decode, True), console) as show:
        for outcome in outcomes:
            for round_ in outcome.rounds:
                show(round_)
    assert outcomes[-1].decoded.text in console.export_text()


@pytest.mark.parametrize(
    ("text", "drawn"),
    [(" a", "␣a"), ("\n", "↵"), ("", "∅"), ("<|im_end|>", "⟨im_end⟩"), ("longer than a cell", "longer␣…")],
)
def test_tokens_are_drawn_on_one_line_within_a_cell(text: str, drawn: str) -> None:
    assert visible(text) == drawn


@pytest.mark.slow
def test_results_survive_twelve_kills(models: list[str], tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", 36), tmp_path / "results.jsonl"
    flags = ["generate", "--input", str(prompts), "--max-new-tokens", "24", "--batch-size", "2", *models, "--output"]
    random = np.random.default_rng(0)
    kills = 0
    while kills < 12:
        rows = out.read_bytes().count(b"\n") if out.exists() else 0
        assert rows < 36
        child = multiprocessing.get_context("fork").Process(target=run, args=([*flags, str(out)],))
        child.start()
        while child.is_alive() and (not out.exists() or out.read_bytes().count(b"\n") <= rows):
            time.sleep(0.002)
        time.sleep(float(random.uniform(0, 0.02)))
        child.kill()
        child.join()
        kills += child.exitcode == -signal.SIGKILL
    assert run([*flags, str(out)]) == 0
    assert run([*flags, str(tmp_path / "whole.jsonl")]) == 0
    assert len(rows_of(out.read_text())) == 36
    texts = [
        {row["id"]: (row["tokens"], row["text"], row["finish_reason"]) for row in rows_of(path.read_text())}
        for path in (out, tmp_path / "whole.jsonl")
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("resolution", "trained"), [("float32",) * 2, ("bfloat16",) * 2, (0.05, "bfloat16")])
def test_without_names_the_packaged_drafter_is_of_the_nearest_rule(resolution: Any, trained: str) -> None:
    found = load_run(None, None, False, GenerationConfig(rule=CommitRule(resolution=resolution)), {}, None)
    assert isinstance(found.drafter, OrderDrafter)
    assert (found.drafter.rule.resolution, found.drafter.model.config.scorer) == (trained, "one_call")
