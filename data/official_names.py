"""The weights of a native model under the names of its family's official checkpoints."""

from collections.abc import Mapping

from torch import Tensor, cat

_RENAMES = (
    ("embed_tokens", "word_embeddings"),
    ("e_score_correction_bias", "expert_bias"),
    ("self_attn.o_proj", "attention.dense"),
    ("self_attn.q_norm", "attention.query_layernorm"),
    ("self_attn.k_norm", "attention.key_layernorm"),
)


def unstacked_experts(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stacked expert weights as the one-by-one weights that checkpoints hold; others as they are."""
    apart: dict[str, Tensor] = {}
    for name, weight in weights.items():
        prefix, _, part = name.rpartition(".")
        if not prefix.endswith("mlp.experts"):
            apart[name] = weight
            continue
        for expert, own in enumerate(weight):
            if part == "down_proj":
                apart[f"{prefix}.{expert}.down_proj.weight"] = own
            else:
                gate, up = own.chunk(2)
                apart[f"{prefix}.{expert}.gate_proj.weight"] = gate
                apart[f"{prefix}.{expert}.up_proj.weight"] = up
    return apart


def llada2_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A Glm4Moe model's weights as LLaDA2.0 checkpoints name them, query, key and value rows in one weight."""
    named: dict[str, Tensor] = {}
    fused: dict[str, list[Tensor]] = {}
    for name, weight in unstacked_experts(weights).items():
        for native, official in _RENAMES:
            name = name.replace(native, official)
        before, attention, _ = name.partition("self_attn.")
        if attention:
            fused.setdefault(f"{before}attention.query_key_value.weight", []).append(weight)
        else:
            named[name] = weight
    return {**named, **{name: cat(parts) for name, parts in fused.items()}}
