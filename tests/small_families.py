"""Random checkpoints of every family on disk, with the official names of config fields and weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from official_names import llada2_names, unstacked_experts
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

MASK, STOP, VOCAB = 95, 94, 96
_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_IDS = {"mask_token_id": MASK, "eos_token_id": STOP}


def random_model(model_class: Any, config: Any, seed: int, dtype: torch.dtype = torch.float32) -> Any:
    """A random model whose answers are sure of some tokens."""
    torch.manual_seed(seed)
    config.initializer_range = 0.3
    model = model_class._from_config(config, attn_implementation="sdpa", dtype=dtype).eval()
    model.lm_head.weight.data *= 2.0
    return model


def _save(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: weight.clone().contiguous() for name, weight in weights.items()}, folder / "model.safetensors")


_QWEN3 = {**_COMMON, "num_key_value_heads": 2, "head_dim": 8}


def qwen3(seed: int, dtype: torch.dtype = torch.float32, **shape: int) -> Any:
    """A random Qwen3 of two layers, SDAR's class."""
    return random_model(Qwen3ForCausalLM, Qwen3Config(**{**_QWEN3, **shape}), seed, dtype)


def save_sdar(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32, **shape: int) -> Any:
    config = {**_QWEN3, **shape}
    model = qwen3(seed, dtype, **shape)
    _save(folder, {**config, **_IDS, "model_type": "sdar", "block_size": 4}, model.state_dict())
    return model


_SDAR_MOE = {**_QWEN3, **_EXPERTS, "norm_topk_prob": True}


def random_moe(family: str, seed: int) -> Any:
    """A random mixture of experts of the class that the family's checkpoints load into."""
    if family == "llada2_moe":
        return glm(seed)
    return random_model(Qwen3MoeForCausalLM, Qwen3MoeConfig(**_SDAR_MOE), seed)


def save_sdar_moe(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32, **shape: int) -> Any:
    config = {**_SDAR_MOE, **shape}
    model = random_model(Qwen3MoeForCausalLM, Qwen3MoeConfig(**config), seed, dtype)
    official = {**config, **_IDS, "model_type": "sdar_moe", "block_size": 4, "fuse_cross_entropy": True}
    _save(folder, official, unstacked_experts(model.state_dict()))
    return model


def glm(seed: int, dtype: torch.dtype = torch.float32, experts: int = 4, **shape: int) -> Any:
    """A plain GLM-4.5 model of LLaDA2.0's shape."""
    config = Glm4MoeConfig(
        **{**_COMMON, "num_key_value_heads": 2, "head_dim": 16, "moe_intermediate_size": 16, **shape},
        n_routed_experts=experts,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        routed_scaling_factor=2.5,
        first_k_dense_replace=1,
        use_qk_norm=True,
        num_mtp_layers=0,
        rope_parameters={"rope_type": "default", "rope_theta": 600000.0, "partial_rotary_factor": 0.5},
    )
    model = random_model(Glm4MoeForCausalLM, config, seed, dtype)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.randn_like(buffer) * 0.1)
    return model


def save_llada2(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32, experts: int = 4, **shape: int) -> Any:
    model = glm(seed, dtype, experts, **shape)
    official = {
        **_COMMON,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "moe_intermediate_size": 16,
        **shape,
        "model_type": "llada2_moe",
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "rope_theta": 600000,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": model.config.rms_norm_eps,
        "use_qkv_bias": False,
        "pad_token_id": STOP,
    }
    _save(folder, official, llada2_names(model.state_dict()))
    return model


_LLADA_NAMES = {
    "embed_tokens": "transformer.wte",
    "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out",
    "layers": "transformer.blocks",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
    "self_attn.o_proj": "attn_out",
    "self_attn.": "",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
}


def save_llada(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32, **shape: int) -> Any:
    fields = {**_COMMON, "num_key_value_heads": 4, **shape}
    config = LlamaConfig(**fields, rms_norm_eps=1e-5, rope_theta=500000.0)
    model = random_model(LlamaForCausalLM, config, seed, dtype)
    official = {
        **_IDS,
        "model_type": "llada",
        "d_model": config.hidden_size,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "n_layers": config.num_hidden_layers,
        "mlp_hidden_size": config.intermediate_size,
        "max_sequence_length": config.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "embedding_size": config.vocab_size,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "include_bias": False,
        "weight_tying": False,
    }
    weights = {}
    for name, weight in model.state_dict().items():
        for native, own in _LLADA_NAMES.items():
            name = name.replace(native, own)
        weights[name] = weight
    _save(folder, official, weights)
    return model


def save_dream(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32, **shape: int) -> Any:
    config = {**_COMMON, "num_key_value_heads": 2, "rope_theta": 1000000.0, **shape}
    model = random_model(Qwen2ForCausalLM, Qwen2Config(**config), seed, dtype)
    for name, parameter in model.named_parameters():
        if name.endswith("proj.bias"):
            parameter.data.normal_()
    _save(folder, {**config, **_IDS, "model_type": "Dream"}, model.state_dict())
    return model


SAVERS: dict[str, Callable[..., Any]] = {
    "sdar": save_sdar,
    "sdar_moe": save_sdar_moe,
    "llada2_moe": save_llada2,
    "llada": save_llada,
    "Dream": save_dream,
}
