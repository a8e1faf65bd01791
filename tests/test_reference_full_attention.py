"""LLaDA and Dream against the official code's own logits and ids (fixtures beside the repository), and replicas that
leave one another alone: the figures of the paper's appendix D.7."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_families import save_dream, save_llada
from torch import Tensor

from spot_infer import load_target
from spot_infer.blocks import BlockState
from spot_infer.canvas import CanvasPacked
from spot_infer.decode import decode
from spot_infer.official_rules import even_quotas, linear_quotas
from spot_infer.packing import Replica, RowStates
from spot_infer.requests import DecodeSettings, Request
from spot_infer.transition import CommitRule

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=["llada", "dream"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(f"{request.param}_reference")


@pytest.fixture(scope="module")
def fixtures(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "reference.safetensors") | load_file(folder / "generate.safetensors")


def loaded(folder: Path, block_length: int, cache: str) -> Any:
    return load_target(folder, dtype="float32", device="cpu", block_length=block_length, cache=cache)  # type: ignore[arg-type]


def block_logits(target: Any, cache: Any, *blocks: list[int]) -> Iterator[Tensor]:
    """Logits [L, V] at every slot, masked or not, of replicas side by side in the block that is open in row 0."""
    replicas = [Replica(BlockState(cache.starts[0], tuple(block), target.spec.mask_id)) for block in blocks]
    packed = target.pack([RowStates(0, cache.lengths[0], replicas)], cache, "concat", 0)
    length = target.spec.block_length
    everywhere = {
        "read_slot": torch.arange(length).repeat(len(blocks)),
        "state_start": tuple(range(0, length * len(blocks) + 1, length)),
    }
    yield from target.logits(target.forward(CanvasPacked(**{**vars(packed), **everywhere}), cache)).split(length)


def opened(target: Any, ids: list[int], start: int) -> tuple[Any, Tensor]:
    """A cache whose only row's block at `start` was opened by a forward of `ids`, and that block's logits."""
    cache = target.new_cache()
    cache.add_row()
    target.open_blocks(cache, [ids], [start])
    (logits,) = block_logits(target, cache, ids[start : start + target.spec.block_length])
    return cache, logits


def predicted(target: Any, raw: Tensor, start: int, length: int) -> Tensor:
    """Rows of the official, unshifted logits that predict the block."""
    first = start - target.spec.logit_shift
    return raw[first : first + length]


@pytest.mark.parametrize("cache_kind", ["none", "prefix", "dual"])
def test_an_opening_equals_the_full_forward_and_so_does_the_same_block_behind_what_was_kept(
    folder: Path, fixtures: dict[str, Tensor], cache_kind: str
) -> None:
    target = loaded(folder, 8, cache_kind)
    ids = fixtures["input_ids"][0].tolist()
    expected = predicted(target, fixtures["logits"][0], 10, 8)
    cache, logits = opened(target, ids, 10)
    assert (logits - expected).abs().max() < TOLERANCE
    (logits,) = block_logits(target, cache, ids[10:18])
    assert (logits - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize(
    ("cache_kind", "length", "changed", "expected"),
    [
        ("prefix", 16, "cached_suffix_input_ids", "cached_suffix_logits"),
        ("dual", 8, "dual_block_input_ids", "dual_block_logits"),
    ],
)
def test_a_changed_block_behind_a_stale_cache_equals_the_official_cached_forward(
    folder: Path, fixtures: dict[str, Tensor], cache_kind: str, length: int, changed: str, expected: str
) -> None:
    target = loaded(folder, length, cache_kind)
    cache, _ = opened(target, fixtures["input_ids"][0].tolist(), 10)
    (logits,) = block_logits(target, cache, fixtures[changed][0].tolist())
    shift = target.spec.logit_shift  # the official cached forward has no row for the first slot of a shifted block
    official = fixtures[expected][0, : length - shift]
    assert (logits[shift:] - official).abs().max() < TOLERANCE


FAST = CommitRule(selection="threshold", threshold=0.1, inclusive=True)
FAST_DREAM = CommitRule(selection="threshold", threshold=0.1, inclusive=True, opening="first")
OFFICIAL = {
    "llada": [
        ("ids_gsai_steps16_gen16_b8_T0", CommitRule(selection="quota", quota=even_quotas(8, 8)), 8, "none"),
        ("ids_gsai_steps8_gen16_b8_T0", CommitRule(selection="quota", quota=even_quotas(8, 4)), 8, "none"),
        ("ids_fastdllm_nocache_thr0.1_b8", FAST, 8, "none"),
        ("ids_fastdllm_prefixcache_thr0.1_b8", FAST, 8, "prefix"),
        ("ids_fastdllm_dualcache_thr0.1_b8", FAST, 8, "dual"),
    ],
    "dream": [
        *(
            (f"ids_{name}_steps16_T0", CommitRule(ranking, selection="quota", quota=linear_quotas(16, 16)), 16, "none")
            for name, ranking in (("maskgit_plus", "probability"), ("topk_margin", "margin"), ("entropy", "entropy"))
        ),
        (
            "ids_confidence_threshold_steps16_T0",
            CommitRule(selection="threshold", threshold=0.9, inclusive=True),
            16,
            "none",
        ),
        ("ids_fastdllm_prefix_thr0.1_b8", FAST_DREAM, 8, "prefix"),
        ("ids_fastdllm_dual_thr0.1_b8", FAST_DREAM, 8, "dual"),
    ],
}


def test_the_ids_of_the_official_generate(folder: Path, fixtures: dict[str, Tensor]) -> None:
    prompt = tuple(fixtures["prompt_ids"][0].tolist())
    for name, rule, length, cache in OFFICIAL[folder.name]:
        expected = fixtures[name][0].tolist()[len(prompt) :]
        settings = DecodeSettings(max_new_tokens=len(expected), rule=rule, ignore_stop=True)
        *_, last = decode(loaded(folder, length, cache), [Request(prompt)], settings)
        assert last.result is not None
        assert list(last.result.tokens) == expected, name
        assert last.result.stats.distribution_preserving is (cache == "none")
        nfe = fixtures.get(f"nfe_fastdllm_{cache}cache".replace("none", "no"))
        assert nfe is None or rule is not FAST or last.result.stats.nfe == int(nfe)


@pytest.mark.parametrize("cache_kind", ["none", "prefix", "dual"])
@pytest.mark.parametrize("save", [save_llada, save_dream])
def test_replicas_leave_one_another_alone(tmp_path: Path, save: Any, cache_kind: str) -> None:
    save(tmp_path)
    target = loaded(tmp_path, 8, cache_kind)
    ids = [5, 9, 33, 21, 7, *[target.spec.mask_id] * 16]
    cache, _ = opened(target, ids, 5)
    block = [target.spec.mask_id, 8, target.spec.mask_id, 30, *ids[9:13]]
    others = [[4] * 8, [target.spec.mask_id] * 8, list(range(20, 28))]
    (alone,) = block_logits(target, cache, block)
    beside, *_, again = block_logits(target, cache, block, *others, block)
    assert (beside - alone).abs().max() < TOLERANCE
    assert (again - alone).abs().max() < TOLERANCE
