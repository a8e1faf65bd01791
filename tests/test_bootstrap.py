"""Collection that fits its own drafters: milestones are leases, records are draft-free's, and kills leave no trace."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from collecting import (
    LEASE,
    PROMPTS,
    child_server,
    collect_fake,
    fake_target,
    folder_bytes,
    small_recipe,
)
from hypothesis import given
from hypothesis import strategies as st

from spot_infer.checkpoint import load_drafter
from spot_infer.drafters import ChainDrafter
from spot_infer.errors import SpotError
from spot_train.collect.bootstrap import milestones
from spot_train.collect.collect import Summary, collect
from spot_train.collect.drafters import DRAFTERS
from spot_train.collect.ranks import Rank
from spot_train.compare.compare import Method
from spot_train.fit import record as fit_record
from spot_train.prompts import Prompt
from spot_train.provenance import weights_hash
from spot_train.recipe.recipe import Recipe
from spot_train.shards.store import open_shards, shard_name

_PATIENCE_S = 180
LEASES = -(-PROMPTS // LEASE)


def bootstrap_recipe(pool: Path, **sections: dict[str, object]) -> Recipe:
    """Fits before leases 2 and 3 of 5."""
    return small_recipe(
        pool,
        **{
            "bootstrap": {"milestones": [0.4, 0.6], "steps": 4},
            "fit": {"batch_size": 8, "d_max": 3},
            "decode": {"budget": 4, "boundary": "fused"},
            **sections,
        },
    )


def bootstrap_fake(pool: Path, out: Path, method: Method = Method("draft-free")) -> Summary:  # noqa: B008
    return collect(bootstrap_recipe(pool), out, fake_target(), method=method, bootstrap=True)


@pytest.fixture(scope="module")
def whole(prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished bootstrapped collection, not to be changed."""
    out = tmp_path_factory.mktemp("whole")
    bootstrap_fake(prompts, out)
    return out


def test_a_bootstrapped_set_holds_the_draft_free_arrays(prompts: Path, whole: Path, tmp_path: Path) -> None:
    collect_fake(prompts, tmp_path)
    arrays = [
        {name: data for name, data in folder_bytes(out).items() if "zarr/" in name and "/c/" in name}
        for out in (tmp_path, whole)
    ]
    assert arrays[0] == arrays[1] and arrays[0]


def test_every_lease_says_which_drafter_made_it(whole: Path) -> None:
    shards = open_shards(whole).manifest["shards"]
    made = [shards[shard_name(index)]["lease"]["method"] for index in range(LEASES)]
    assert made[:2] == [{"name": "draft-free", "boundary": "separate"}] * 2
    hashes = [weights_hash(load_drafter(whole / DRAFTERS / f"lease-{index:05d}").model) for index in (2, 3)]
    assert [one["drafter"]["weights_hash"] for one in made[2:]] == [hashes[0], hashes[1], hashes[1]]
    assert hashes[0] != hashes[1]
    assert [one["boundary"] for one in made[2:]] == ["fused"] * 3
    assert sorted(path.name for path in (whole / DRAFTERS).iterdir()) == ["lease-00002", "lease-00003"]


def test_a_drafter_is_fitted_to_the_leases_before_its_own(whole: Path) -> None:
    counts = [shard["counts"] for _, shard in sorted(open_shards(whole).manifest["shards"].items())]
    for milestone in (2, 3):
        data = load_drafter(whole / DRAFTERS / f"lease-{milestone:05d}").info.training["data"]
        before = counts[:milestone]
        assert data["train_trajectories"] == sum(one["trajectories"] - one["heldout"] for one in before)
        assert data["heldout_trajectories"] == sum(one["heldout"] for one in before)


