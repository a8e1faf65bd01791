"""What a tiny target of either family is: its tokenizer's making, its chat template, its config.json.

Field names, special tokens and templates are those of the official checkpoints; sizes are not.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TinyTarget:
    """One family's small files.

    special: token strings, before the learnt tokens or after them. pieces: the regular expression whose matches are
    never merged with each other. roles: what the chat template calls user and assistant. stop, filler, mask: the
    strings that end an answer, fill the block after it and hide a token. config: config.json without ids and sizes of
    the vocabulary; official names of those ids, where the family has a field for them.
    """

    special: tuple[str, ...]
    special_first: bool
    vocab_tokens: int
    pieces: str
    roles: tuple[str, str]
    chat_template: str
    stop: str
    filler: str
    mask: str
    config: dict[str, Any]
    id_fields: dict[str, str] = field(default_factory=dict)


_SIZES = {"attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 1024}
_SAME = {"rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000, "tie_word_embeddings": False}

SDAR = TinyTarget(
    special=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>"),
    special_first=True,
    vocab_tokens=1000,
    pieces=r"\d| ?\p{L}+| ?[^\s\p{L}\d]+(?: (?=\d))?|\s+",
    roles=("user", "assistant"),
    chat_template=(
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    stop="<|im_end|>",
    filler="<|endoftext|>",
    mask="<|MASK|>",
    config={
        "architectures": ["SDARForCausalLM"],
        "attention_bias": False,
        "block_size": 32,
        "head_dim": 32,
        "hidden_size": 256,
        "intermediate_size": 640,
        "max_window_layers": 4,
        "model_type": "sdar",
        "num_attention_heads": 8,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "sliding_window": None,
        "torch_dtype": "float16",
        "use_cache": True,
        "use_sliding_window": False,
        **_SIZES,
        **_SAME,
    },
    id_fields={
        "bos_token_id": "<|endoftext|>",
        "eos_token_id": "<|im_end|>",
        "pad_token_id": "<|endoftext|>",
        "mask_token_id": "<|MASK|>",
    },
)

LLADA2 = TinyTarget(
    special=("<|startoftext|>", "<|endoftext|>", "<role>", "</role>", "<|role_end|>", "<|mask|>"),
    special_first=False,
    vocab_tokens=768,
    pieces=r"\d|[ _]?\p{L}+| ?[^\s\p{L}\d]+(?: (?=\d))?|\s+",
    roles=("HUMAN", "ASSISTANT"),
    chat_template=(
        "{% for message in messages %}"
        "{% set role = 'HUMAN' if message['role'] == 'user' else message['role'] | upper %}"
        "{{ '<role>' + role + '</role>' + message['content'] + '<|role_end|>' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<role>ASSISTANT</role>' }}{% endif %}"
    ),
    stop="<|role_end|>",
    filler="<|endoftext|>",
    mask="<|mask|>",
    config={
        "architectures": ["LLaDA2MoeModelLM"],
        "first_k_dense_replace": 1,
        "head_dim": 32,
        "hidden_size": 192,
        "intermediate_size": 512,
        "model_type": "llada2_moe",
        "moe_intermediate_size": 112,
        "moe_router_enable_expert_bias": True,
        "n_group": 4,
        "norm_topk_prob": True,
        "num_attention_heads": 6,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "num_shared_experts": 1,
        "partial_rotary_factor": 0.5,
        "routed_scaling_factor": 2.5,
        "score_function": "sigmoid",
        "topk_group": 2,
        "torch_dtype": "float16",
        "use_bias": False,
        "use_qkv_bias": False,
        **_SIZES,
        **_SAME,
    },
    id_fields={"pad_token_id": "<|endoftext|>"},
)

FAMILIES = {"sdar": SDAR, "llada2": LLADA2}
