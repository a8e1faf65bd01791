"""LLaDA2.0 through Glm4Moe against the official code's own logits and ids (fixtures beside the repository)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from official_blocks import TOLERANCE, block_logits, check_stored_blocks
from safetensors.torch import load_file

from spot_infer import load_target
from spot_infer.decode import decode
from spot_infer.requests import DecodeSettings, Request
from spot_infer.transition import CommitRule

L = 8


@pytest.fixture(scope="module")
def target(llada2_reference: Path) -> Any:
    facts: dict[str, Any] = {"block_length": L, "mask_id": 151, "stop_ids": [150]}
    return load_target(llada2_reference, dtype="float32", device="cpu", **facts)


@pytest.fixture(scope="module")
def reference(llada2_reference: Path) -> dict[str, torch.Tensor]:
    return load_file(llada2_reference / "reference.safetensors")


def test_every_block_behind_its_stored_predecessors_equals_the_full_forward(
    target: Any, reference: dict[str, torch.Tensor]
) -> None:
    check_stored_blocks(target, reference)


def test_a_block_behind_a_prefilled_prompt_equals_the_official_cached_forward_and_so_does_the_next(
    target: Any, reference: dict[str, torch.Tensor]
) -> None:
    ids = reference["input_ids"][0].tolist()
    first, last = reference["cached_block_range"].tolist()
    cache = target.new_cache()
    target.prefill(cache, [cache.add_row()], [ids[:first]])
    logits, packed = block_logits(target, cache, ids[first:last], first)
    assert (logits - reference["cached_block_logits"][0]).abs().max() < TOLERANCE
    cache.promote(0, packed, 0)
    logits, _ = block_logits(target, cache, ids[last : last + L], last)
    assert (logits - reference["logits"][0, last : last + L]).abs().max() < TOLERANCE


@pytest.mark.parametrize("threshold", [0.1, 0.95])
def test_the_ids_of_the_official_generate(llada2_reference: Path, target: Any, threshold: float) -> None:
    fixture = load_file(llada2_reference / "generate.safetensors")
    expected = fixture[f"new_ids_thr{threshold}_b8_steps8"][0].tolist()
    rule = CommitRule(selection="threshold", threshold=threshold)
    settings = DecodeSettings(max_new_tokens=len(expected), rule=rule)
    rounds = list(decode(target, [Request(tuple(fixture["prompt_ids"][0].tolist()))], settings))
    result = next(round_.result for round_ in rounds if round_.result is not None)
    assert list(result.tokens) == expected