def test_a_finished_one_is_left_alone(prompts: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    assert bootstrap_fake(prompts, tmp_path / "out").written == 0
    assert folder_bytes(tmp_path / "out") == folder_bytes(whole)


def test_a_lost_shard_is_made_again_by_its_own_drafter(prompts: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / shard_name(2))
    summary = bootstrap_fake(prompts, tmp_path / "out")
    assert (summary.written, summary.tally.fit_s) == (1, 0.0)
    assert folder_bytes(tmp_path / "out") == folder_bytes(whole)


def test_a_training_free_method_may_start(prompts: Path, whole: Path, tmp_path: Path) -> None:
    recipe = bootstrap_recipe(prompts)
    summary = bootstrap_fake(prompts, tmp_path, Method("chain", 4, ChainDrafter(recipe.rule.commit_rule())))
    shards = open_shards(tmp_path).manifest["shards"]
    made = [shards[shard_name(index)]["lease"]["method"]["name"] for index in range(LEASES)]
    assert made == ["chain", "chain", "spot", "spot", "spot"]
    weights = [out / DRAFTERS / "lease-00002" / "model.safetensors" for out in (whole, tmp_path)]
    assert weights[0].read_bytes() == weights[1].read_bytes(), "the same records train the same drafter"
    assert summary.recorded is not None and summary.recorded.reduction > 1


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 5), st.lists(st.floats(0.01, 0.99), min_size=1))
def test_milestones_leave_something_before_and_behind_them(heldout: list[bool], size: int, shares: list[float]) -> None:
    rows = [Prompt((index,), "", mark) for index, mark in enumerate(heldout)]
    leases = [rows[first : first + size] for first in range(0, len(rows), size)]
    recipe = bootstrap_recipe(Path("x"), bootstrap={"milestones": shares, "steps": 1})
    try:
        found = milestones(recipe, leases)
    except SpotError:
        before = [row.heldout for lease in leases[:-1] for row in lease]
        assert len(set(before)) < 2 or all(share * len(leases) > len(leases) - 1 for share in shares)
        return
    assert list(found) == sorted(set(found))
    assert found[0] > 0 and found[-1] < len(leases)
    assert {row.heldout for lease in leases[: found[0]] for row in lease} == {True, False}


def test_one_lease_cannot_be_bootstrapped(prompts: Path, tmp_path: Path) -> None:
    recipe = bootstrap_recipe(prompts, collect={"lease_prompts": PROMPTS})
    with pytest.raises(SpotError, match="leaves no lease to draft"):
        collect(recipe, tmp_path, fake_target(), bootstrap=True)


def killable(prompts: str, out: str, marker: str, name: str) -> None:
    """Runs in a child process; touches `marker` and hangs before the first rename to a file or folder called `name`."""
    fit_record.SAVE_EVERY_STEPS = 2
    for function in ("replace", "rename"):
        real = getattr(os, function)

        def late(source: object, target: object, real=real) -> None:  # type: ignore[no-untyped-def]
            if Path(str(target)).name == name:
                Path(marker).touch()
                time.sleep(600)
            real(source, target)

        setattr(os, function, late)
    bootstrap_fake(Path(prompts), Path(out))


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServerContext]:
    with child_server("test_bootstrap") as context:
        yield context


def check_kills(server: ForkServerContext, prompts: Path, whole: Path, tmp_path: Path, names: list[str]) -> None:
    """Kill one run after another as it hangs before a rename to each of `names`, then finish and compare."""
    out, marker = tmp_path / "killed", tmp_path / "marker"
    for name in names:
        child = server.Process(target=killable, args=(str(prompts), str(out), str(marker), name))
        child.start()
        deadline = time.monotonic() + _PATIENCE_S
        while not marker.exists() and child.is_alive():
            assert time.monotonic() < deadline, "the child process never got there"
            time.sleep(0.01)
        assert child.is_alive(), f"nothing was renamed to {name}"
        child.kill()
        child.join()
        marker.unlink()
    bootstrap_fake(prompts, out)
    assert folder_bytes(out) == folder_bytes(whole)
    assert json.loads((out / "manifest.json").read_text()) == json.loads((whole / "manifest.json").read_text())


def test_kills_in_a_fit_and_before_its_drafter_leave_no_trace(
    server: ForkServerContext, prompts: Path, whole: Path, tmp_path: Path
) -> None:
    check_kills(server, prompts, whole, tmp_path, ["last.ckpt", "lease-00002"])


@pytest.mark.slow
def test_kills_at_every_kind_of_rename_leave_no_trace(
    server: ForkServerContext, prompts: Path, whole: Path, tmp_path: Path
) -> None:
    names = ["part-00001.zarr", "run.json", "last.ckpt", "fit.json", "lease-00002", "part-00002.zarr", "lease-00003"]
    check_kills(server, prompts, whole, tmp_path, [*names, "part-00004.zarr"])


@pytest.mark.slow
def test_ranks_fit_each_drafter_once_and_write_what_one_process_writes(
    prompts: Path, whole: Path, tmp_path: Path
) -> None:
    fitted: list[int] = []

    class Fits:
        def started(self, plan: object) -> None:
            """Nothing to do."""

        def fitting(self, lease: int) -> None:
            fitted.append(lease)

        def advanced(self, tally: object) -> None:
            """Nothing to do."""

    def ranked(number: int) -> None:
        rank = Rank(number, 2, job="job")
        collect(bootstrap_recipe(prompts), tmp_path, fake_target(), Fits(), bootstrap=True, rank=rank)

    threads = [threading.Thread(target=ranked, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(fitted) == [2, 3]
    assert folder_bytes(tmp_path) == folder_bytes(whole)
