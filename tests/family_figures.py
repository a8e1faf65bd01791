"""A family of targets against the code it was published with: the largest differences found, as a row of a table.

A family with official fixtures is measured against the official code's logits and ids; any other against its own native
class over the whole sequence, with random weights under the official names. All in float32 on a CPU but the lossless
cases, which are float64: random prompts, rules, samplings, drafters, layouts and batches.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from lossless_cases import Case, cases, check
from lossless_targets import full_attention_targets, moe_targets, qwen3_targets
from official_blocks import block_logits as causal_logits
from official_canvases import OFFICIAL, block_logits, loaded, opened, predicted
from safetensors.torch import load_file
from small_families import MASK, SAVERS, STOP
from torch import Tensor

from spot_infer import load_target
from spot_infer.blocks import BlockState
from spot_infer.decode import decode
from spot_infer.packing import Replica, RowStates, pack
from spot_infer.requests import DecodeSettings, Request
from spot_infer.transition import CommitRule

COLUMNS = ("family", "against", "full", "cached", "next block", "replica isolation", "official ids", "lossless suite")
CAUSAL_RULES = {
    "sdar": [
        ("ids_static_b4_steps4", CommitRule()),
        ("ids_dynamic_thr0.1_b4_steps4", CommitRule(selection="threshold", threshold=0.1, quota=1)),
    ],
    "llada2_moe": [
        (f"new_ids_thr{threshold}_b8_steps8", CommitRule(selection="threshold", threshold=threshold))
        for threshold in (0.1, 0.95)
    ],
}
LOSSLESS = {
    "sdar": qwen3_targets,
    "sdar_moe": lambda: moe_targets("sdar_moe"),
    "llada2_moe": lambda: moe_targets("llada2_moe"),
    "llada": lambda: full_attention_targets(0),
    "dream": lambda: full_attention_targets(1),
}


@dataclass
class Row:
    """One family: largest differences of logits, ids equal, lossless cases equal; None where there is no such thing."""

    family: str
    against: str
    full: float
    cached: float
    next_block: float | None
    isolation: float
    ids: tuple[int, int] | None
    lossless: tuple[int, int]

    def cells(self) -> list[str]:
        """The row's cells in the order of COLUMNS."""
        differences = [self.full, self.cached, self.next_block, self.isolation]
        counts = [self.ids, self.lossless]
        return [
            self.family,
            self.against,
            *("–" if one is None else f"{one:.1e}" for one in differences),
            *("–" if one is None else f"{one[0]}/{one[1]}" for one in counts),
        ]


def largest(one: Tensor, other: Tensor) -> float:
    """Largest absolute difference."""
    return float((one - other).detach().abs().max())


def siblings_apart(logits_of: Callable[..., list[Tensor]], block: list[int], others: list[list[int]]) -> float:
    """How far a block's logits move where siblings stand beside it, first and last among them."""
    (alone,) = logits_of(block)
    beside, *_, again = logits_of(block, *others, block)
    return max(largest(beside, alone), largest(again, alone))


def causal_row(family: str, folder: Path, reference: dict[str, Tensor], facts: dict[str, Any]) -> Row:
    """A block-causal family: blocks behind stored ones, behind a prefilled prompt, and after it."""
    target: Any = load_target(folder, dtype="float32", device="cpu", **facts)
    ids, logits, length = reference["input_ids"][0].tolist(), reference["logits"][0], target.spec.block_length
    cache = target.new_cache()
    cache.add_row()
    full = 0.0
    for start in range(0, len(ids), length):
        own, packed = causal_logits(target, cache, ids[start : start + length], start)
        full = max(full, largest(own, logits[start : start + length]))
        cache.promote(0, packed, 0)
    first, last = reference["cached_block_range"].tolist()
    cache = target.new_cache()
    target.prefill(cache, [cache.add_row()], [ids[:first]])

    def replicas(*blocks: list[int]) -> list[Tensor]:
        states = [Replica(BlockState(first, tuple(block), target.spec.mask_id)) for block in blocks]
        both = pack([RowStates(0, cache.lengths[0], tuple(states))], "concat")
        everywhere = type(both)(**{**vars(both), "read_index": torch.arange(length * len(blocks))})
        return list(target.logits(target.forward(everywhere, cache)).split(length))

    isolation = siblings_apart(replicas, ids[first:last], [[4] * length, [target.spec.mask_id] * length])
    own, packed = causal_logits(target, cache, ids[first:last], first)
    cached = largest(own, reference["cached_block_logits"][0])
    cache.promote(0, packed, 0)
    own, _ = causal_logits(target, cache, ids[last : last + length], last)
    after = largest(own, logits[last : last + length])
    return Row(family, "", full, cached, after, isolation, causal_ids(family, folder, target), (0, 0))


