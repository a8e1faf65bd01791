"""Loading as published checkpoints need it: tokenizers without their code, hub names offline, no prompt with masks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_families import SAVERS, save_dream
from small_target import save_small_target
from tokenizers import pre_tokenizers
from transformers import Qwen2Tokenizer

from spot_infer import GenerationConfig, SpotError, generate, load_target
from spot_infer import cli as infer_cli
from spot_infer.checkpoint import DrafterInfo, PretrainedDrafter, save_drafter
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_train import cli as train_cli
from spot_train.collect.collect import load_recipe_target
from spot_train.prompts import load_prompts
from spot_train.recipe.recipe import parse_recipe

REPO = Path(__file__).resolve().parent.parent
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def add_published_tokenizer(folder: Path, tokenizer_class: str | None) -> None:
    """A vocabulary of bytes as Dream and SDAR publish theirs: vocab.json, merges.txt, and code that must not run."""
    vocabulary = {piece: number for number, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {"he": 256, "the": 257}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\nt he\n")
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    added = {str(number): {"content": f"<|{name}|>", **flags} for number, name in ((258, "mask"), (259, "im_start"))}
    config = {"added_tokens_decoder": added, "mask_token": "<|mask|>", "chat_template": TEMPLATE}
    if tokenizer_class is not None:
        config |= {"tokenizer_class": tokenizer_class}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**config, "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}})
    )
    (folder / "tokenization_own.py").write_text("raise SystemExit('the code of the checkpoint ran')\n")
    (folder / "configuration_own.py").write_text("raise SystemExit('the code of the checkpoint ran')\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "configuration_own.OwnConfig"}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("model_type", ["sdar", "sdar_moe", "Dream"])
@pytest.mark.parametrize("tokenizer_class", ["OwnTokenizer", "Qwen2Tokenizer", None])
def test_a_published_vocabulary_loads_without_the_checkpoints_code(
    model_type: str, tokenizer_class: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SAVERS[model_type](tmp_path)
    add_published_tokenizer(tmp_path, tokenizer_class)
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    tokenizer = load_target(tmp_path, mask_id=95).tokenizer
    assert isinstance(tokenizer, Qwen2Tokenizer)
    ids = tokenizer("the <|mask|>1", add_special_tokens=False)["input_ids"]
    assert 257 in ids and ids[-2] == 258 and tokenizer.decode(ids) == "the <|mask|>1"
    tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "vocab.json").unlink()
    assert load_target(tmp_path, mask_id=95).tokenizer("the <|mask|>1")["input_ids"] == ids


def test_a_tokenizer_that_is_code_alone_is_one_sentence(tmp_path: Path) -> None:
    SAVERS["llada"](tmp_path)
    add_published_tokenizer(tmp_path, "OwnTokenizer")
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).unlink()
    with pytest.raises(SpotError, match=r"without the checkpoint's own code.*tokenizer\.json"):
        load_target(tmp_path)


@pytest.fixture
def hub_cache(tmp_path: Path) -> Path:
    """The cache of a machine that has fetched owner/small once, and no network."""
    repository = tmp_path / "cache" / "models--owner--small"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("a" * 40)
    save_small_target(repository / "snapshots" / ("a" * 40))
    return tmp_path / "cache"


@pytest.fixture
def offline(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub_cache))


def test_offline_a_fetched_hub_name_loads_and_its_commit_is_recorded(offline: None) -> None:
    target = load_target("owner/small")
    assert (target.spec.name, target.spec.revision) == ("owner/small", "a" * 40)
    assert load_target("owner/small", revision="a" * 40).spec.revision == "a" * 40
    with pytest.raises(SpotError, match="at revision v9, and HF_HUB_OFFLINE is set"):
        load_target("owner/small", revision="v9")


def test_a_revision_of_a_folder_is_refused(tmp_path: Path) -> None:
    folder = save_small_target(tmp_path)
    assert load_target(folder).spec.revision is None
    with pytest.raises(SpotError, match=r"revision is 'main', but .* is a folder"):
        load_target(folder, revision="main")


def test_offline_every_command_says_one_sentence(hub_cache: Path, tmp_path: Path) -> None:
    recipe = {"target": {"path_or_id": "no/where"}, "prompts": {"sources": [{"path_or_id": "no/pool"}]}}
    (tmp_path / "target.yaml").write_text(yaml.safe_dump(recipe))
    recipe["target"]["path_or_id"] = "owner/small"
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(recipe))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub_cache), "HF_HOME": str(tmp_path)}
    commands = f"""
from spot_infer.cli import run as infer
from spot_train.cli import run as train
codes = [infer(["generate", "--target", "no/where", "--prompt", "a"]),
    train(["collect", "{tmp_path}/target.yaml", "--out", "{tmp_path}/one"]),
    train(["collect", "{tmp_path}/pool.yaml", "--out", "{tmp_path}/two"])]
