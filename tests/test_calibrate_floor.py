"""Floor calibration: the selection rule on hand-made grids, the file's refusals, the command on a small target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from small_target import save_small_target

from spot_infer.checkpoint import PretrainedDrafter, save_drafter
from spot_infer.errors import SpotError
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_train.calibrate.floor import BUDGETS, FLOORS, choose_floor, load_floor, write_floor
from spot_train.cli import run


@pytest.mark.parametrize(
    ("means", "chosen"),
    [
        ({0.0: 2.0, 0.02: 2.5, 0.05: 2.72, 0.1: 3.0, 0.2: 2.8}, 0.1),
        ({0.0: 2.0, 0.02: 2.44, 0.05: 2.5, 0.1: 2.3, 0.2: 2.0}, 0.02),
        ({0.0: 2.0, 0.02: 1.9, 0.05: 1.8, 0.1: 1.7, 0.2: 1.6}, 0.0),
        ({0.0: 1.94, 0.02: 1.97, 0.05: 2.0, 0.1: 2.02, 0.2: 1.9}, 0.02),
        ({0.2: 1.0299, 0.0: 1.0}, 0.0),
        ({0.0: 1.0, 0.2: 1.031}, 0.2),
    ],
)
def test_the_smallest_floor_inside_the_tie_band_of_the_best_is_kept(means: dict[float, float], chosen: float) -> None:
    assert choose_floor({floor: [0.9 * mean, 1.1 * mean] for floor, mean in means.items()}) == chosen


@given(st.dictionaries(st.sampled_from(FLOORS), st.lists(st.floats(0.1, 9), min_size=3, max_size=3), min_size=1))
def test_no_smaller_floor_lies_inside_the_band(ratios: dict[float, list[float]]) -> None:
    chosen = choose_floor(ratios)
    best = max(sum(row) / 3 for row in ratios.values())
    inside = {floor: best <= sum(row) / 3 * 1.03 * (1 + 1e-12) for floor, row in ratios.items()}
    assert inside[chosen]
    assert not any(floor < chosen and best < sum(ratios[floor]) / 3 * 1.03 * (1 - 1e-12) for floor in ratios)


@pytest.mark.parametrize("ratios", [{}, {0.0: []}, {0.0: [1.0, 0.0]}, {0.0: [float("nan")]}, {0.0: [float("inf")]}])
def test_ratios_that_decide_nothing_are_refused(ratios: dict[float, list[float]]) -> None:
    with pytest.raises(SpotError, match="no positive throughput ratio"):
        choose_floor(ratios)


ATTRIBUTES: dict[str, Any] = {
    "target": {"name": "mine", "config_hash": "a", "weights_hash": "w"},
    "block_length": 8,
    "rule": {"ranking": "probability"},
    "sampling": {"temperature": 0.0},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    figures = {"throughput_ratio": 1.0, "nfe": 3.0, "replicas": 2.0}
    grid = {floor: {budget: dict(figures) for budget in BUDGETS} for floor in FLOORS}
    for budget in BUDGETS:
        grid[0.1][budget]["throughput_ratio"] = 1.5
    write_floor(tmp_path / "floor.json", ATTRIBUTES, {}, grid, {"clock": "cpu"})
    return tmp_path / "floor.json"


def test_the_file_gives_its_floor_back_and_says_how_it_was_made(file: Path) -> None:
    assert load_floor(file, ATTRIBUTES) == 0.1
    record = json.loads(file.read_text())
    assert record["measured"]["mean_ratio"]["0.1"] == pytest.approx(1.5)
    assert record["measured"]["grid"]["0.2"]["D20"]["nfe"] == 3.0
    assert record["measured"]["clock"] == "cpu" and record["versions"]["torch"] and record["command"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_length": 16}, "block length 8, not 16"),
        ({"target": {"name": "other", "config_hash": "b", "weights_hash": "w"}}, "not for other"),
        ({"target": {"name": "tuned", "config_hash": "a", "weights_hash": "x"}}, "not for tuned"),
    ],
)
def test_another_target_or_block_length_is_refused(change: dict[str, Any], words: str, file: Path) -> None:
    with pytest.raises(SpotError, match=words):
        load_floor(file, {**ATTRIBUTES, **change})


@pytest.mark.parametrize("floor", [None, True, "0.1", 1.0, -0.1, float("nan")])
def test_a_damaged_floor_is_refused(floor: Any, file: Path) -> None:
    record = json.loads(file.read_text())
    record["values"]["floor"] = floor
    file.write_text(json.dumps(record))
    with pytest.raises(SpotError, match="calibrate again"):
        load_floor(file, ATTRIBUTES)


def test_the_command_calibrates_by_the_clock_and_by_a_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_small_target(tmp_path / "target")
    save_drafter(PretrainedDrafter(OrderModel(OrderModelConfig(8))), tmp_path / "drafter")
    rows = [{"prompt": f"Add {i} and {i + 3}."} for i in range(5)]
    for name, some in (("pool", rows), ("exam", rows[:2])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    tree = {
        "target": {"path_or_id": "target", "dtype": "float64"},
        "prompts": {
            "sources": [{"path_or_id": "pool.jsonl"}],
            "evaluation": [{"path_or_id": "pool.jsonl"}, {"path_or_id": "exam.jsonl"}],
        },
        "collect": {"max_new_tokens": 9, "batch_size": 2, "free_space_margin_bytes": 0},
        "calibrate": {"sources": [{"path_or_id": "pool.jsonl"}], "prompts": 1, "heldout": 1},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    out = tmp_path / "floor.json"
    command = ["calibrate", "floor", str(tmp_path / "recipe.yaml"), "--drafter", str(tmp_path / "drafter")]
    assert run([*command, "--out", str(out)]) == 0
    assert "floor.json: floor" in capsys.readouterr().out
    record = json.loads(out.read_text())
    assert record["data"]["prompts"] == 2 and record["data"]["skipped"]["evaluation"] == 2
    assert record["values"]["floor"] in FLOORS
    assert set(record["measured"]["grid"]) == {f"{floor:g}" for floor in FLOORS}
    predicted = [*command, "--out", str(out), "--curve", "gpu-roofline", "--json"]
    assert run(predicted) == 0
    first = json.loads(capsys.readouterr().out)
    assert run(predicted) == 0
    assert json.loads(capsys.readouterr().out)["measured"]["grid"] == first["measured"]["grid"]
    assert run([*command, "--out", str(out), "--data", "x"]) == 2
