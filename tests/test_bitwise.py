"""Bitwise mode: one shape for every forward, the measured check before it, and runs that agree to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_dlm import FakeTarget, FakeTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from lossless_targets import tiny_full_attention
from odd_drafters import CrossingDrafter, HugeDrafter
from small_families import qwen3
from torch import Tensor

from spot_infer import GenerationConfig, generate
from spot_infer.bitwise import bitwise_settings, fixed_shape
from spot_infer.decode import decode
from spot_infer.drafters import ChainDrafter, RandomDrafter
from spot_infer.errors import SpotError
from spot_infer.fixed_shape import HEAD_ROWS, FixedShapeTarget
from spot_infer.graph import Drafter
from spot_infer.packing import Packed
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets import from_model
from spot_infer.targets.block_causal import BlockCausalTarget
from spot_infer.transition import CommitRule, Sampling

REQUESTS = [Request(tuple(range(2, 2 + length)), length) for length in (1, 9, 3, 14)]
SETTINGS = DecodeSettings(max_new_tokens=13, batch_size=2, ignore_stop=True)


def small_model(dtype: torch.dtype = torch.float32) -> BlockCausalTarget:
    target = from_model(qwen3(0, vocab_size=40).to(dtype), FakeTokenizer(), block_length=8, mask_id=39, stop_ids=[0])
    assert isinstance(target, BlockCausalTarget)
    return target


class Shaken(BlockCausalTarget):
    """Stands for kernels that add in another order where a matrix has another size: bits depend on shapes."""

    forwards: set[tuple[int, ...]]
    heads: set[int]

    @classmethod
    def of(cls, target: BlockCausalTarget) -> Shaken:
        shaken = cls(target.model, target.tokenizer, target.spec)
        shaken.forwards, shaken.heads = set(), set()
        return shaken

    def forward(self, packed: Packed, cache: Any) -> Tensor:
        if packed.encodes_prompts:
            return super().forward(packed, cache)
        shape = tuple(packed.attention_mask.shape)
        self.forwards.add(shape)
        return super().forward(packed, cache) * (1 + 0.01 * (shape[0] % 7) + 0.01 * (shape[-1] % 5))

    def logits(self, hidden: Tensor) -> Tensor:
        self.heads.add(len(hidden))
        return super().logits(hidden) * (1 + 0.01 * (len(hidden) % 7))


def runs(target: Any, settings: DecodeSettings, drafter: Drafter | None) -> list[list[Any]]:
    """Steps and recorded log-odds of every request."""
    found: list[list[Any]] = [[] for _ in REQUESTS]
    for round_ in decode(target, REQUESTS, settings, drafter, record=True):
        for step, table in zip(round_.steps, round_.tables, strict=True):
            found[round_.request].append((step, table.log_odds.tobytes()))
    return found


@pytest.mark.parametrize(
    ("dtype", "rule"),
    [
        (torch.float32, CommitRule()),
        (torch.bfloat16, CommitRule(resolution="bfloat16")),
        (torch.bfloat16, CommitRule(selection="threshold")),
    ],
)
def test_drafted_and_draft_free_runs_agree_to_the_bit_whatever_shapes_do(dtype: torch.dtype, rule: CommitRule) -> None:
    target = Shaken.of(small_model(dtype))
    plain = replace(SETTINGS, rule=rule)
    mode = bitwise_settings(plain, 4)
    free = runs(target, mode, None)
    for budget, drafter in ((4, ChainDrafter(rule)), (3, RandomDrafter(seed=1))):
        assert runs(target, replace(mode, budget=budget), drafter) == free
    assert runs(target, replace(plain, budget=4), ChainDrafter(rule)) != runs(target, plain, None)


def test_every_forward_has_one_shape_and_so_has_every_call_of_the_head() -> None:
    target = Shaken.of(small_model())
    mode = bitwise_settings(replace(SETTINGS, sampling=Sampling(0.7)), 4)
    for budget in (0, 4):
        list(decode(target, REQUESTS, replace(mode, budget=budget), ChainDrafter()))
    length = target.spec.block_length
    longest = max(target.spec.blocks_end(len(one.prompt_ids), SETTINGS.max_new_tokens) for one in REQUESTS)
    assert target.forwards == {(2 * 5, 1, length, longest)}
    assert target.heads == {HEAD_ROWS}


@given(st.integers(0, 50), st.integers(1, 3), st.integers(0, 5))
@settings(max_examples=6)
def test_the_shape_changes_no_answer_in_float64(seed: int, batch: int, budget: int) -> None:
    target = FakeTarget(seed=seed, vocab_size=40)
    plain = replace(SETTINGS, batch_size=batch)
    mode = replace(bitwise_settings(plain, 5), budget=budget)
    assert runs(target, mode, RandomDrafter(seed=seed)) == runs(target, plain, None)


@pytest.mark.parametrize("merged", [True, False])
def test_what_drafters_offer_beyond_the_shape_is_left_out(merged: bool) -> None:
    """More states than the budget, and states of the next block."""
    target = FakeTarget(seed=2, vocab_size=40)
    mode = bitwise_settings(SETTINGS, 3)
    free = runs(target, mode, None)
    steps = {index: tuple(step for step, _ in run) for index, run in enumerate(free)}
    for drafter in (HugeDrafter(merged), CrossingDrafter(steps, target.spec.mask_id, merged)):
        assert runs(target, replace(mode, budget=3), drafter) == free


class ByRow(BlockCausalTarget):
    """Bits depend on where in the forward a sequence lies."""

    def forward(self, packed: Packed, cache: Any) -> Tensor:
        place = packed.read_index // packed.input_ids.shape[1]
        return super().forward(packed, cache) + 1e-6 * (place[:, None] % 3)


class ByCompany(BlockCausalTarget):
    """Bits depend on the other sequences, as where experts work on the tokens that chose them."""

    def forward(self, packed: Packed, cache: Any) -> Tensor:
        hidden = super().forward(packed, cache)
        return hidden * (1 + 1e-5 * float(packed.input_ids.sum() % 13))


class ByHeadRow(BlockCausalTarget):
    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        return logits + 1e-5 * (torch.arange(len(logits)) % 2)[:, None] * torch.arange(logits.shape[1])


class ByCachedRow(BlockCausalTarget):
    """What a block leaves in the cache depends on its row; the forward that writes it reads nothing."""

    def run(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        return super().run(
            ids + (torch.arange(len(ids))[:, None] % 2) * (ids != 39).all(-1, True), positions, mask, cache
        )


@pytest.mark.parametrize(
    ("faulty", "named"),
    [
        (ByRow, "rows of a forward"),
        (ByCompany, "rows of a forward"),
        (ByCachedRow, "rows of a forward"),
        (ByHeadRow, "rows of the head"),
    ],
)
def test_a_machine_on_which_rows_touch_is_refused_with_the_reason(faulty: type[BlockCausalTarget], named: str) -> None:
    sound = small_model()
    target = faulty(sound.model, sound.tokenizer, sound.spec)
    with pytest.raises(SpotError, match=f"bitwise is on, but on this machine .*{named} moves"):
        list(decode(target, REQUESTS, bitwise_settings(SETTINGS, 4)))
    assert list(decode(target, REQUESTS, SETTINGS))


def test_what_cannot_have_one_shape_is_refused() -> None:
    target = FakeTarget(vocab_size=40)
    mode = bitwise_settings(SETTINGS, 4)

    def refused(match: str, settings: DecodeSettings, target: Any = target, drafter: Drafter | None = None) -> None:
        with pytest.raises(SpotError, match=match):
            next(decode(target, REQUESTS, settings, drafter))

    refused("layout is concat", replace(mode, layout="concat"))
    refused("boundary fused", replace(mode, boundary="fused"))
    refused("10 sequences a forward", replace(mode, budget=5))
    refused(
        "full attention",
        mode,
        tiny_full_attention(
            0,
            "prefix",
            0,
            4,
        )[0],
    )
    refused("crosses into", replace(mode, budget=4), drafter=ChainDrafter(cross_block=True))
    assert target.forwards == 0


def test_a_forward_larger_than_the_shape_is_a_bug() -> None:
    target = FakeTarget(vocab_size=40)
    fixed = fixed_shape(target, REQUESTS, bitwise_settings(SETTINGS, 1), None)
    assert isinstance(fixed, FixedShapeTarget)
    with pytest.raises(ValueError, match="exceeds bitwise mode's"):
        list(decode(FixedShapeTarget(target, 1, 0), REQUESTS, SETTINGS))


def test_generate_takes_bitwise_and_implies_its_layout_and_boundary() -> None:
    config = GenerationConfig(max_new_tokens=13, bitwise=True, batch_size=2, budget=4, ignore_stop=True)
    assert config.settings(False).sequences == config.settings(True).sequences == 10
    prompts: Sequence[Any] = [one.prompt_ids for one in REQUESTS]
    target = Shaken.of(small_model(torch.bfloat16))
    free, drafted = (generate(target, prompts, config, drafter) for drafter in (None, ChainDrafter()))
    assert [one.tokens for one in free] == [one.tokens for one in drafted]
    assert sum(one.stats.nfe for one in drafted) < sum(one.stats.nfe for one in free)


@pytest.mark.parametrize("asked", [{"layout": "concat"}, {"boundary": "fused"}, {"pad": True}])
def test_what_can_not_have_one_shape_is_refused_where_it_was_asked_for(asked: dict[str, Any]) -> None:
    with pytest.raises(SpotError, match=r"bitwise is on, (but (layout is concat|boundary is fused)|.* leave pad out)"):
        GenerationConfig(bitwise=True, **asked).settings(drafted=True)
    assert GenerationConfig(bitwise=True).settings(drafted=True).boundary == "separate"
