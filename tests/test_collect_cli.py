"""`spot-train collect` with a drafter, and `check-drafted`, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import pytest
import yaml
from collecting import folder_bytes
from small_target import save_small_target

from spot_train.cli import run
from spot_train.shards.store import open_shards


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    save_small_target(folder / "target")
    rows = [{"messages": [{"role": "user", "content": f"Add {i} and {i + 3}."}]} for i in range(6)]
    (folder / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = {
        "target": {"path_or_id": "target", "dtype": "float64"},
        "prompts": {"sources": [{"path_or_id": "pool.jsonl"}], "heldout_fraction": 0.3},
        "collect": {"max_new_tokens": 12, "lease_prompts": 3, "free_space_margin_bytes": 0},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return folder / "recipe.yaml"


def test_a_drafted_collection_and_its_check(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "shards"
    assert run(["collect", str(recipe), "--out", str(out), "--method", "chain:depth=3", "--budget", "4"]) == 0
    printed = capsys.readouterr().err
    shards = open_shards(out).manifest["shards"].values()
    assert [shard["lease"]["method"]["name"] for shard in shards] == ["chain:depth=3"] * 2
    assert f"NFE {sum(shard['lease']['nfe'] for shard in shards):,}, draft-free " in printed
    check = ["check-drafted", str(recipe), "--prompts", "4", "--method", "chain"]
    assert run([*check, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sound"] and found["agreement"]["identical"] == 4
    assert found["reduction"] == found["draft_free"]["nfe"] / found["drafted"]["nfe"] > 1
    assert run(check) == 0
    printed = capsys.readouterr().out
    assert "float64, batch size " in printed and "4 of 4 prompts recorded identically" in printed
    assert "2 chain D8" in printed and "recording and storing add" in printed


def test_ranks_of_a_launcher_fill_one_set(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["collect", str(recipe), "--set", "collect.lease_prompts=2", "--out"]
    assert run([*command, str(tmp_path / "alone")]) == 0
    capsys.readouterr()
    monkeypatch.setenv("WORLD_SIZE", "2")
    printed = []
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        assert run([*command, str(tmp_path / "ranks")]) == 0
        printed.append(capsys.readouterr().err)
    assert printed[0] == "" and "3 shards, 3 already there" in printed[1]
    assert folder_bytes(tmp_path / "ranks") == folder_bytes(tmp_path / "alone")
    monkeypatch.setitem(fsspec.config.conf, "local", {"auto_mkdir": True})
    url = f"local://{tmp_path}/store/set"
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        assert run([*command, url, "--cache", str(tmp_path / "cache")]) == 0
    assert f"{url}: 3 shards" in capsys.readouterr().err
    assert folder_bytes(tmp_path / "store" / "set") == folder_bytes(tmp_path / "alone")


def test_a_graph_of_another_rule_warns_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("rule.resolution=bfloat16", "prompts.limit=1", "collect.max_new_tokens=2")
    flags = [word for one in settings for word in ("--set", one)]
    graph = "builtin:data/tiny-sdar-graphs/float32.json"
    assert run(["collect", "builtin:recipes/tiny.yaml", "--out", str(tmp_path), "--graph", graph, *flags]) == 0
    printed = capsys.readouterr().err
    assert "warning: " in printed and "under another commit rule (resolution float32, not bfloat16)" in printed
    assert "calibration.py" not in printed and "warn(" not in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["collect", "--out", "OUT", "--ray", "auto"], "but not how many; add --workers"),
        (["check-drafted"], "check-drafted has nothing to draft with; give --drafter, --method or --bootstrap"),
        (["check-drafted", "--method", "joint_oracle"], "the trajectories being collected"),
        (["check-drafted", "--method", "calibrated_graph"], "needs a draft graph"),
        (["check-drafted", "--method", "spot"], "give --drafter"),
        (
            ["check-drafted", "--method", "chain", "--drafter", "builtin:data/tiny-sdar-drafter"],
            "--method chain does not read it",
        ),
        (
            ["collect", "--out", "OUT", "--drafter", "builtin:data/tiny-sdar-drafter"],
            "the drafter was trained for block length 32",
        ),
        (["check-drafted", "--bootstrap", "--set", "collect.lease_prompts=64"], "leaves no lease to draft"),
        (["collect", "--out", "OUT", "--method", "chains"], "method is 'chains'; use one of"),
        (["collect", "--out", "OUT", "--method", "chain", "--set", "decode.budget=0"], "decode.budget is 0"),
    ],
)
def test_mistakes_are_one_sentence(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    command, *rest = [str(tmp_path / "out") if word == "OUT" else word for word in arguments]
    assert run([command, str(recipe), *rest]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
