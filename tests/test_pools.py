"""The prompt pools: splits, seeds, gold answers, wordings; and the target's training forward."""

import json
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "data"
sys.path.insert(0, str(DATA))

import make_pools  # noqa: E402
from problems import SPLITS  # noqa: E402

from spot_train.tasks import CodeExecutionNotAllowed  # noqa: E402
from spot_train.tasks.tiny import score  # noqa: E402


def read(split: str) -> list[dict]:
    lines = (DATA / "pools" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def pools() -> dict[str, list[dict]]:
    return {split: read(split) for split in SPLITS}


def test_sizes_and_families(pools):
    assert {split: len(rows) for split, rows in pools.items()} == make_pools.ROWS
    for rows in pools.values():
        counts = [sum(row["family"] == family for row in rows) for family in make_pools.FAMILIES]
        assert min(counts) >= 0.2 * len(rows)


def test_splits_are_disjoint_by_prompt_and_by_content(pools):
    for key in ("prompt", "content"):
        seen = [{row[key] for row in pools[split]} for split in SPLITS]
        assert not seen[0] & seen[1]
        assert not seen[2] & (seen[0] | seen[1])
    for rows in pools.values():
        assert len({row["prompt"] for row in rows}) == len(rows)


@pytest.mark.parametrize("split", SPLITS)
def test_the_seed_reproduces_the_bytes(split, tmp_path):
    path = tmp_path / f"{split}.jsonl"
    make_pools.write_pool(path, make_pools.make_pool(split, make_pools.ROWS[split], seed=0))
    assert path.read_bytes() == (DATA / "pools" / path.name).read_bytes()


def test_another_seed_gives_other_rows():
    first, second = (make_pools.make_pool("heldout", 20, seed) for seed in (0, 1))
    assert first != second


def test_a_fifth_of_eval_is_worded_as_nothing_else_is(pools):
    unseen = [row for row in pools["eval"] if row["wording"] == "unseen"]
    assert len(unseen) * 5 == len(pools["eval"])
    assert {row["family"] for row in unseen} == set(make_pools.FAMILIES)
    assert all(row["wording"] == "seen" for row in pools["train"] + pools["heldout"])


def test_unseen_wordings_are_not_seen_ones():
    import problems_code
    import problems_json
    import problems_list
    import problems_math
    from problems import Phrases

    for module in (problems_code, problems_json, problems_list, problems_math):
        values = [v for v in vars(module).values() if isinstance(v, Phrases)]
        values += list(getattr(module, "_WORDS", {}).values())
        assert values
        for phrases in values:
            assert not set(phrases.seen) & set(phrases.unseen)


def test_most_tasks_need_computing(pools):
    computing = [row["task"] not in make_pools.COPYING_TASKS for row in pools["eval"]]
    assert sum(computing) >= len(computing) / 2


def test_gold_answers_are_solved(pools):
    for row in pools["eval"] + pools["heldout"]:
        if row["family"] != "code":
            assert score(row, row["answer"]), row
    for row in [row for row in pools["eval"] if row["family"] == "code"][:20]:
        assert score(row, row["answer"], allow_code_execution=True), row


def test_wrong_answers_are_not_solved(pools):
    rows = [row for row in pools["heldout"] if row["family"] != "code"]
    for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
        assert not score(row, "")
        assert not score(row, row["answer"] + " or so")
        if row["scorer"] != other["scorer"]:
            assert not score(row, other["answer"])


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return x",
        "def f(x)\n    return x + 1",
        "def f(x):\n    while True: pass",
        "raise SystemExit(0)",
        "def f(x):\n    return ' ' * 10**10",
        "",
    ],
)
def test_wrong_code_is_not_solved(text):
    row = {"scorer": {"type": "code", "function": "f", "tests": ["assert f(1) == 2"]}}
    assert score(row, "def f(x):\n    return x + 1", allow_code_execution=True)
    assert not score(row, text, allow_code_execution=True)


def test_code_runs_only_when_allowed():
    row = {"scorer": {"type": "code", "function": "f", "tests": ["assert f(1) == 2"]}}
    with pytest.raises(CodeExecutionNotAllowed, match="allow_code_execution=True"):
        score(row, "def f(x):\n    return x + 1")


def test_json_scoring_tells_numbers_from_booleans():
    row = {"scorer": {"type": "json", "value": {"a": 1}}}
    assert score(row, 'text first\n{"a": 1}')
    assert not score(row, '{"a": true}')
    assert not score(row, '{"a": 1, "b": 2}')


