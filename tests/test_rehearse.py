"""A rehearsal on random weights: outputs equal the recording, forwards equal replay's, and the split adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from collecting import fake_target
from fake_trajectories import fake_trajectories
from test_replay import order_drafter
from transformers import Qwen3Config, Qwen3ForCausalLM

from spot_infer.checkpoint import PretrainedDrafter, save_drafter
from spot_infer.clock import clock_for
from spot_infer.errors import SpotError
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_infer.presets import PRESETS
from spot_infer.targets import Target, from_model
from spot_infer.transition import CommitRule
from spot_train.cli import run
from spot_train.cost.rehearse import Rehearsed, rehearsal_row, rehearse
from spot_train.replay.replay import replay

SHAPE: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 512,
}


def random_model(dtype: torch.dtype) -> Target:
    """Two layers in the fake target's place: its mask and stop tokens."""
    torch.manual_seed(0)
    config: Any = Qwen3Config(**SHAPE)
    model: Any = Qwen3ForCausalLM(config)
    model = model.to(dtype)
    return from_model(model, None, block_length=8, mask_id=39, stop_ids=(0, 1))


@pytest.mark.parametrize(("dtype", "at_once", "budget"), [(torch.float32, False, 9), (torch.bfloat16, True, 3)])
def test_outputs_are_the_recording_and_forwards_are_replays(
    dtype: torch.dtype, at_once: bool, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spot_infer.walk.reads_at_once", lambda device: at_once)
    trajectories = fake_trajectories(3)
    order = order_drafter(8, "one_call", "v2")
    methods = [Rehearsed("draft-free")] + [
        Rehearsed(name, budget, form.apply(order), form.boundary) for budget in (2, 9) for name, form in PRESETS.items()
    ]
    target = random_model(dtype)
    runs = rehearse(target, trajectories, methods, CommitRule(), clock_for(target.device, "cpu"), 600)
    for one in runs:
        drafter = one.method.drafter
        if drafter is None:
            expected = [result.draft_free_nfe for result in replay(order, trajectories, 1)]
        else:
            replayed = replay(drafter, trajectories, one.method.budget, boundary=one.method.boundary)
            expected = [result.nfe for result in replayed]
            assert one.accepted == sum(result.accepted for result in replayed)
        assert one.nfe == sum(expected)
        assert one.identical == one.count == 3
        row = rehearsal_row(one, runs[0])
        assert sum(row["shares"].values()) == pytest.approx(1) and row["shares"]["target"] > 0
    assert runs[1].accepted > 0


def test_a_rehearsal_stops_in_time_and_takes_no_sampled_trajectories() -> None:
    target = random_model(torch.float32)
    clock = clock_for(target.device, "cpu")
    (one,) = rehearse(target, fake_trajectories(4), [Rehearsed("draft-free")], CommitRule(), clock, 0)
    assert one.count == 1
    with pytest.raises(SpotError, match="temperature 0"):
        rehearse(target, fake_trajectories(2, temperature=1.0), [Rehearsed("draft-free")], CommitRule(), clock, 0)
    with pytest.raises(SpotError, match=r"rule\.ranking is 'margin'"):
        rehearse(target, fake_trajectories(2), [Rehearsed("draft-free")], CommitRule(ranking="margin"), clock, 0)


def test_the_command_prints_ratios_and_where_the_time_went(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = fake_target().spec
    config = {**SHAPE, "model_type": "qwen3", "vocab_size": spec.vocab_size}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_drafter(PretrainedDrafter(OrderModel(OrderModelConfig(spec.block_length))), tmp_path / "drafter")
    command = [
        "rehearse",
        str(tmp_path),
        "--data",
        str(whole),
        "--drafter",
        str(tmp_path / "drafter"),
        "--minutes",
        "0",
    ]
    command += ["--split", "all", "--device", "cpu", "--dtype", "float32"]
    assert run([*command, "--budget", "3", "--out", str(tmp_path / "out.json")]) == 0
    printed = capsys.readouterr().out
    assert "throughput" in printed and "outputs equal to the recording: 1 of 1, 1 of 1, 1 of 1" in printed
    assert [row["method"] for row in json.loads((tmp_path / "out.json").read_text())["rows"]] == [
        "draft-free",
        *PRESETS,
    ]
    assert run([*command, "--dtype", "int8"]) == 2
    assert run([*command, "--device", "banana"]) == 2
    assert "device is 'banana'" in capsys.readouterr().err
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 4}))
    assert run(command) == 2
    assert "has a vocabulary of 4, but the shards hold token id" in capsys.readouterr().err
