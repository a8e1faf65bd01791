"""Training from a set of shards: a stated number of them in memory, every state once an epoch, resumable to the bit,
and loading processes that open their own files in good time."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from test_fit import SMALL, assert_same
from test_shards import make_set

from spot_infer.errors import SpotError
from spot_infer.transition import CommitRule
from spot_train.fit.data import CheckBatches, TrainBatches
from spot_train.fit.examples import lay_out
from spot_train.fit.fit import fit
from spot_train.fit.step_windows import InMemory, ShardWindows, spread_states
from spot_train.recipe.recipe import FitSection
from spot_train.shards.store import ShardSet, open_shards

RULE = CommitRule()
SHARDS = 5
TIME_LIMIT_S = 240


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    return open_shards(make_set(tmp_path_factory.mktemp("windows") / "set", SHARDS))


def section(**changes: object) -> FitSection:
    return FitSection(**{**SMALL, **changes})  # type: ignore[arg-type]


def examples(batches: TrainBatches, epoch: int) -> Counter[bytes]:
    """Every example of an epoch, as bytes."""
    found: Counter[bytes] = Counter()
    for step in range(epoch * len(batches), (epoch + 1) * len(batches)):
        batch = batches[step]
        for index in range(len(batch.label)):
            of = batch.of[index]
            width = int(batch.valid[of].sum())
            parts = (batch.table[of, :width], batch.taken[index, :width], batch.depth[index], batch.label[index])
            found[b"".join(part.numpy().tobytes() for part in parts)] += 1
    return found


@pytest.mark.parametrize("resident", [1, 2, 3])
def test_windows_hold_few_shards_and_together_all(shards: ShardSet, resident: int) -> None:
    windows = ShardWindows(shards, "train", resident)
    assert max(map(len, windows.names)) <= resident
    assert sorted(name for window in windows.names for name in window) == list(shards.names)
    laid = [windows.steps(window) for window in range(len(windows.names))]
    whole = lay_out(shards.trajectories("train"))
    assert windows.facts.trajectories == whole.trajectories == 10
    assert windows.facts.steps == sum(map(len, laid)) == len(whole)
    assert windows.facts.usable == tuple(len(one.usable) for one in laid)
    assert len(pickle.dumps(windows)) < 100_000


def test_a_kept_trajectory_does_not_keep_its_shard(shards: ShardSet) -> None:
    for one in shards.trajectories():
        for name in ("slot", "top_logprob", "top_token", "log_odds", "block_tokens", "commit_token"):
            array = getattr(one, name)
            assert array.base is None and array.nbytes == array.size * array.itemsize, name


@pytest.mark.parametrize("resident", [1, 2, SHARDS])
def test_an_epoch_holds_every_example_once(shards: ShardSet, resident: int) -> None:
    every = {"batch_size": 7, "d_max": 3, "depths_per_state": 4}
    batches = TrainBatches(ShardWindows(shards, "train", resident), section(**every), RULE)
    expected = examples(TrainBatches(InMemory.of(shards.trajectories("train")), section(**every), RULE), 0)
    assert examples(batches, 0) == expected
    assert examples(batches, 1) == expected


def test_epochs_take_the_windows_in_another_order(shards: ShardSet) -> None:
    batches = TrainBatches(ShardWindows(shards, "train", 1), section(d_max=3), RULE)
    orders = []
    for epoch in range(4):
        seen = [batches.window(step) for step in range(epoch * len(batches), (epoch + 1) * len(batches))]
        orders.append(tuple(dict.fromkeys(seen)))
    assert all(sorted(order) == list(range(SHARDS)) for order in orders)
    assert len(set(orders)) > 1


def test_batches_are_a_function_of_the_step(shards: ShardSet) -> None:
    windows = ShardWindows(shards, "train", 2)
    in_order = TrainBatches(windows, section(), RULE)
    steps = range(2 * len(in_order))
    kept = [in_order[step] for step in steps]
    fresh = TrainBatches(ShardWindows(shards, "train", 2), section(), RULE)
    for step in reversed(steps):
        assert all(torch.equal(left, right) for left, right in zip(kept[step], fresh[step], strict=True))


def test_one_window_is_what_memory_holds(shards: ShardSet) -> None:
    windows = ShardWindows(shards, "train", SHARDS)
    memory = InMemory.of(shards.trajectories("train"))
    assert windows.facts == memory.facts
    for step in range(3):
        both = (TrainBatches(one, section(), RULE)[step] for one in (windows, memory))
        assert all(torch.equal(left, right) for left, right in zip(*both, strict=True))


@pytest.mark.parametrize("count", [1, 4, 10_000])
def test_checked_states_are_those_of_the_whole_split(shards: ShardSet, count: int) -> None:
    whole = lay_out(shards.trajectories("train"))
    thin = spread_states(ShardWindows(shards, "train", SHARDS), count)
    for kind in ("v1", "v2"):
        expected, found = (CheckBatches(one, kind, RULE, (0, 2), limit=count) for one in (whole, thin))
        assert len(found) == len(expected)
        for index in range(len(found)):
            assert all(torch.equal(left, right) for left, right in zip(found[index], expected[index], strict=True))
    tables = np.diff(thin.start)
    assert (tables > 0).sum() <= 2 * count
    several = spread_states(ShardWindows(shards, "train", 2), count)
    assert (np.diff(several.start) > 0).sum() == (tables > 0).sum()
    assert len(several) == len(whole)


def test_training_from_shards_equals_training_from_memory(shards: ShardSet, tmp_path: Path) -> None:
    settings = section(max_steps=6, epochs=3)
    both = []
    for name in ("memory", "shards"):
        parts = (
            [shards.trajectories(split) for split in ("train", "heldout")]  # type: ignore[arg-type]
            if name == "memory"
            else [ShardWindows(shards, split, SHARDS) for split in ("train", "heldout")]  # type: ignore[arg-type]
        )
        both.append(fit(settings, *parts, tmp_path / name))
    assert_same(*both)
    assert (tmp_path / "memory" / "metrics.csv").read_text() == (tmp_path / "shards" / "metrics.csv").read_text()


def test_training_over_windows_resumes_to_the_bit(shards: ShardSet, tmp_path: Path) -> None:
    def run(out: Path, max_steps: int) -> Path:
        train, heldout = (ShardWindows(shards, split, 2) for split in ("train", "heldout"))  # type: ignore[arg-type]
        return fit(section(max_steps=max_steps, batch_size=5, epochs=1), train, heldout, out)

    run(tmp_path / "halves", 5)
    assert_same(run(tmp_path / "halves", 12), run(tmp_path / "whole", 12))


def test_a_split_without_trajectories_is_named(tmp_path: Path) -> None:
    from fake_trajectories import fake_trajectories
    from test_shards import SHARED, stored

    from spot_train.shards.files import write_shard
    from spot_train.shards.store import shard_name, write_manifest

    items = stored(fake_trajectories(count=1))
    written = {shard_name(0): write_shard(tmp_path / shard_name(0), items, {**SHARED, "lease": {"index": 0}})}
    write_manifest(tmp_path, SHARED, {}, {}, 1, written)
    with pytest.raises(SpotError, match="no heldout trajectory"):
        ShardWindows(open_shards(tmp_path), "heldout", 1)


def test_spawned_processes_open_their_own_files_in_time(shards: ShardSet) -> None:
    child = Path(__file__).parent / "loading_child.py"
    command = [sys.executable, str(child), str(shards.path)]
    done = subprocess.run(command, check=True, timeout=TIME_LIMIT_S, stdout=subprocess.PIPE, text=True)
    made, expected, models_loaded = (json.loads(line) for line in done.stdout.splitlines())
    assert made == expected
    assert len(made) > SHARDS
    assert not models_loaded, "loading processes start in half the time without transformers"
