"""The public calls on a small target from disk: every form of prompt, samples, streaming, a model already loaded."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_dlm import FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st
from small_target import save_small_target
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from spot_infer import CommitRule, GenerationConfig, SpotError, from_model, generate, load_target, rounds, stream
from spot_infer.drafters import ChainDrafter, DraftSettings, OrderDrafter
from spot_infer.order_model import OrderModel, OrderModelConfig

TEXT = "What is 3 + 4?"
CONFIG = GenerationConfig(max_new_tokens=12, temperature=1.0, seed=3, budget=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def target(folder: Path) -> Any:
    return load_target(folder, dtype="float64", device="cpu")


def test_a_string_is_one_user_message_and_its_ids_are_the_templates(target: Any) -> None:
    messages = [{"role": "user", "content": TEXT}]
    text = target.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>assistant\n")
    ids = target.tokenizer(text, add_special_tokens=False)["input_ids"]
    results = [generate(target, prompt, CONFIG) for prompt in (TEXT, [TEXT], messages, [messages], ids, [ids])]
    assert all(len(result) == 1 for result in results)
    assert len({result[0].tokens for result in results}) == 1
    raw = GenerationConfig(max_new_tokens=12, temperature=1.0, seed=3, raw=True)
    assert generate(target, text, raw)[0].tokens == results[0][0].tokens != generate(target, TEXT, raw)[0].tokens


def test_samples_come_in_prompt_order_each_with_its_own_noise_whatever_the_batch(target: Any) -> None:
    prompts = [TEXT, "Name a fruit.", [9, 8, 7]]
    many = generate(target, prompts, GenerationConfig(max_new_tokens=9, temperature=1.0, n=3, batch_size=4))
    assert [result.request for result in many] == list(range(9))
    assert len({result.tokens for result in many}) == 9
    for index, prompt in enumerate(prompts):
        alone = generate(target, [prompt], GenerationConfig(max_new_tokens=9, temperature=1.0, n=3, batch_size=1))
        assert [one.tokens for one in alone] == [one.tokens for one in many[3 * index : 3 * index + 3]]


@settings(max_examples=10)
@given(st.integers(0, 1000), st.sampled_from([(), ("1",), ("e ", " t"), ("\n", "an", "a")]), st.booleans())
def test_streamed_spans_add_up_to_the_result(target: Any, seed: int, stop: tuple[str, ...], drafted: bool) -> None:
    config = GenerationConfig(max_new_tokens=16, temperature=1.0, seed=seed, stop=stop, n=2, budget=3)
    drafter = ChainDrafter() if drafted else None
    expected = generate(target, TEXT, config)
    tokens: dict[int, tuple[int, ...]] = {0: (), 1: ()}
    text = {0: "", 1: ""}
    ended: dict[int, Any] = {}
    for delta in stream(target, TEXT, config, drafter):
        assert delta.request not in ended
        tokens[delta.request] += delta.tokens
        text[delta.request] += delta.text
        if delta.result is not None:
            ended[delta.request] = delta.result
    for request, result in enumerate(expected):
        assert (tokens[request], text[request]) == (result.tokens, result.text)
        assert (ended[request].text, ended[request].finish_reason) == (result.text, result.finish_reason)


def test_a_model_already_loaded_decodes_like_the_folder_it_came_from(folder: Path, target: Any) -> None:
    config = Qwen3Config.from_pretrained(folder)
    model = Qwen3ForCausalLM.from_pretrained(folder, config=config, dtype=torch.float64, attn_implementation="sdpa")
    wrapped = from_model(model, AutoTokenizer.from_pretrained(folder), block_length=8, mask_id=3, stop_ids=[0, 2])
    assert generate(wrapped, TEXT, CONFIG)[0].tokens == generate(target, TEXT, CONFIG)[0].tokens
    eager = Qwen3ForCausalLM.from_pretrained(folder, config=config, attn_implementation="eager")
    with pytest.raises(SpotError, match="sdpa"):
        from_model(eager, None, block_length=8, mask_id=3)
    with pytest.raises(SpotError, match="block_length"):
        from_model(model, None, block_length=None, mask_id=3)
    with pytest.raises(SpotError, match="mask_id"):
        from_model(model, None, block_length=8)


def test_a_target_written_by_the_user_works_in_all_of_it() -> None:
    own = FakeTarget(seed=3, stop_ids=())
    config = GenerationConfig(max_new_tokens=10, temperature=1.0, budget=4)
    free = generate(own, [[1, 2, 3]], config)
    drafted = generate(own, [[1, 2, 3]], config, ChainDrafter())
    assert free[0].tokens == drafted[0].tokens
    assert drafted[0].stats.accepted > 0
    assert "".join(delta.text for delta in stream(own, [[1, 2, 3]], config)) == free[0].text


def test_a_drafter_of_another_rule_is_announced_and_changes_nothing(target: Any) -> None:
    torch.manual_seed(0)
    bfloat16 = OrderDrafter(OrderModel(OrderModelConfig(8, rule=CommitRule(resolution="bfloat16"))), DraftSettings())
    with pytest.warns(UserWarning, match="rule.resolution=bfloat16 and runs under the default commit rule"):
        drafted = generate(target, TEXT, CONFIG, bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        free = generate(target, TEXT, CONFIG)
        same = generate(target, TEXT, CONFIG, OrderDrafter(OrderModel(OrderModelConfig(8))))
    assert drafted[0].tokens == free[0].tokens == same[0].tokens


BAD_CALLS: list[tuple[Any, dict[str, Any], str]] = [
    ("  ", {}, "prompt is empty"),
    ([[]], {}, "empty"),
    ([[1, 2], [3]], {}, "prompt 1 holds the mask token"),
    ([[{"role": "user"}]], {}, "role and content"),
    ([[{"role": "user", "content": "a"}]], {"raw": True}, "raw takes prompts"),
    (TEXT, {"layout": "diagonal"}, "layout"),
    (TEXT, {"boundary": "none"}, "boundary is 'none'; use auto, seamless, fused, separate"),
    (TEXT, {"preset": "ours"}, "preset is 'ours'; use default, paper"),
    (TEXT, {"stop": ("",)}, "empty string"),
    (TEXT, {"n": 0}, "n is 0"),
    (TEXT, {"floor": 1.0}, "floor"),
    (TEXT, {"max_new_tokens": 10_000}, "positions"),
    (b"text", {}, "prompts is bytes; give text"),
    ([b"text"], {}, "a prompt is bytes; give text"),
    ({"role": "user", "content": "a"}, {}, "prompts is dict; give text"),
    (None, {}, "prompts is NoneType"),
    (torch.tensor([1.5, 2.0]), {}, "float32 array of shape"),
    (np.ones((1, 2, 3), dtype=np.int64), {}, "array of shape"),
    (TEXT, {"batch_size": 0}, "batch_size is 0"),
    (TEXT, {"verifier": "typical"}, "verifier is 'typical'"),
]


@pytest.mark.parametrize(("prompts", "fields", "words"), BAD_CALLS, ids=[words for _, _, words in BAD_CALLS])
def test_a_bad_call_is_refused_before_the_first_forward(
    target: Any, prompts: Any, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpotError, match=words):
        list(rounds(target, prompts, GenerationConfig(**{"max_new_tokens": 4, **fields})))


def test_prompts_come_in_any_iterable_and_ids_in_arrays_and_tensors() -> None:
    own = FakeTarget(seed=3, stop_ids=())
    config = GenerationConfig(max_new_tokens=5)
    ids = [1, 2, 3]
    expected = generate(own, ids, config)[0].tokens
    one_prompt: list[Any] = [torch.tensor(ids), np.array(ids, dtype=np.int32), tuple(ids), iter([ids]), [np.array(ids)]]
    one_prompt += [torch.tensor([ids]), (prompt for prompt in [torch.tensor(ids)])]
    for prompts in one_prompt:
        assert [result.tokens for result in generate(own, prompts, config)] == [expected]
    assert len(generate(own, (ids for _ in range(3)), config)) == 3


def test_a_drafter_of_another_block_length_is_refused(target: Any) -> None:
    other = OrderDrafter(OrderModel(OrderModelConfig(16)))
    with pytest.raises(SpotError, match="block length 16"):
        generate(target, TEXT, CONFIG, other)
