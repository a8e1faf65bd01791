"""How many rows of a collection fit into free memory. Asked once a set of shards: the answer is recorded with it.

On a GPU the peak of one and of two of the longest rows is measured, on a CPU it is reckoned from the model's sizes; the
rest is a straight line. Knows nothing about speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from spot_infer.answers import chunk_rows
from spot_infer.decode import decode
from spot_infer.errors import SpotError
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets.protocol import Target
from spot_train.compare.compare import Method, settings_of
from spot_train.prompts import Prompt
from spot_train.recipe.recipe import Recipe
from spot_train.shards.files import read_attributes
from spot_train.shards.store import read_manifest, shard_paths

USED_SHARE = 0.7
"""Of the free memory; the rest is for what other programs and the drafter take."""
_TABLE_ROW_BYTES = 200


def with_recorded_batch(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with `auto` replaced by what the set in `folder` was begun with, if anything."""
    for attributes in _recorded_attributes(folder):
        recipe = with_batch_of(recipe, attributes)
    return recipe


def with_batch_of(recipe: Recipe, attributes: Mapping[str, Any]) -> Recipe:
    """The recipe with `auto` replaced by what a set of these attributes was begun with, if they say so."""
    rows = attributes.get("decoding", {}).get("batch_size")
    return _fixed(recipe, rows) if recipe.collect.batch_size == "auto" and isinstance(rows, int) else recipe


def with_fitting_batch(
    recipe: Recipe,
    target: Target,
    method: Method,
    settings: DecodeSettings,
    prompts: Sequence[Prompt],
    neighbours: int = 1,
) -> Recipe:
    """The recipe with `auto` replaced by what fits into free memory: a power of two, at most the prompts of a lease
    (rounded down); 8 for a target that is no torch module. neighbours: processes on this machine that do the same."""
    if recipe.collect.batch_size != "auto":
        return recipe
    if not isinstance(getattr(target, "model", None), torch.nn.Module):
        return _fixed(recipe, DecodeSettings.batch_size)
    longest = max(len(prompt.prompt_ids) for prompt in prompts)
    measured = target.device.type == "cuda"
    free = torch.cuda.mem_get_info(target.device)[0] if measured else free_memory_bytes()
    sharers = -(-neighbours // torch.cuda.device_count()) if measured else neighbours
    peak = _measured_peak if measured else reckoned_peak
    one, two = (peak(target, method, settings, longest, rows) for rows in (1, 2))
    return _fixed(recipe, fitting_rows(free // sharers, one, two, recipe.collect.lease_prompts))


def _recorded_attributes(folder: Path) -> Iterator[Mapping[str, Any]]:
    try:
        yield read_manifest(folder)["attributes"]
    except SpotError:
        for path in shard_paths(folder):
            with suppress(SpotError):
                yield read_attributes(path)


def _fixed(recipe: Recipe, rows: int) -> Recipe:
    return recipe.model_copy(update={"collect": recipe.collect.model_copy(update={"batch_size": rows})})


def fitting_rows(free_bytes: int, one_row: int, two_rows: int, most: int) -> int:
    """The largest power of two, at least 1 and at most `most`, whose peak fits into `USED_SHARE` of free memory."""
    room = int(free_bytes * USED_SHARE) - one_row
    rows = max(1, min(most, 1 + room // max(1, two_rows - one_row)))
    return 1 << (rows.bit_length() - 1)


def free_memory_bytes(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup"), unknown: int = 2 * 1024**3
) -> int:
    """Memory that this process can still take: what the machine and its control group leave; `unknown` elsewhere."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return unknown
    try:
        limit = int((cgroup / "memory.max").read_text()) - int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return max(0, min(free, limit))


def reckoned_peak(target: Target, method: Method, settings: DecodeSettings, longest_prompt: int, rows: int) -> int:
    """Bytes beyond the weights while `rows` rows of the longest prompt decode: their cache and recorded tables, one
    layer's keys, values, attention and feed-forward of a forward over every replica, and a chunk of logits."""
    config: Any = getattr(target, "model").config  # noqa: B009
    spec = target.spec
    item = torch.finfo(getattr(torch, spec.dtype, torch.float32)).bits // 8
    heads, hidden = int(config.num_attention_heads), int(config.hidden_size)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head_dim = int(getattr(config, "head_dim", None) or hidden // heads)
    length, positions = spec.block_length, spec.blocks_end(longest_prompt, settings.max_new_tokens)
    sequences = rows * (1 + method.budget)
    cache = rows * positions * 2 * int(config.num_hidden_layers) * kv_heads * head_dim * item
    keys = sequences * (positions + length) * 2 * heads * head_dim * item
    attention = sequences * heads * length * (positions + length) * 4
    feed_forward = sequences * length * (6 * hidden + 3 * int(getattr(config, "intermediate_size", 4 * hidden))) * item
    logits = 4 * min(sequences * length, chunk_rows(spec.vocab_size)) * spec.vocab_size * 4
    tables = rows * settings.max_new_tokens * length * _TABLE_ROW_BYTES
    return cache + keys + attention + feed_forward + logits + tables


def _measured_peak(target: Target, method: Method, settings: DecodeSettings, longest_prompt: int, rows: int) -> int:
    """Bytes that a GPU allocated at most while `rows` rows, as long as they can get, decode four tokens."""
    spec = target.spec
    filler = next(token for token in range(spec.vocab_size) if token not in (*spec.forbidden_ids, *spec.stop_ids))
    length = spec.blocks_end(longest_prompt, settings.max_new_tokens) - spec.block_length
    requests: Sequence[Request] = [Request((filler,) * max(1, length)) for _ in range(rows)]
    short = replace(settings_of(method, settings), max_new_tokens=4, batch_size=rows)
    torch.cuda.synchronize(target.device)
    before = torch.cuda.memory_allocated(target.device)
    torch.cuda.reset_peak_memory_stats(target.device)
    for _ in decode(target, requests, short, method.drafter, record=True):
        pass
    torch.cuda.synchronize(target.device)
    return torch.cuda.max_memory_allocated(target.device) - before
