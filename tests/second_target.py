"""A small random target of the tiny targets' second family on disk, with a tokenizer of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from make_tokenizer import train_tokenizer, write_small_files
from target_families import FAMILIES
from train_target import export, new_model

SIZES: dict[str, dict[str, Any]] = {
    "sdar": {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4},
    "llada2": {"hidden_size": 48, "intermediate_size": 96, "moe_intermediate_size": 16, "head_dim": 16},
}
_TEXT = "Add 3 and 4. 3 + 4 = 7 #### 7. Reverse the list [5, 2, 9]. [9, 2, 5]. two plus two, name a fruit. "


def save_small_files(name: str, folder: Path, **changes: Any) -> Path:
    """A folder of family `name` without weights, small, under `changes` of its config."""
    family = FAMILIES[name]
    write_small_files(train_tokenizer([_TEXT] * 9, family), family, folder)
    config = json.loads((folder / "config.json").read_text())
    sizes = {**SIZES[name], "num_hidden_layers": 2, "num_key_value_heads": 2, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps({**config, **sizes, **changes}))
    return folder


def save_second_target(folder: Path, block_length: int = 8, seed: int = 0) -> Path:
    """A random LLaDA2.0 target that is sure of some tokens."""
    save_small_files("llada2", folder, block_length=block_length)
    torch.manual_seed(seed)
    model = new_model(folder)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    export(model, folder)
    return folder
