"""A packed forward against a plain one: the same answers, so that their times may be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from small_families import qwen3, save_dream

from spot_infer.blocks import BlockState
from spot_infer.clock import clock_for
from spot_infer.errors import SpotError
from spot_infer.targets import from_model, load_target
from spot_infer.targets.block_causal import BlockCausalTarget
from spot_train.cli import run
from spot_train.cost.packed import LAYOUTS, PLAIN, forwards, packed_against_plain
from spot_train.cost.view import print_packed

L, MASK = 8, 39


def small_target() -> BlockCausalTarget:
    model = qwen3(0, vocab_size=40).double()
    target = from_model(model, None, block_length=L, mask_id=MASK, stop_ids=[0])
    assert isinstance(target, BlockCausalTarget)
    return target


TARGET = small_target()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 3), st.lists(st.integers(0, 2**L - 2), min_size=1, max_size=5))
def test_plain_and_packed_forwards_give_the_same_hidden_states_again_and_again(blocks: int, filled: list[int]) -> None:
    prefix = [at % 30 + 1 for at in range(blocks * L)]
    states = [
        BlockState(blocks * L, tuple(slot + 1 if bits >> slot & 1 else MASK for slot in range(L)), MASK)
        for bits in filled
    ]
    with torch.inference_mode():
        ways = forwards(TARGET, prefix, states)
        first = {name: way() for name, way in ways.items()}
        again = {name: way() for name, way in ways.items()}
    assert len(first[PLAIN]) == sum(len(state.masked_slots) for state in states)
    for name in (PLAIN, *LAYOUTS):
        torch.testing.assert_close(first[name], first[PLAIN], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(again[name], first[name], rtol=0, atol=0)


def test_a_row_of_figures_a_size_and_layout() -> None:
    rows = packed_against_plain(TARGET, [1, 3], 20, 2, clock_for(TARGET.device, "cpu"))
    assert [(row["replicas"], row["positions"], row["layout"]) for row in rows] == [
        (size, size * L, layout) for size in (1, 3) for layout in LAYOUTS
    ]
    assert all(row["ratio"] == row["packed"] / row["plain"] > 0 for row in rows)


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["profile-packed", "builtin:data/tiny-sdar", "--size", "1", "--size", "2", "--repeats", "1"]
    assert run([*common, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2 * len(LAYOUTS)
    assert run(common) == 0
    assert "concat / plain" in capsys.readouterr().out


@pytest.mark.figures
def test_a_wide_network_forwards_replicas_as_fast_as_rows() -> None:
    """The table of `docs/cost.md` for random weights: 4 layers of width 1,024 behind 256 tokens, one thread."""
    shape = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4, "num_attention_heads": 16}
    shape |= {"num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 4096, "vocab_size": 1000}
    target = from_model(qwen3(0, **shape), None, block_length=32, mask_id=999, stop_ids=())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = packed_against_plain(target, [2, 9, 21], 256, 4, clock_for(target.device, "cpu"))
    finally:
        torch.set_num_threads(threads)
    print_packed(Console(), rows, "cpu")
    assert all(row["ratio"] < 1.15 for row in rows if row["layout"] == "batch")


@pytest.mark.parametrize(
    ("sizes", "prefix", "said"), [([2, 0], 8, "--size is 0"), ([1], 10**6, "use a shorter prefix")]
)
def test_what_can_not_be_measured_is_refused(sizes: list[int], prefix: int, said: str) -> None:
    with pytest.raises(SpotError, match=said):
        packed_against_plain(TARGET, sizes, prefix, 1, clock_for(TARGET.device))


def test_full_attention_is_refused(tmp_path: Path) -> None:
    save_dream(tmp_path)
    target = load_target(tmp_path)
    with pytest.raises(SpotError, match="profile a block-causal target"):
        packed_against_plain(target, [1], 0, 1, clock_for(target.device))
