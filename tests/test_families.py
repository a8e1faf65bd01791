"""Families: random checkpoints under the official names load into native classes with every weight in its place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_families import MASK, SAVERS, STOP, glm, save_llada2
from small_target import save_small_target
from transformers import Glm4MoeForCausalLM

from spot_infer import GenerationConfig, SpotError, generate, load_target
from spot_infer.targets.family import Family, family_of

IDS = {"mask_id": MASK, "stop_ids": [STOP], "dtype": "float32", "device": "cpu"}


def same_weights(one: Any, other: Any) -> bool:
    pairs = zip(sorted(one.state_dict().items()), sorted(other.state_dict().items()), strict=True)
    return all(name == other_name and torch.equal(a, b) for (name, a), (other_name, b) in pairs)


@pytest.mark.parametrize("model_type", SAVERS)
def test_every_weight_of_an_official_checkpoint_reaches_its_native_place(model_type: str, tmp_path: Path) -> None:
    saved = SAVERS[model_type](tmp_path)
    target: Any = load_target(tmp_path, block_length=4, **IDS)
    assert same_weights(target.model, saved)
    results = generate(target, [[5, 6, 7], [8] * 6], GenerationConfig(max_new_tokens=6))
    assert all(0 < len(result.tokens) <= 6 and MASK not in result.tokens for result in results)
    full = model_type in ("llada", "Dream")
    assert {(result.stats.distribution_preserving, result.stats.reason) for result in results} == {
        (False, "approximate prefix cache") if full else (True, "nothing is drafted")
    }
    assert (target.spec.grid_origin, target.spec.logit_shift) == (
        "prompt" if full else "absolute",
        model_type == "Dream",
    )


def test_converting_llada2_leaves_glm_checkpoints_of_the_process_alone(tmp_path: Path) -> None:
    plain, saved = glm(1), save_llada2(tmp_path / "llada2")
    plain.save_pretrained(tmp_path / "glm")
    for _ in range(2):  # GLM after LLaDA2, then LLaDA2 after GLM
        loaded: Any = load_target(tmp_path / "llada2", **IDS)
        assert same_weights(loaded.model, saved)
        assert same_weights(Glm4MoeForCausalLM.from_pretrained(tmp_path / "glm", dtype=torch.float32), plain)


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def test_published_ids_hold_for_the_published_vocabulary_alone(tmp_path: Path) -> None:
    folder = save_small_target(tmp_path / "small")
    assert 151645 not in load_target(folder).spec.stop_ids
    save_llada2(tmp_path / "llada2")
    with pytest.raises(SpotError, match="pass mask_id"):
        load_target(tmp_path / "llada2")
    assert load_target(tmp_path / "llada2", mask_id=MASK).spec.block_length == 32
    with pytest.raises(SpotError, match=r"mask_id is 96, but the target's ids are 0\.\.95"):
        load_target(tmp_path / "llada2", mask_id=96)


def test_a_checkpoint_that_lacks_weights_is_refused_by_name(tmp_path: Path) -> None:
    folder = save_small_target(tmp_path)
    edit_config(folder, num_hidden_layers=2)
    with pytest.raises(SpotError, match=r"weights are missing.*model\.layers\.1\.input_layernorm"):
        load_target(folder)
    edit_config(folder, num_hidden_layers=1, intermediate_size=64)
    with pytest.raises(SpotError, match=r"weights could not be loaded|another shape"):
        load_target(folder)


@pytest.mark.parametrize("model_type", ["sdar_moe", "llada2_moe"])
def test_a_mixture_of_experts_decodes_in_float64(model_type: str, tmp_path: Path) -> None:
    SAVERS[model_type](tmp_path)
    target = load_target(tmp_path, block_length=4, **{**IDS, "dtype": "float64"})
    assert generate(target, [[5, 6, 7]], GenerationConfig(max_new_tokens=6))[0].tokens


def test_a_block_whose_slots_a_byte_can_not_number_is_refused(tmp_path: Path) -> None:
    SAVERS["sdar"](tmp_path)
    assert load_target(tmp_path, block_length=256).spec.block_length == 256
    with pytest.raises(SpotError, match=r"block_length is 257; .* use at most 256"):
        load_target(tmp_path, block_length=257)


def test_a_cache_that_does_not_fit_the_attention_is_refused(tmp_path: Path) -> None:
    for model_type, cache in (("sdar_moe", "dual"), ("llada", "exact")):
        SAVERS[model_type](tmp_path / model_type)
        with pytest.raises(SpotError, match=f"cache is '{cache}'"):
            load_target(tmp_path / model_type, cache=cache)


def test_a_draft_across_blocks_is_refused_under_full_attention(tmp_path: Path) -> None:
    SAVERS["llada"](tmp_path)
    target = load_target(tmp_path, block_length=4)
    with pytest.raises(SpotError, match="boundary separate"):
        generate(target, [[5, 6]], GenerationConfig(max_new_tokens=4, boundary="fused"))


PLUGIN = """
from spot_infer.targets import Family
from spot_infer.targets.sdar import SDAR