@pytest.fixture(scope="module")
def small_model():
    torch = pytest.importorskip("torch")
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=1000, hidden_size=64, intermediate_size=96, num_hidden_layers=2, head_dim=16,
        num_attention_heads=4, num_key_value_heads=2, rope_theta=10000.0, use_cache=False,
    )  # fmt: skip
    return Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa").double()


def batches():
    from block_batches import Encoder, step_batches
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(DATA / "tiny-sdar" / "tokenizer.json"))
    return step_batches(Encoder(tokenizer, 3, 2, 0, 0.1), seed=0, step=0, rows=12, longest_blocks=9)


def test_training_forward_equals_the_library(small_model):
    import torch
    from target_forward import masked_logits

    for batch in batches():
        rows, length = batch.ids.shape
        with torch.no_grad():
            mine = masked_logits(small_model, batch)
            theirs = small_model(
                input_ids=batch.ids,
                position_ids=batch.positions.expand(rows, -1),
                attention_mask=batch.attend.expand(rows, 1, length, length),
            ).logits[:, batch.clean_tokens :]
        torch.testing.assert_close(mine, theirs.flatten(0, 1)[batch.slots], rtol=0, atol=1e-4)


def test_a_noisy_block_sees_what_decoding_shows_it(small_model):
    """Predictions in training equal those of a decoder at the same state."""
    import torch
    from block_batches import BLOCK
    from target_forward import masked_logits

    batch = batches()[-1]
    rows, clean = batch.ids.shape[0], batch.clean_tokens
    noisy = batch.ids[:, clean:]
    with torch.no_grad():
        logits = masked_logits(small_model, batch)
    for index in range(0, len(batch.slots), 97):
        row, place = divmod(int(batch.slots[index]), noisy.shape[1])
        start = place // BLOCK * BLOCK
        position = int(batch.positions[clean + place])
        before = batch.ids[row, : position // BLOCK * BLOCK]
        state = torch.cat([before, noisy[row, start : start + BLOCK]])[None]
        block = torch.arange(state.shape[1]) // BLOCK
        attend = (block[:, None] >= block[None])[None, None]
        with torch.no_grad():
            decoded = small_model(input_ids=state, attention_mask=attend).logits[0, position]
        torch.testing.assert_close(logits[index], decoded, rtol=0, atol=1e-4)
    assert rows > 0


def test_batches_depend_on_seed_and_step_alone():
    import torch

    for left, right in zip(batches(), batches(), strict=True):
        assert torch.equal(left.ids, right.ids)
        assert torch.equal(left.slots, right.slots)


def test_the_target_folder_is_small_and_its_digits_are_single_tokens():
    from safetensors import safe_open
    from tokenizers import Tokenizer

    folder = DATA / "tiny-sdar"
    weights = folder / "model.safetensors"
    assert weights.stat().st_size < 8_000_000
    with safe_open(weights, "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}  # noqa: SIM118
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert tokenizer.token_to_id("<|MASK|>") == config["mask_token_id"]
    assert len(tokenizer.encode("2026").ids) == 4


def test_order_counts_follow_the_definition():
    import numpy as np
    from measure_target import order_counts

    from spot_infer.blocks import BlockState, Commit
    from spot_infer.requests import Round
    from spot_infer.table import StaleTable

    def table(slots: list[int], log_odds: list[float], tokens: list[int]) -> StaleTable:
        top = np.array(tokens, dtype=np.int32)[:, None].repeat(32, 1)
        log_probability = np.zeros(top.shape, dtype=np.float16)
        return StaleTable(np.array(slots, dtype=np.uint8), log_probability, top, np.array(log_odds, dtype=np.float32))

    def round_(tokens: tuple[int, ...], rows: StaleTable, position: int, token: int) -> Round:
        step = frozenset({Commit(position, token)})
        return Round(0, BlockState(32, tokens, 3), None, (step,), (rows,))

    trace = [
        round_((3, 3, 3), table([0, 1, 2], [1.0, 3.0, 2.0], [10, 11, 12]), 33, 11),
        round_((3, 11, 3), table([0, 2], [5.0, 4.0], [10, 13]), 32, 10),
        round_((10, 11, 3), table([2], [1.0], [13]), 34, 13),
    ]
    counts = order_counts(trace, prompt_tokens=32, block_length=32)
    assert counts == {"block 0": [2, 1, 2], "all": [2, 1, 2]}
