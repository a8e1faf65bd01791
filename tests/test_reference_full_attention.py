"""LLaDA and Dream against the official code's own logits and ids (fixtures beside the repository), and replicas that
leave one another alone: the figures of the paper's appendix D.7."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from official_canvases import FAST, OFFICIAL, TOLERANCE, block_logits, loaded, opened, predicted
from safetensors.torch import load_file
from small_families import save_dream, save_llada
from torch import Tensor

from spot_infer.decode import decode
from spot_infer.requests import DecodeSettings, Request


@pytest.fixture(scope="module", params=["llada", "dream"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(f"{request.param}_reference")


@pytest.fixture(scope="module")
def fixtures(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "reference.safetensors") | load_file(folder / "generate.safetensors")


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
