"""LLaDA2.0 (mini, flash): block-causal mixture of experts with the mathematics of Glm4MoeForCausalLM.

Fused query-key-value rows are split and experts stacked while the weights stream in. The conversion is registered for
the subclass below alone, so a GLM checkpoint that the same process loads is untouched. `Split` is for what transformers
reads itself: under a tp_plan it would shard the fused rows before it splits them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import Glm4MoeConfig, Glm4MoeForCausalLM
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import Split, WeightConverter, WeightRenaming

from spot_infer.targets.family import Family, Fields

_SAME = (
    "attention_dropout", "first_k_dense_replace", "head_dim", "hidden_act", "hidden_size", "initializer_range",
    "intermediate_size", "max_position_embeddings", "moe_intermediate_size", "n_group", "norm_topk_prob",
    "num_attention_heads", "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads", "pad_token_id",
    "rms_norm_eps", "routed_scaling_factor", "tie_word_embeddings", "topk_group", "vocab_size",
)  # fmt: skip


class LLaDA2ForCausalLM(Glm4MoeForCausalLM):
    """Glm4Moe under a name of its own, which is what keeps the conversion from every other checkpoint."""


_FUSED, _PARTS = "attention.query_key_value.", [f"self_attn.{name}_proj." for name in "qkv"]

register_checkpoint_conversion_mapping(
    LLaDA2ForCausalLM.__name__,
    [
        WeightRenaming("word_embeddings", "embed_tokens"),
        WeightRenaming("attention.dense", "self_attn.o_proj"),
        WeightRenaming("attention.query_layernorm", "self_attn.q_norm"),
        WeightRenaming("attention.key_layernorm", "self_attn.k_norm"),
        WeightRenaming("mlp.gate.expert_bias", "mlp.gate.e_score_correction_bias"),
        WeightConverter(f"{_FUSED}weight", [f"{part}weight" for part in _PARTS], [Split(dim=0)]),
    ],
    overwrite=True,
)


def _glm4_moe(config: Fields) -> tuple[Any, Any]:
    rope = {
        "rope_type": "default",
        "rope_theta": float(config["rope_theta"]),
        "partial_rotary_factor": float(config.get("partial_rotary_factor", 1.0)),
    }
    return LLaDA2ForCausalLM, Glm4MoeConfig(
        **{name: config[name] for name in _SAME if name in config},
        n_routed_experts=config["num_experts"],
        n_shared_experts=config["num_shared_experts"],
        attention_bias=bool(config.get("use_qkv_bias")),
        use_qk_norm=True,
        rope_parameters=rope,
        num_mtp_layers=0,
    )


def _fused(native: Any) -> Mapping[str, Mapping[str, int]]:
    heads = (native.num_attention_heads, native.num_key_value_heads, native.num_key_value_heads)
    return {_FUSED: {part: count * native.head_dim for part, count in zip(_PARTS, heads, strict=True)}}


LLADA2 = Family(
    _glm4_moe,
    block_length=32,
    vocab_size=157184,
    mask_id=156895,
    stop_ids=(156892,),
    fused=_fused,
)