print(codes)
"""
    ran = subprocess.run(
        [sys.executable, "-c", commands], cwd=REPO, env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[2, 2, 2]", ran.stderr
    lines = [line for line in ran.stderr.splitlines() if line.strip()]
    assert [line[:7] for line in lines] == ["error: "] * 3, ran.stderr
    assert all("no/where is neither" in line and "HF_HUB_OFFLINE" in line for line in lines[:2])
    assert "data set no/pool can't be read" in lines[2]


def test_no_entry_reads_a_prompts_mask_text_as_a_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_small_target(tmp_path / "target")
    target = load_target(folder)
    text = target.tokenizer.decode([target.spec.mask_id])
    turns = [[{"role": "user", "content": "Add."}, {"role": "assistant", "content": f"No {text}."}]]
    for prompt, raw in ((f"Fill {text} here.", False), (f"Fill{text}here.", True), (turns, False)):
        with pytest.raises(SpotError, match="prompt 0 holds the mask token"):
            generate(target, prompt, GenerationConfig(max_new_tokens=4, raw=raw))
    told: Any = {"target": {"path_or_id": "x", "chat_template": f"{text}{TEMPLATE}"}}
    rows = [{"prompt": f"Fill {text} here."}, {"messages": turns[0]}, {"prompt": [5, target.spec.mask_id]}]
    pool = tmp_path / "pool.jsonl"
    pool.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "Add 3 and 4."}]))
    told |= {"prompts": {"sources": [{"path_or_id": str(pool)}]}, "collect": {"max_new_tokens": 8}}
    assert load_prompts(parse_recipe(told), target)[1].skipped["mask_token"] == 3
    told["target"]["path_or_id"] = str(folder)
    with pytest.raises(SpotError, match="4 mask token"):
        load_prompts(parse_recipe(told), load_recipe_target(parse_recipe(told)))
    assert infer_cli.run(["generate", "--target", str(folder), "--prompt", f"a {text}"]) == 2
    assert "holds the mask token" in capsys.readouterr().err


def test_a_tasks_prompt_with_the_mask_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_small_target(tmp_path / "target")
    (row, *_) = (REPO / "data" / "pools" / "eval.jsonl").read_text().splitlines()
    (tmp_path / "pool.jsonl").write_text(json.dumps({**json.loads(row), "prompt": "Add <|MASK|> and 4."}) + "\n")
    tree = {
        "target": {"path_or_id": str(folder)},
        "prompts": {"sources": [{"path_or_id": str(tmp_path / "pool.jsonl")}]},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    model = OrderModel(OrderModelConfig(block_length=8, d_model=16, heads=2, layers=1, d_max=7))
    save_drafter(PretrainedDrafter(model, info=DrafterInfo(target={})), tmp_path / "drafter")
    compare = ["compare", str(tmp_path / "recipe.yaml"), "--drafter", str(tmp_path / "drafter")]
    assert train_cli.run([*compare, "--pool", str(tmp_path / "pool.jsonl")]) == 2
    assert "holds the mask token" in capsys.readouterr().err


def test_a_chat_template_lies_beside_its_recipe_or_anywhere(tmp_path: Path) -> None:
    folder = save_small_target(tmp_path / "target")
    (tmp_path / "own.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    own = parse_recipe(
        {
            "target": {"path_or_id": str(folder), "chat_template": str(tmp_path / "own.jinja")},
            "prompts": {"sources": [{"path_or_id": "a/b"}]},
        }
    )
    assert (
        load_recipe_target(own).spec.template_hash
        == load_target(folder, chat_template=str(tmp_path / "own.jinja")).spec.template_hash
    )


def test_a_limited_hub_data_set_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spot_train.prompts import read_source

    (tmp_path / "owner" / "pool").mkdir(parents=True)
    rows = "".join(json.dumps({"prompt": f"Add {n}."}) + "\n" for n in range(9))
    (tmp_path / "owner" / "pool" / "train.jsonl").write_text(rows)
    (tmp_path / "recipes").mkdir()
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    tree = {"target": {"path_or_id": "a/b"}, "prompts": {"sources": [{"path_or_id": "owner/pool", "limit": 3}]}}
    recipe = parse_recipe(tree)
    recipe._folder = tmp_path / "recipes"
    assert [prompt for _, prompt in read_source(recipe.prompts.sources[0], recipe)] == ["Add 0.", "Add 1.", "Add 2."]


def test_dtypes_are_what_was_asked_for(tmp_path: Path) -> None:
    save_dream(tmp_path)
    for name in ("float32", "bfloat16", "float16", "float64"):
        assert load_target(tmp_path, dtype=name, device="cpu").spec.dtype == name
    assert load_target(tmp_path, device="cpu").spec.dtype == "float32"
    with pytest.raises(SpotError, match="dtype is 'int8'; use auto or one of"):
        load_target(tmp_path, dtype="int8")
