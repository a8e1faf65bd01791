"""LLaDA-8B: full attention, and LlamaForCausalLM's mathematics under other names of config fields and weights."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from spot_infer.errors import SpotError
from spot_infer.targets.family import Family, Fields

_MASK, _END, _TURN_END = 126336, 126081, 126348
_KEYS = {
    r"transformer\.wte": "embed_tokens",
    r"transformer\.ln_f": "norm",
    r"^model\.transformer\.ff_out": "lm_head",
    r"transformer\.blocks\.(\d+)\.attn_norm": r"layers.\1.input_layernorm",
    r"transformer\.blocks\.(\d+)\.ff_norm": r"layers.\1.post_attention_layernorm",
    r"transformer\.blocks\.(\d+)\.q_proj": r"layers.\1.self_attn.q_proj",
    r"transformer\.blocks\.(\d+)\.k_proj": r"layers.\1.self_attn.k_proj",
    r"transformer\.blocks\.(\d+)\.v_proj": r"layers.\1.self_attn.v_proj",
    r"transformer\.blocks\.(\d+)\.attn_out": r"layers.\1.self_attn.o_proj",
    r"transformer\.blocks\.(\d+)\.ff_proj": r"layers.\1.mlp.gate_proj",
    r"transformer\.blocks\.(\d+)\.up_proj": r"layers.\1.mlp.up_proj",
    r"transformer\.blocks\.(\d+)\.ff_out": r"layers.\1.mlp.down_proj",
}


def _llama(config: Fields) -> tuple[Any, Any]:
    if config.get("include_bias") or config.get("include_qkv_bias"):
        raise SpotError("config.json asks for biases (include_bias or include_qkv_bias), which no LLaDA release has")
    return LlamaForCausalLM, LlamaConfig(
        vocab_size=config.get("embedding_size") or config["vocab_size"],
        hidden_size=config["d_model"],
        intermediate_size=config["mlp_hidden_size"],
        num_hidden_layers=config["n_layers"],
        num_attention_heads=config["n_heads"],
        num_key_value_heads=config.get("n_kv_heads") or config["n_heads"],
        max_position_embeddings=config["max_sequence_length"],
        rms_norm_eps=config["rms_norm_eps"],
        rope_parameters={"rope_type": "default", "rope_theta": float(config["rope_theta"])},
        tie_word_embeddings=bool(config.get("weight_tying")),
    )


LLADA = Family(
    _llama,
    key_mapping=_KEYS,
    attention="full",
    block_length=32,
    vocab_size=126464,
    mask_id=_MASK,
    stop_ids=(_END, _TURN_END),
)
