"""SIGKILL during collection loses and doubles nothing: the shards end up byte for byte those of an undisturbed run."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from collecting import LEASE, PROMPTS, child_server, collect_fake, folder_bytes, killable_collect, write_prompts

from spot_train.shards.store import shard_name, verify_shards

_PATIENCE_S = 180


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServerContext]:
    with child_server("collecting") as context:
        yield context


def kill_once(
    server: ForkServerContext, prompts: Path, out: Path, marker: Path, hang_at: int | None, wait_s: float
) -> bool:
    """Start a run and SIGKILL it as it hangs before a rename, or `wait_s` after it has begun to decode; returns whether
    it was alive."""
    marker.unlink(missing_ok=True)
    child = server.Process(target=killable_collect, args=(str(prompts), str(out), str(marker), hang_at))
    child.start()
    deadline = time.monotonic() + _PATIENCE_S
    while not marker.exists() and child.is_alive():
        assert time.monotonic() < deadline, "the child process never began"
        time.sleep(0.005)
    if hang_at is None:
        child.join(wait_s)
    alive = child.is_alive()
    child.kill()
    child.join()
    return alive


def check_kills(server: ForkServerContext, tmp_path: Path, kills: int, seed: int) -> None:
    """Kill a collection `kills` times, every other time inside a rename's delay; then finish it and compare."""
    rng = random.Random(seed)
    prompts = write_prompts(tmp_path / "prompts.jsonl")
    started = time.monotonic()
    collect_fake(prompts, tmp_path / "undisturbed")
    seconds = time.monotonic() - started
    expected = folder_bytes(tmp_path / "undisturbed")
    shards = -(-PROMPTS // LEASE)
    out = tmp_path / "killed"
    happened = {"in a rename": 0, "at random": 0}
    while sum(happened.values()) < kills:
        missing = [index for index in range(shards) if not (out / shard_name(index)).is_dir()]
        if out.is_dir() and not missing:
            collect_fake(prompts, out)
            assert folder_bytes(out) == expected
            shutil.rmtree(out)
            continue
        kind = "in a rename" if happened["in a rename"] <= happened["at random"] else "at random"
        hang_at = rng.randrange(1 + 2 * len(missing)) if kind == "in a rename" else None
        happened[kind] += kill_once(server, prompts, out, tmp_path / "marker", hang_at, rng.uniform(0, seconds))
        for name, data in folder_bytes(out).items():
            assert name == "manifest.json" or ".partial" in name or data == expected[name]
        if (out / "manifest.json").exists():
            assert verify_shards(out) == ()
    summary = collect_fake(prompts, out)
    assert summary.tally.trajectories == PROMPTS
    assert folder_bytes(out) == expected


def test_two_kills(server: ForkServerContext, tmp_path: Path) -> None:
    check_kills(server, tmp_path, kills=2, seed=1)
