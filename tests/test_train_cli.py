"""`spot-train` from a recipe to a drafter on a small target: interrupted, resumed, verified, fitted, scored."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import yaml
from small_target import save_small_target

from spot_train.cli import run


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    save_small_target(folder / "target")
    rows = [{"messages": [{"role": "user", "content": f"Add {i} and {i + 3}."}]} for i in range(24)]
    (folder / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = {
        "target": {"path_or_id": "target", "dtype": "float64"},
        "prompts": {"sources": [{"path_or_id": "pool.jsonl"}], "heldout_fraction": 0.3},
        "collect": {"max_new_tokens": 20, "batch_size": 4, "lease_prompts": 3, "free_space_margin_bytes": 0},
        "fit": {"max_steps": 3, "epochs": 2, "batch_size": 16, "replay_trajectories": 2},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return folder / "recipe.yaml"


def send_when(condition: Path, number: signal.Signals) -> threading.Thread:
    """Send `number` to this process once `condition` exists."""

    def wait() -> None:
        while not condition.exists():
            time.sleep(0.002)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_from_recipe_to_drafter(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards, fit, drafter = (str(tmp_path / name) for name in ("shards", "fit", "drafter"))
    collect = ["collect", str(recipe), "--out", shards]
    thread = send_when(tmp_path / "shards" / "part-00001.zarr", signal.SIGTERM)
    assert run(collect) == 143
    thread.join()
    printed = capsys.readouterr().err
    assert "interrupted: " in printed
    assert "projected size of the rest: at most" in printed
    assert run(collect) == 0
    printed = capsys.readouterr().err
    assert "projected size of the rest: about" in printed
    assert "8 in " in printed
    assert run(["shards", "verify", shards]) == 0
    assert "8 of 8 shards sound, 24 trajectories" in capsys.readouterr().out
    assert run(["fit", str(recipe), "--data", shards, "--out", fit, "--devices", "1", "--set", "fit.max_steps=2"]) == 0
    checkpoint = capsys.readouterr().out.strip().splitlines()[-1].removeprefix("checkpoint: ")
    kept = ["--recipe", str(recipe), "--set", "decode.tau=1.5"]
    assert run(["export", checkpoint, "--out", drafter, "--data", shards, *kept]) == 0
    assert json.loads((tmp_path / "drafter" / "config.json").read_text())["draft"]["tau"] == 1.5
    assert "Held-out next-commit accuracy" in (tmp_path / "drafter" / "README.md").read_text()
    capsys.readouterr()
    scored = ["eval", "--drafter", drafter, "--data", shards, "--budget", "4", "--json"]
    assert run([*scored, "--output", str(tmp_path / "eval.json")]) == 0
    measures = json.loads(capsys.readouterr().out)
    assert measures["replay"]["order"]["D4"]["reduction"] >= 1
    assert json.loads((tmp_path / "eval.json").read_text())["provenance"]["versions"]["python"]
    assert run(scored[:-1]) == 0
    assert "replayed NFE" in capsys.readouterr().out
    assert run(["errors", drafter, "--data", shards, "--beside", drafter]) == 0
    assert "with the same slot" in capsys.readouterr().out
    assert run(["errors", drafter, "--data", shards, "--depth", "0", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["scopes"]["all"]["by_depth"]) == ["0"]
    simulated = ["simulate", "--data", shards, "--drafter", drafter, "--budget", "4", "--curve", "paper-gsm8k"]
    assert run([*simulated, "--out", str(tmp_path / "predicted.json")]) == 0
    assert "without the drafter's own time" in capsys.readouterr().out
    rows = json.loads((tmp_path / "predicted.json").read_text())["rows"]
    assert [row["drafter"] for row in rows] == ["chain", "spot"]
    assert all(0 < row["throughput_ratio"] <= row["reduction"] for row in rows)
    assert rows[1]["nfe"] == measures["replay"]["order"]["D4"]["nfe"]


def test_predictions_are_checked_against_a_measurement(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = [
        "--set",
        "calibrate.prompts=2",
        "--set",
        "calibrate.heldout=0",
        "--cycles",
        "1",
        "--size",
        "1",
        "--size",
        "3",
    ]
    assert run(["simulate", "--check", str(recipe), "--budget", "2", *few]) == 0
    printed = capsys.readouterr().out
    assert "measured" in printed and "chain" in printed
    assert run(["simulate", "--check", str(recipe), "--data", "x"]) == 2
    assert run(["simulate"]) == 2


def test_a_recipe_in_float64_is_exact_whatever_the_batch(recipe: Path, tmp_path: Path) -> None:
    assert run(["check", str(recipe), "--prompts", "3", "--json", str(tmp_path / "check.json")]) == 0
    record = json.loads((tmp_path / "check.json").read_text())
    assert (record["dtype"], record["prompts"], record["batch_size"]) == ("float64", 3, 4)
    for audit in record["decoding"].values():
        assert audit["batches"]["identical"] == audit["drafted"]["identical"] == 3
        assert audit["batches"]["largest_shift"] < 1e-6


def test_recipes_can_be_looked_at(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipe", "show", str(recipe), "--set", "fit.seed=9"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["fit"]["seed"] == 9
    assert run(["recipe", "show", str(recipe), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["collect"]["lease_prompts"] == 3
    assert run(["recipe", "validate", str(recipe)]) == 0
    assert ": valid, " in capsys.readouterr().out
    assert run(["recipe", "schema"]) == 0
    assert "Adam's learning rate." in capsys.readouterr().out
    assert run(["--help"]) == 0
