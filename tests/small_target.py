"""A random target on disk, in the official SDAR layout, for tests that need a folder to load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

REPO = Path(__file__).resolve().parent.parent
_SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
}


def save_small_target(folder: Path, seed: int = 0, block_size: int = 8) -> Path:
    """One layer, the tiny target's tokenizer, random weights; stop tokens come early and often enough."""
    tiny = REPO / "data" / "tiny-sdar"
    config = json.loads((tiny / "config.json").read_text()) | _SHAPE | {"block_size": block_size}
    fields = {name: value for name, value in config.items() if name not in ("model_type", "architectures")}
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(Qwen3Config(**fields))
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(tiny / name, folder / name)
    return folder
