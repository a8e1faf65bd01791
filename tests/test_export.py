"""From a training checkpoint to the folder the runtime loads, with figures that mean what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fake_trajectories import fake_trajectories

from spot_infer.checkpoint import load_drafter
from spot_infer.drafters import ChainDrafter, DraftSettings, OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_infer.transition import CommitRule
from spot_train.fit.evaluate import evaluate, stale_accuracy
from spot_train.fit.export import export
from spot_train.fit.fit import fit
from spot_train.recipe.recipe import FitSection
from spot_train.replay.replay import mean_reduction, replay

FACTS = {"target": {"name": "fake"}, "sampling": {"temperature": 0.0}, "data": {"prompts": "made up"}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    section = FitSection(epochs=1, batch_size=32, d_max=3, replay_trajectories=1)
    train, heldout = fake_trajectories(count=5, seed=1), fake_trajectories(count=2, seed=2)
    return fit(section, train, heldout, tmp_path_factory.mktemp("fit"), facts=FACTS)


def test_the_exported_folder_drafts_what_the_checkpoint_learned(checkpoint: Path, tmp_path: Path) -> None:
    heldout = fake_trajectories(count=2, seed=2)
    draft = DraftSettings(tau=1.2)
    first = export(checkpoint, tmp_path / "plain", draft=draft)
    metrics = evaluate(first, heldout)
    drafter = export(checkpoint, tmp_path / "drafter", metrics=metrics, draft=draft)
    weights = torch.load(checkpoint, weights_only=True)["state_dict"]
    stored = drafter.model.state_dict()
    assert all(torch.equal(stored[name], weights[f"model.{name}"]) for name in stored)
    assert drafter.settings == draft
    assert drafter.info.metrics == metrics
    assert drafter.info.target == {"name": "fake", "block_length": 8}
    assert drafter.info.training["data"]["train_trajectories"] == 5
    again = evaluate(load_drafter(tmp_path / "drafter"), heldout)
    assert again == metrics
    card = drafter.info.card
    for text in ("license: apache-2.0", "made up", "| this drafter |", "| left to right |", "D20", "depth 3"):
        assert text in card


def test_exporting_again_replaces_the_folder(checkpoint: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "drafter")
    assert export(checkpoint, tmp_path / "drafter", draft=DraftSettings(tau=2.0)).settings.tau == 2.0


@pytest.mark.parametrize("content", [None, b"", b"not a checkpoint", b"PK\x03\x04"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "best.ckpt").write_bytes(content)
    with pytest.raises(SpotError, match=r"best\.ckpt"):
        export(tmp_path / "best.ckpt", tmp_path / "drafter")
    assert not (tmp_path / "drafter").exists()


def test_a_truncated_checkpoint_is_named(checkpoint: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.ckpt"
    cut.write_bytes(checkpoint.read_bytes()[:5000])
    with pytest.raises(SpotError, match=r"cut\.ckpt"):
        export(cut, tmp_path / "drafter")


def small_drafter(block_length: int = 8) -> OrderDrafter:
    sizes = {"d_model": 16, "heads": 2, "layers": 1, "feed_forward": 16, "head_hidden": 8}
    return OrderDrafter(OrderModel(OrderModelConfig(block_length, d_max=7, **sizes)))


def test_an_untrained_residual_model_scores_what_the_stale_order_scores() -> None:
    recorded = fake_trajectories(count=4, seed=5)
    metrics = evaluate(small_drafter(), recorded, budgets=(3,))
    for scope in ("before_stop", "all"):
        orders = metrics["orders"][scope]
        assert orders["model"]["by_depth"] == orders["stale_confidence"]["by_depth"]
        assert orders["model"]["by_block"] == orders["stale_confidence"]["by_block"]
        assert metrics["stale"][scope]["order"] == pytest.approx(orders["stale_confidence"]["by_depth"][0])
    assert metrics["replay"]["chain"]["D3"]["reduction"] == mean_reduction(replay(ChainDrafter(), recorded, 3))


def test_stale_accuracy_by_the_slow_definition() -> None:
    recorded = fake_trajectories(count=4, seed=5)
    right_slot = right_token = total = 0
    for one in recorded:
        for step in range(1, len(one)):
            ((position, token),) = one.step(step)
            inside = position < one.prompt_length + one.returned_tokens
            if one.block_start[step] != one.block_start[step - 1] or not inside:
                continue
            ((gone, _),) = one.step(step - 1)
            table, start = one.table(step - 1), int(one.block_start[step])
            options = [
                (-float(table.log_odds[i]), int(slot), int(table.top_token[i, 0]))
                for i, slot in enumerate(table.slots)
                if int(slot) + start != gone
            ]
            total += 1
            right_slot += min(options)[1] + start == position
            right_token += {slot + start: tok for _, slot, tok in options}[position] == token
    measured = stale_accuracy(recorded, CommitRule(), before_stop=True)
    assert measured["steps"] == total
    assert measured["order"] == right_slot / total
    assert measured["token"] == right_token / total


def test_data_of_another_block_length_is_named() -> None:
    with pytest.raises(SpotError, match="block length 8, the drafter 4"):
        evaluate(small_drafter(4), fake_trajectories(count=2))
