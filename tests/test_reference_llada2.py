"""LLaDA2.0 through Glm4Moe against the official code's own logits and ids (fixtures beside the repository)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from spot_infer import load_target
from spot_infer.blocks import BlockState
from spot_infer.decode import decode
from spot_infer.packing import Packed, Replica, RowStates, pack
from spot_infer.requests import DecodeSettings, Request
from spot_infer.transition import CommitRule

L = 8
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def target(llada2_reference: Path) -> Any:
    facts: dict[str, Any] = {"block_length": L, "mask_id": 151, "stop_ids": [150]}
    return load_target(llada2_reference, dtype="float32", device="cpu", **facts)


@pytest.fixture(scope="module")
def reference(llada2_reference: Path) -> dict[str, torch.Tensor]:
    return load_file(llada2_reference / "reference.safetensors")


def block_logits(target: Any, cache: Any, tokens: list[int], start: int) -> tuple[torch.Tensor, Packed]:
    """Logits [L, V] of a block behind the cache's only row, read at every slot whether masked or not."""
    state = BlockState(start, tuple(tokens), target.spec.mask_id)
    packed = pack([RowStates(0, cache.lengths[0], (Replica(state),))], "concat")
    everywhere = Packed(**{**vars(packed), "read_index": torch.arange(L)})
    return target.logits(target.forward(everywhere, cache)), packed


def test_every_block_behind_its_stored_predecessors_equals_the_full_forward(
    target: Any, reference: dict[str, torch.Tensor]
) -> None:
    ids, expected = reference["input_ids"][0].tolist(), reference["logits"][0]
    cache = target.new_cache()
    cache.add_row()
    for start in range(0, len(ids), L):
        logits, packed = block_logits(target, cache, ids[start : start + L], start)
        assert (logits - expected[start : start + L]).abs().max() < TOLERANCE
        cache.promote(0, packed, 0)


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
