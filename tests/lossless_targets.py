"""Targets of the lossless suite, each with the full forward that the slow decoder reads."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from fake_dlm import FakeTarget, FakeTokenizer
from hypothesis import strategies as st
from slow_decoder import FullLogits, canvas_full_logits, fake_full_logits, model_full_logits
from small_families import qwen3, random_model, random_moe
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from spot_infer.targets import from_model


@st.composite
def fake_targets(draw: st.DrawFn) -> tuple[Any, FullLogits]:
    vocab = draw(st.sampled_from([5, 12, 40]))
    target = FakeTarget(
        seed=draw(st.integers(0, 10**6)),
        block_length=draw(st.sampled_from([1, 2, 4, 4, 5, 8])),
        vocab_size=vocab,
        stop_ids=draw(st.sampled_from([(0, 1), (0,), ()])),
        extra_forbidden=draw(st.sampled_from([(), (2,)])),
        strength=draw(st.sampled_from([0.05, 0.6, 0.6, 4.0])),
        stop_rate=draw(st.sampled_from([0.02, 0.15])),
        quantum=draw(st.sampled_from([0.0, 0.0, 2.0])),
    )
    return target, fake_full_logits(target)


@lru_cache
def tiny_qwen3(seed: int, block_length: int, vocab: int) -> tuple[Any, FullLogits]:
    """A random float64 Qwen3 of two layers, its adapter and its full forward."""
    model = qwen3(seed, vocab_size=vocab).to(torch.float64)
    target = from_model(
        model,
        FakeTokenizer(),
        block_length=block_length,
        mask_id=vocab - 1,
        stop_ids=[0, 1],
        forbidden_ids=[2],
        config={"seed": seed},
    )
    return target, model_full_logits(model, block_length)


@lru_cache
def tiny_full_attention(shift: int, cache: str, seed: int, block_length: int) -> tuple[Any, FullLogits]:
    """A random float64 Llama, or a Qwen2 with shifted logits, of two layers under full attention."""
    config_class, model_class = ((LlamaConfig, LlamaForCausalLM), (Qwen2Config, Qwen2ForCausalLM))[shift]
    config = config_class(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    model = random_model(model_class, config, seed).to(torch.float64)
    target = from_model(
        model,
        FakeTokenizer(),
        block_length=block_length,
        mask_id=49,
        stop_ids=[0, 1],
        forbidden_ids=[2],
        config={"seed": seed},
        attention="full",
        logit_shift=shift,
        cache=cache,
    )
    return target, canvas_full_logits(model, cache, shift, block_length, 49)


@lru_cache
def tiny_moe(family: str, seed: int, block_length: int) -> tuple[Any, FullLogits]:
    """A random float64 mixture of experts of two layers, SDAR-MoE's class or LLaDA2.0's."""
    model = random_moe(family, seed).to(torch.float64)
    model.set_experts_implementation("eager")  # the default one has no float64
    target = from_model(
        model,
        FakeTokenizer(),
        block_length=block_length,
        mask_id=model.config.vocab_size - 1,
        stop_ids=[0, 1],
        forbidden_ids=[2],
        config={"seed": seed},
    )
    return target, model_full_logits(model, block_length)


def moe_targets(*families: str) -> st.SearchStrategy[tuple[Any, FullLogits]]:
    names = st.sampled_from(families or ("sdar_moe", "llada2_moe"))
    return st.builds(tiny_moe, names, st.integers(0, 3), st.sampled_from([4, 8]))


def full_attention_targets(*shifts: int) -> st.SearchStrategy[tuple[Any, FullLogits]]:
    caches = st.sampled_from(["none", "prefix", "dual"])
    return st.builds(
        tiny_full_attention, st.sampled_from(shifts or (0, 1)), caches, st.integers(0, 3), st.sampled_from([4, 8])
    )


def qwen3_targets() -> st.SearchStrategy[tuple[Any, FullLogits]]:
    return st.builds(tiny_qwen3, st.integers(0, 5), st.sampled_from([4, 8]), st.sampled_from([50, 100]))
