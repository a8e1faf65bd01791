"""The forward of a Qwen3 or LLaDA2.0 model for training: same weights and maths as the library's, less work.

The last layer runs only where a prediction is read, and the vocabulary projection only at masked
slots. `tests/test_tiny_targets.py` compares it with the library's classes.
"""

from typing import Any

import torch
from block_batches import Batch
from torch.nn import functional
from transformers import PreTrainedModel


def rope_table(positions: torch.Tensor, dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine [S, dim] of half-split rotary embeddings."""
    frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angle = positions.float()[:, None] * frequency
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of the first dims of x [B, heads, S, dim], as many as `cos` has."""
    dim = cos.shape[-1]
    turned, rest = x[..., :dim], x[..., dim:]
    left, right = turned.chunk(2, -1)
    turned = turned * cos + torch.cat([-right, left], -1) * sin
    return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


def _heads(x: torch.Tensor, norm: Any, dim: int, eps: float) -> torch.Tensor:
    x = x.unflatten(-1, (-1, dim))
    if norm is not None:
        x = functional.rms_norm(x, (dim,), norm.weight, eps)
    return x.transpose(1, 2)


def _feed_forward(mlp: Any, x: torch.Tensor, loads: list[torch.Tensor]) -> torch.Tensor:
    """x [B, S, H] through a dense layer, or through its experts, whose tokens are counted in `loads`."""
    if not hasattr(mlp, "experts"):
        return mlp.down_proj(functional.silu(mlp.gate_proj(x)) * mlp.up_proj(x))
    tokens = x.flatten(0, 1)
    _, weights, chosen = mlp.gate(tokens)
    loads.append(torch.bincount(chosen.flatten(), minlength=mlp.gate.num_experts))
    return mlp.experts(tokens, chosen, weights).view_as(x) + mlp.shared_experts(x)


def masked_logits(model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits [M, V] at the masked slots of the noisy copies, and the tokens [E] of every layer's experts."""
    config: Any = model.config
    trunk: Any = model.model
    dim, eps, rope = config.head_dim, config.rms_norm_eps, config.rope_parameters
    cos, sin = rope_table(batch.positions, int(dim * rope.get("partial_rotary_factor", 1.0)), rope["rope_theta"])
    attend = torch.zeros(batch.attend.shape).masked_fill(~batch.attend, float("-inf"))[None, None]
    x = functional.embedding(batch.ids, trunk.embed_tokens.weight)
    width = (x.shape[-1],)
    loads: list[torch.Tensor] = []
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
        x = x + _feed_forward(layer.mlp, normed, loads)
    x = x.flatten(0, 1)[batch.slots]
    head: Any = model.lm_head
    return head(functional.rms_norm(x, width, trunk.norm.weight, eps)), loads
