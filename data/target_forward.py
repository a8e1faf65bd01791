"""The forward of a Qwen3 model for training: same weights and maths as the library's, less work.

The last layer runs only where a prediction is read, and the vocabulary projection only at masked
slots. `tests/test_pools.py` compares it with `Qwen3ForCausalLM`.
"""

from typing import Any

import torch
from block_batches import Batch
from torch.nn import functional
from transformers import Qwen3ForCausalLM


def rope_table(positions: torch.Tensor, dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine [S, dim] of half-split rotary embeddings."""
    frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angle = positions.float()[:, None] * frequency
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [B, heads, S, dim]."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def _heads(x: torch.Tensor, norm: Any, dim: int, eps: float) -> torch.Tensor:
    x = x.unflatten(-1, (-1, dim))
    if norm is not None:
        x = functional.rms_norm(x, (dim,), norm.weight, eps)
    return x.transpose(1, 2)


def masked_logits(model: Qwen3ForCausalLM, batch: Batch) -> torch.Tensor:
    """Logits [M, V] at the masked slots of the noisy copies."""
    config: Any = model.config
    trunk = model.model
    dim, eps = config.head_dim, config.rms_norm_eps
    cos, sin = rope_table(batch.positions, dim, config.rope_parameters["rope_theta"])
    attend = torch.zeros(batch.attend.shape).masked_fill(~batch.attend, float("-inf"))[None, None]
    x = trunk.embed_tokens(batch.ids)
    width = (x.shape[-1],)
    for index, layer in enumerate(trunk.layers):
        start = batch.clean_tokens if index == len(trunk.layers) - 1 else 0
        attention = layer.self_attn
        normed = functional.rms_norm(x, width, layer.input_layernorm.weight, eps)
        x = x[:, start:]
        q = _heads(attention.q_proj(normed[:, start:]), attention.q_norm, dim, eps)
        k = _heads(attention.k_proj(normed), attention.k_norm, dim, eps)
        v = _heads(attention.v_proj(normed), None, dim, eps)
        q, k = rotate(q, cos[start:], sin[start:]), rotate(k, cos, sin)
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=attend[:, :, start:].to(q.dtype), enable_gqa=True
        )
        x = x + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        normed = functional.rms_norm(x, width, layer.post_attention_layernorm.weight, eps)
        gated = functional.silu(layer.mlp.gate_proj(normed)) * layer.mlp.up_proj(normed)
        x = x + layer.mlp.down_proj(gated)
    x = x.flatten(0, 1)[batch.slots]
    return model.lm_head(functional.rms_norm(x, width, trunk.norm.weight, eps))
