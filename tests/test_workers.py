"""Several processes fill one set: every lease is decoded, the bits are those of one process, and jobs keep apart."""

from __future__ import annotations

import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from collecting import LEASE, PROMPTS, collect_fake, fake_target, folder_bytes, small_recipe
from fake_dlm import FakeTarget
from hypothesis import given
from hypothesis import strategies as st

from spot_infer.errors import SpotError
from spot_train.collect.collect import Summary, collect
from spot_train.collect.ranks import Rank, decodable, on_device, rank_of_environment
from spot_train.collect.workers import Job, collect_with_workers
from spot_train.output_lock import LOCK, output_lock
from spot_train.recipe.recipe import Recipe
from spot_train.shards.store import open_shards, shard_name

LEASES = -(-PROMPTS // LEASE)


def fake_of(recipe: Recipe) -> FakeTarget:
    return fake_target()


@given(
    st.integers(1, 20),
    st.integers(1, 5),
    st.sets(st.integers(1, 19)),
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=200),
)
def test_every_lease_is_taken_whatever_the_pace(
    leases: int, world: int, milestones: set[int], turns: list[tuple[int, bool]]
) -> None:
    """Each turn one rank looks for a lease, having finished the one it held or died of it; some ranks get few turns."""
    ranks = [Rank(number, world) for number in range(world)]
    fits = sorted(one for one in milestones if one < leases)
    stored: set[int] = set()
    held: dict[int, int | None] = {}
    for number, survives in [*((n % world, alive) for n, alive in turns), *[(0, True)] * (leases + 1)]:
        lease = held.pop(number, None)
        if lease is not None and survives:
            stored.add(lease)
        missing = [one for one in range(leases) if one not in stored]
        taken = ranks[number].next_lease(decodable(missing, fits))
        assert (taken is None) == (not missing)
        if taken is None:
            continue
        needed = [fit for fit in fits if fit <= taken]
        assert taken in missing and (not needed or set(range(needed[-1])) <= stored)
        own = [one for one in decodable(missing, fits) if one % world == number]
        assert not own or taken == own[0]
        held[number] = taken
    assert stored == set(range(leases))


def test_ranks_come_from_the_launcher() -> None:
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a"}
    rank = rank_of_environment({**torchrun, "TORCHELASTIC_RUN_ID": "7", "MASTER_PORT": "29500"})
    assert rank == Rank(3, 4, 1, 2, "torchrun-7@a:29500")
    slurm = {"SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "5", "SLURM_STEP_ID": "1"}
    assert rank_of_environment(slurm) == Rank(2, 3, 0, 1, "slurm-5.1")
    assert rank_of_environment({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) == rank_of_environment({}) == Rank()
    with pytest.raises(SpotError, match="WORLD_SIZE is 'four'"):
        rank_of_environment({"RANK": "0", "WORLD_SIZE": "four"})


def test_a_target_that_is_spread_has_one_process(prompts: Path) -> None:
    recipe = small_recipe(prompts, target={"device_map": "auto"})
    assert on_device(recipe, Rank()) is recipe
    with pytest.raises(SpotError, match=r"target\.device_map is 'auto', which spreads one target, but 2 processes"):
        on_device(recipe, Rank(1, 2))


def ranked(prompts: Path, out: Path, rank: Rank) -> Summary:
    return collect(small_recipe(prompts), out, fake_target(), rank=replace(rank, job="job"))


def test_ranks_side_by_side_write_what_one_process_writes(prompts: Path, whole: Path, tmp_path: Path) -> None:
    threads = [threading.Thread(target=ranked, args=(prompts, tmp_path, Rank(number, 3))) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folder_bytes(tmp_path) == folder_bytes(whole)


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2)])
def test_a_late_rank_finds_its_part_done(prompts: Path, whole: Path, tmp_path: Path, order: tuple[int, ...]) -> None:
    written = [ranked(prompts, tmp_path, Rank(number, 3)).written for number in order]
    assert written == [LEASES] + [0] * (len(order) - 1)
    assert folder_bytes(tmp_path) == folder_bytes(whole)


def test_only_its_own_rank_deletes_a_damaged_shard(prompts: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    (tmp_path / "out" / shard_name(1) / "log_odds" / "c" / "0").unlink()
    assert ranked(prompts, tmp_path / "out", Rank(0, 2)).written == 0
    assert ranked(prompts, tmp_path / "out", Rank(1, 2)).written == 1
    assert folder_bytes(tmp_path / "out") == folder_bytes(whole)


def refusal(out: Path, job: str | None = None, take_over: str | None = None) -> str:
    """Why a job may not write `out`."""
    with pytest.raises(SpotError) as caught, output_lock(out, job, take_over):
        pass
    return str(caught.value)


def test_jobs_keep_apart(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with output_lock(out, "job") as first:
        first.share()
        with output_lock(out, "job") as second:
            assert (first.first, second.first, second.alone()) == (True, False, False)
        for other in (None, "other"):
            assert "is being written by process job; wait for it to end" in refusal(out, other)
        assert first.alone()
    assert not out.exists()


def test_a_stale_lock_is_taken_over_by_name(tmp_path: Path) -> None:
    with output_lock(tmp_path, "gone") as stale:
        assert "--take-over names someone, but" in refusal(tmp_path, take_over="someone")
        stale.check()
        with output_lock(tmp_path, "next", take_over="gone") as lock:
            lock.check()
            with pytest.raises(SpotError, match="was taken over from gone"):
                stale.check()
            assert (tmp_path / LOCK).read_text() == "next\n"


def test_whoever_lost_its_lock_writes_nothing_more(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    renames = iter(range(100))

    def lose() -> None:
        if next(renames) == 3:
            (out / LOCK).unlink()

    with pytest.raises(SpotError, match="was taken over from"):
        collect(small_recipe(prompts), out, fake_target(), before_rename=lose)
    assert [path.name for path in sorted(out.glob("part-*"))] == [shard_name(0)]
    collect_fake(prompts, out)
    assert len(open_shards(out).names) == LEASES


def test_a_refused_run_leaves_no_folder(prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(SpotError, match="are needed"):
        collect_fake(prompts, tmp_path / "out", collect={"free_space_margin_bytes": 10**18})
    assert not (tmp_path / "out").exists()


def test_ray_is_asked_for_in_one_sentence(prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpotError, match=r'needs the package ray; run `pip install "spot-dlm\[ray\]"`'):
        collect_with_workers(Job(small_recipe(prompts), tmp_path / "out", load=fake_of), 2, ray="local")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_workers_of_this_machine(prompts: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(__file__).resolve().parent
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setenv("PYTHONPATH", f"{here}:{here.parent}")
    summary = collect_with_workers(Job(small_recipe(prompts), tmp_path / "out", load=fake_of), 2)
    assert (summary.written, summary.ended) == (LEASES, ())
    assert summary.recorded is not None and summary.tally.trajectories == PROMPTS
    assert folder_bytes(tmp_path / "out") == folder_bytes(whole)