FAMILY = Family(SDAR.native, block_length=8)
NOT_ONE = 3
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages with one that adds families."""
    site = tmp_path / "site"
    (site / "spot_oddity-1.0.dist-info").mkdir(parents=True)
    (site / "spot_oddity.py").write_text(PLUGIN)
    (site / "spot_oddity-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: spot-oddity\nVersion: 1.0\n"
    )
    (site / "spot_oddity-1.0.dist-info" / "entry_points.txt").write_text(
        "[spot_infer.targets]\noddity = spot_oddity:FAMILY\nbroken = spot_oddity:NOTHING\nwrong = spot_oddity:NOT_ONE\n"
        "sdar = spot_oddity:NOT_ONE\n"
    )
    monkeypatch.syspath_prepend(site)
    yield site
    sys.modules.pop("spot_oddity", None)


def test_an_installed_package_adds_a_family(plugin: Path, tmp_path: Path) -> None:
    folder = save_small_target(tmp_path / "target")
    edit_config(folder, model_type="oddity", block_size=None)
    target = load_target(folder)
    assert target.spec.block_length == 8
    assert generate(target, "Add 3 and 4.", GenerationConfig(max_new_tokens=4))[0].tokens


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("broken", "can't be imported"),
        ("wrong", "not a spot_infer.targets.Family"),
        ("novel", "known families: .*oddity"),
    ],
)
def test_a_plugin_that_is_none_and_an_unknown_family_are_refused(plugin: Path, model_type: str, message: str) -> None:
    with pytest.raises(SpotError, match=message):
        family_of(model_type, "config.json")
    assert isinstance(family_of("sdar", "config.json"), Family)


def test_a_chat_template_from_a_string_or_a_file_replaces_the_tokenizers_own(tmp_path: Path) -> None:
    folder = save_small_target(tmp_path / "target")
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (tmp_path / "own.jinja").write_text(template)
    targets = [load_target(folder, chat_template=given) for given in (template, str(tmp_path / "own.jinja"))]
    assert len({target.spec.template_hash for target in targets}) == 1
    assert targets[0].spec.template_hash != load_target(folder).spec.template_hash
    for bad, message in (("{% for %}", "does not render"), ("none.jinja", "neither a Jinja template nor")):
        with pytest.raises(SpotError, match=message):
            load_target(folder, chat_template=bad)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(SpotError, match="has no tokenizer"):
        load_target(folder, chat_template=template)


def test_a_prompt_with_the_mask_tokens_text_or_id_is_refused(tmp_path: Path) -> None:
    target = load_target(save_small_target(tmp_path))
    text = target.tokenizer.decode([target.spec.mask_id])
    for prompt in (f"Fill {text} here.", [5, target.spec.mask_id]):
        with pytest.raises(SpotError, match="holds the mask token"):
            generate(target, prompt, GenerationConfig(max_new_tokens=4))


def test_sharding_outside_torchrun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_small_target(tmp_path / "small")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(SpotError, match="torchrun"):
        load_target(folder, tp_plan="auto")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SpotError, match="use one of them"):
        load_target(folder, tp_plan="auto", device_map="auto")
    save_llada2(tmp_path / "llada2")
    edit_config(tmp_path / "llada2", quantization_config={"quant_method": "fp8"})
    with pytest.raises(SpotError, match="use device_map"):
        load_target(tmp_path / "llada2", tp_plan="auto", **IDS)


def test_offline_a_hub_id_that_is_not_cached_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SpotError, match=r"nobody/nothing is neither .* at revision v1, and HF_HUB_OFFLINE is set"):
        load_target("nobody/nothing", revision="v1")
