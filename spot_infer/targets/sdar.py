"""SDAR: block-causal, with the keys and shapes of Qwen3 and, for the mixture-of-experts variant, of Qwen3-MoE."""

from __future__ import annotations

from typing import Any

from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from spot_infer.targets.family import Family, Fields, native_fields

_MASK, _TURN_END, _END = 151669, 151645, 151643


def _qwen3(config: Fields) -> tuple[Any, Any]:
    return Qwen3ForCausalLM, Qwen3Config(**native_fields(config))


def _qwen3_moe(config: Fields) -> tuple[Any, Any]:
    return Qwen3MoeForCausalLM, Qwen3MoeConfig(**native_fields(config))


_PUBLISHED: dict[str, Any] = {
    "vocab_size": 151936,
    "mask_id": _MASK,
    "stop_ids": (_TURN_END, _END),
    "tokenizer": Qwen2Tokenizer,
}
SDAR = Family(_qwen3, **_PUBLISHED)
SDAR_MOE = Family(_qwen3_moe, **_PUBLISHED)