def causal_ids(family: str, folder: Path, target: Any) -> tuple[int, int] | None:
    """Runs of the official generate() whose ids come out, and runs."""
    if not (folder / "generate.safetensors").exists():
        return None
    fixture, same = load_file(folder / "generate.safetensors"), 0
    prompt = fixture["prompt_ids"][0].tolist()
    for name, rule in CAUSAL_RULES[family]:
        expected = fixture[name][0].tolist()
        expected = expected[len(prompt) :] if name.startswith("ids") else expected
        stop = family == "llada2_moe"
        settings_ = DecodeSettings(max_new_tokens=len(expected), rule=rule, ignore_stop=not stop)
        *_, last = decode(target, [Request(tuple(prompt))], settings_)
        same += last.result is not None and list(last.result.tokens) == expected
    return same, len(CAUSAL_RULES[family])


def canvas_row(family: str, folder: Path, fixtures: dict[str, Tensor]) -> Row:
    """A full-attention family: the opening, the same block behind what was kept, a changed one behind stale keys."""
    ids, full, kept, isolation = fixtures["input_ids"][0].tolist(), 0.0, 0.0, 0.0
    for kind in ("none", "prefix", "dual"):
        target = loaded(folder, 8, kind)
        expected = predicted(target, fixtures["logits"][0], 10, 8)
        cache, own = opened(target, ids, 10)
        full = max(full, largest(own, expected))
        if kind != "none":
            kept = max(kept, largest(*block_logits(target, cache, ids[10:18]), expected))

        def replicas(*blocks: list[int], target: Any = target, cache: Any = cache) -> list[Tensor]:
            return list(block_logits(target, cache, *blocks))

        isolation = max(isolation, siblings_apart(replicas, ids[10:18], [[4] * 8, list(range(20, 28))]))
    for kind, length, changed, name in (
        ("prefix", 16, "cached_suffix_input_ids", "cached_suffix_logits"),
        ("dual", 8, "dual_block_input_ids", "dual_block_logits"),
    ):
        if name in fixtures:
            target = loaded(folder, length, kind)
            cache, _ = opened(target, ids, 10)
            (own,) = block_logits(target, cache, fixtures[changed][0].tolist())
            shift = target.spec.logit_shift
            kept = max(kept, largest(own[shift:], fixtures[name][0, : length - shift]))
    return Row(family, "", full, kept, None, isolation, canvas_ids(family, folder, fixtures), (0, 0))


def canvas_ids(family: str, folder: Path, fixtures: dict[str, Tensor]) -> tuple[int, int] | None:
    """Runs of the official generate() whose ids come out, and runs."""
    if "prompt_ids" not in fixtures:
        return None
    prompt, same = tuple(fixtures["prompt_ids"][0].tolist()), 0
    for name, rule, length, cache in OFFICIAL[family]:
        expected = fixtures[name][0].tolist()[len(prompt) :]
        settings_ = DecodeSettings(max_new_tokens=len(expected), rule=rule, ignore_stop=True)
        *_, last = decode(loaded(folder, length, cache), [Request(prompt)], settings_)
        same += last.result is not None and list(last.result.tokens) == expected
    return same, len(OFFICIAL[family])


def own_reference(family: str, folder: Path) -> dict[str, Tensor]:
    """A random checkpoint under the official names, and what its native class says of a whole sequence at once."""
    model = SAVERS["Dream" if family == "dream" else family](folder)
    ids = torch.randint(0, STOP, (1, 24), generator=torch.Generator().manual_seed(1))
    causal = family not in ("llada", "dream")
    block = torch.arange(24) // 4 if causal else torch.zeros(24)
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=(block[:, None] >= block[None, :])[None, None]).logits
    reference = {"input_ids": ids, "logits": logits}
    if causal:
        reference |= {"cached_block_range": torch.tensor([8, 12]), "cached_block_logits": logits[:, 8:12]}
    return reference


def lossless(family: str, wanted: int) -> tuple[int, int]:
    """Cases in which drafted decoding equals draft-free decoding, and cases."""
    equal, drawn = 0, 0

    @settings(max_examples=wanted, database=None, derandomize=True, deadline=None, suppress_health_check=[*HealthCheck])
    @given(cases(LOSSLESS[family]()))
    def one(case: Case) -> None:
        nonlocal equal, drawn
        drawn += 1
        try:
            check(case)
            equal += 1
        except AssertionError:
            pass

    one()
    return equal, drawn


def measure(family: str, reference: Path, wanted: int) -> Row:
    """One family's row."""
    folder = reference / family
    with tempfile.TemporaryDirectory() as own:
        official = folder.is_dir()
        if official:
            fixtures = load_file(folder / "reference.safetensors") | load_file(folder / "generate.safetensors")
        else:
            folder = Path(own)
            fixtures = own_reference(family, folder)
        if family in ("llada", "dream"):
            row = canvas_row(family, folder, fixtures)
        else:
            ids = {"mask_id": 151, "stop_ids": [150]} if official else {"mask_id": MASK, "stop_ids": [STOP]}
            length = {"block_length": 8 if official and family == "llada2_moe" else 4}
            row = causal_row(family, folder, fixtures, {**ids, **length})
    row.against = "official code" if official else "its native class"
    row.lossless = lossless(family, wanted)
    return row
