"""The batch size that collection finds: fits into memory, is recorded, and stays what it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from collecting import collect_fake, fake_target, folder_bytes, small_recipe, write_prompts
from hypothesis import given
from hypothesis import strategies as st
from small_target import save_small_target

from spot_infer.requests import DecodeSettings
from spot_infer.targets import load_target
from spot_train.collect import batch_size
from spot_train.collect.batch_size import USED_SHARE, fitting_rows, free_memory_bytes, reckoned_peak
from spot_train.collect.collect import collect
from spot_train.compare.compare import Method
from spot_train.shards.store import open_shards

AUTO = {"max_new_tokens": 20, "lease_prompts": 64, "free_space_margin_bytes": 0, "batch_size": "auto"}


@given(st.integers(0, 10**12), st.integers(0, 10**9), st.integers(1, 10**9), st.integers(1, 100))
def test_rows_fit_and_twice_as_many_would_not(free: int, fixed: int, a_row: int, most: int) -> None:
    rows = fitting_rows(free, fixed + a_row, fixed + 2 * a_row, most)
    assert 1 <= rows <= most
    assert rows & (rows - 1) == 0
    assert rows == 1 or fixed + rows * a_row <= free * USED_SHARE
    assert 2 * rows > most or fixed + 2 * rows * a_row > int(free * USED_SHARE)


def test_a_control_group_limits_what_the_machine_has(tmp_path: Path) -> None:
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    assert free_memory_bytes(meminfo, cgroup, unknown=7) == 7
    meminfo.write_text("MemTotal:       100 kB\nMemAvailable:    80 kB\nSwapCached: 0 kB\n")
    assert free_memory_bytes(meminfo, cgroup) == 80 * 1024
    cgroup.mkdir()
    (cgroup / "memory.max").write_text("50000\n")
    (cgroup / "memory.current").write_text("20000\n")
    assert free_memory_bytes(meminfo, cgroup) == 30000
    (cgroup / "memory.max").write_text("max\n")
    assert free_memory_bytes(meminfo, cgroup) == 80 * 1024


def test_a_reckoned_row_is_at_least_its_cache_and_grows_with_budget_and_length(tmp_path: Path) -> None:
    target = load_target(save_small_target(tmp_path / "target"), dtype="float64")
    settings = DecodeSettings(max_new_tokens=64)
    free, drafted = Method("draft-free"), Method("chain", 8)
    one, two, three = (reckoned_peak(target, free, settings, 40, rows) for rows in (1, 2, 3))
    config = target.model.config  # type: ignore[attr-defined]
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 8 * 104
    assert two - one >= cache
    assert three - two == two - one
    assert reckoned_peak(target, drafted, settings, 40, 1) > one
    assert reckoned_peak(target, free, settings, 400, 1) > one


def test_what_was_found_is_recorded_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 6)
    target = load_target(save_small_target(tmp_path / "target"), dtype="float64")
    recipe = small_recipe(prompts, collect=AUTO)
    monkeypatch.setattr(batch_size, "free_memory_bytes", lambda: 10**9)
    summary = collect(recipe, tmp_path / "set", target)
    rows = open_shards(tmp_path / "set").attributes["decoding"]["batch_size"]
    assert rows == summary.plan.batch_size > 1
    before = folder_bytes(tmp_path / "set")
    monkeypatch.setattr(batch_size, "free_memory_bytes", lambda: 0)
    assert collect(recipe, tmp_path / "set", target).written == 0
    (tmp_path / "set" / "manifest.json").unlink()
    assert collect(recipe, tmp_path / "set", target).plan.batch_size == rows
    assert folder_bytes(tmp_path / "set") == before
    assert collect(recipe, tmp_path / "small", target).plan.batch_size == 1


def test_a_target_without_a_network_gets_a_plain_number(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 3)
    summary = collect_fake(prompts, tmp_path / "set", collect=AUTO)
    assert summary.plan.batch_size == DecodeSettings.batch_size
    assert fake_target().forwards == 0
