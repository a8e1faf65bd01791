"""The Qwen3 adapter against the official SDAR code's own logits and ids (fixtures beside the repository)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from official_blocks import TOLERANCE, block_logits, check_stored_blocks
from safetensors.torch import load_file

from spot_infer import load_target
from spot_infer.decode import decode
from spot_infer.requests import DecodeSettings, Request, Result
from spot_infer.transition import CommitRule

L = 4


@pytest.fixture(scope="module")
def target(sdar_reference: Path) -> Any:
    return load_target(sdar_reference, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def reference(sdar_reference: Path) -> dict[str, torch.Tensor]:
    return load_file(sdar_reference / "reference.safetensors")


def test_the_checkpoints_facts_are_read(target: Any) -> None:
    spec = target.spec
    assert (spec.block_length, spec.vocab_size, spec.mask_id, spec.stop_ids) == (4, 160, 151, (150,))
    assert spec.forbidden_ids == (151,)
    assert spec.max_positions == 512
    assert spec.exact_prefix_cache


def test_every_block_behind_its_stored_predecessors_equals_the_full_forward(
    target: Any, reference: dict[str, torch.Tensor]
) -> None:
    check_stored_blocks(target, reference)


def test_a_block_behind_a_prefilled_prompt_equals_the_full_and_the_official_cached_forward(
    target: Any, reference: dict[str, torch.Tensor]
) -> None:
    ids = reference["input_ids"][0].tolist()
    first, last = reference["cached_block_range"].tolist()
    cache = target.new_cache()
    target.prefill(cache, [cache.add_row()], [ids[:first]])
    logits, packed = block_logits(target, cache, ids[first:last], first)
    assert (logits - reference["cached_block_logits"][0]).abs().max() < TOLERANCE
    assert (logits - reference["logits"][0, first:last]).abs().max() < TOLERANCE
    cache.promote(0, packed, 0)
    logits, _ = block_logits(target, cache, ids[last : last + L], last)
    assert (logits - reference["logits"][0, last : last + L]).abs().max() < TOLERANCE


def generated(target: Any, prompt: torch.Tensor, length: int, rule: CommitRule) -> Result:
    settings = DecodeSettings(max_new_tokens=length - prompt.shape[-1], rule=rule, ignore_stop=True)
    rounds = decode(target, [Request(tuple(prompt[0].tolist()))], settings)
    return next(round_.result for round_ in rounds if round_.result is not None)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("ids_static_b4_steps4", CommitRule()),
        ("ids_dynamic_thr0.1_b4_steps4", CommitRule(selection="threshold", threshold=0.1, quota=1)),
    ],
)
def test_the_ids_of_the_official_generate(sdar_reference: Path, target: Any, name: str, rule: CommitRule) -> None:
    fixture = load_file(sdar_reference / "generate.safetensors")
    prompt, expected = fixture["prompt_ids"], fixture[name][0].tolist()
    result = generated(target, prompt, len(expected), rule)
    assert [*prompt[0].tolist(), *result.tokens] == expected
    blocks = len(expected) // L - prompt.shape[-1] // L
    assert result.stats.cache_writes == blocks - 1
    if rule == CommitRule():
        assert result.stats.nfe == len(expected) - prompt.shape[-1] + blocks - 1
    else:
        assert result.stats.rounds < result.stats.commits
