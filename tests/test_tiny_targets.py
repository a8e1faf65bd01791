"""How the tiny targets are trained: batches, the training forward of both families, expert balance, official names."""

from pathlib import Path

import pytest
import torch
from block_batches import Encoder, step_batches
from safetensors import safe_open
from second_target import save_small_files
from target_families import FAMILIES
from target_forward import masked_logits
from train_target import balance_experts, export, new_model
from transformers import PreTrainedTokenizerFast

from spot_infer import load_target
from spot_infer.api import encode_prompt


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def folder(request, tmp_path_factory) -> Path:
    return save_small_files(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def model(folder):
    torch.manual_seed(0)
    model = new_model(folder)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(std=0.1)
    return model


def batches(folder: Path, block_length: int = 32):
    encoder = Encoder(PreTrainedTokenizerFast.from_pretrained(folder), block_length, 0.1)
    return step_batches(encoder, seed=0, step=0, rows=6, longest_tokens=512)


def test_training_forward_equals_the_library(model, folder):
    for batch in batches(folder):
        rows, length = batch.ids.shape
        with torch.no_grad():
            mine, loads = masked_logits(model, batch)
            theirs = model(
                input_ids=batch.ids,
                position_ids=batch.positions.expand(rows, -1),
                attention_mask=batch.attend.expand(rows, 1, length, length),
            ).logits[:, batch.clean_tokens :]
        torch.testing.assert_close(mine, theirs.flatten(0, 1)[batch.slots], rtol=0, atol=1e-4)
        assert [int(load.sum()) for load in loads] == [2 * rows * (length - batch.clean_tokens)] * len(loads)


@pytest.mark.parametrize("block_length", [16, 32])
def test_a_noisy_block_sees_what_decoding_shows_it(model, folder, block_length):
    """Predictions in training equal those of a decoder at the same state."""
    batch = batches(folder, block_length)[-1]
    clean = batch.clean_tokens
    noisy = batch.ids[:, clean:]
    with torch.no_grad():
        logits, _ = masked_logits(model, batch)
    assert len(batch.slots) > 23
    for index in range(0, len(batch.slots), 23):
        row, place = divmod(int(batch.slots[index]), noisy.shape[1])
        start = place // block_length * block_length
        position = int(batch.positions[clean + place])
        before = batch.ids[row, : position // block_length * block_length]
        state = torch.cat([before, noisy[row, start : start + block_length]])[None]
        block = torch.arange(state.shape[1]) // block_length
        attend = (block[:, None] >= block[None])[None, None]
        with torch.no_grad():
            decoded = model(input_ids=state, attention_mask=attend).logits[0, position]
        torch.testing.assert_close(logits[index], decoded, rtol=0, atol=1e-4)


def test_batches_depend_on_seed_and_step_alone(folder):
    for left, right in zip(batches(folder), batches(folder), strict=True):
        assert torch.equal(left.ids, right.ids)
        assert torch.equal(left.slots, right.slots)


def test_prompts_are_encoded_as_decoding_encodes_them(folder, model):
    export(model, folder)
    target = load_target(folder)
    encoder = Encoder(PreTrainedTokenizerFast.from_pretrained(folder), 32, 0.1)
    encoded = encoder.encode("Add 3 and 4.", "7", 0)
    assert encoded.ids[: encoded.prompt_tokens] == encode_prompt(target, "Add 3 and 4.")
    assert {encoder.stop_id, encoder.filler_id} == set(target.spec.stop_ids)
    assert (encoder.mask_id, encoder.block_length) == (target.spec.mask_id, target.spec.block_length)


def test_an_export_loads_with_the_same_weights(folder, model):
    export(model, folder)
    loaded = load_target(folder, dtype="float32").model.state_dict()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(loaded[name], weight.half().float(), rtol=0, atol=0)
    with safe_open(folder / "model.safetensors", "pt") as file:
        written = {name.removeprefix("model.layers.1.") for name in file.keys()}  # noqa: SIM118
    if model.config.model_type == "glm4_moe":
        assert {"attention.query_key_value.weight", "mlp.experts.7.up_proj.weight", "mlp.gate.expert_bias"} <= written


def test_balancing_moves_selection_towards_idle_experts(folder, model):
    before = {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith("correction_bias")}
    balance_experts(model, [torch.tensor([9, 1, 5, 5, 5, 5, 5, 5]) for _ in before])
    for name, buffer in model.named_buffers():
        if name in before:
            assert (buffer - before[name]).sign().tolist() == [-1.0, 1.0, 0, 0, 0, 0, 0, 0]
