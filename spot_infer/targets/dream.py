"""Dream-7B: full attention, Qwen2ForCausalLM's keys and shapes, and logits whose row i predicts token i + 1."""

from __future__ import annotations

from typing import Any

from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from spot_infer.targets.family import Family, Fields, native_fields

_MASK, _END, _TURN_END = 151666, 151643, 151645


def _qwen2(config: Fields) -> tuple[Any, Any]:
    return Qwen2ForCausalLM, Qwen2Config(**native_fields(config))


DREAM = Family(
    _qwen2,
    attention="full",
    logit_shift=1,
    block_length=32,
    vocab_size=152064,
    mask_id=_MASK,
    stop_ids=(_END, _TURN_END),
    tokenizer=Qwen2Tokenizer,
)
