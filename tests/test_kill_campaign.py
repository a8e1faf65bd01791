"""SIGKILL of workers, of their driver and of all at once, half of it between write and rename: what is left is always
part of an undisturbed run's bytes, and what ends is all of it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from collecting import child_server, collect_fake, folder_bytes, killable_job, write_prompts

from spot_train.shards.store import shard_paths, verify_shards

_PATIENCE_S = 120


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServerContext]:
    with child_server("collecting") as context:
        yield context


@dataclass
class Campaign:
    """Drivers of one set, started again whenever none runs; seconds: what an undisturbed run takes."""

    server: ForkServerContext
    folder: Path
    prompts: Path
    expected: dict[str, bytes]
    seconds: float
    workers: int
    driver: BaseProcess | None = None
    finished: int = 0
    happened: Counter[str] = field(default_factory=Counter)

    @property
    def out(self) -> Path:
        return self.folder / "killed"

    @property
    def traps(self) -> Path:
        return self.folder / "traps"

    def running(self) -> bool:
        return self.driver is not None and self.driver.is_alive()

    def start(self) -> None:
        """A new driver; a set that the one before it completed is compared, and begun anew."""
        if self.driver is not None and self.driver.exitcode == 0:
            assert folder_bytes(self.out) == self.expected
            shutil.rmtree(self.out)
            self.finished += 1
        shutil.rmtree(self.traps, ignore_errors=True)
        self.traps.mkdir()
        self.driver = self.server.Process(
            target=killable_job, args=(str(self.prompts), str(self.out), str(self.traps), self.workers)
        )
        self.driver.start()
        self.wait_for("worker-*")

    def wait_for(self, pattern: str) -> list[int]:
        """The process ids in the traps' names, once there are any; none if the driver ends before."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (found := list(self.traps.glob(pattern))) and self.running():
            assert time.monotonic() < deadline, f"no {pattern} appeared"
            time.sleep(0.005)
        return [int(path.name.split("-")[1]) for path in found]

    def kill(self, whom: str, in_a_rename: bool, wait_s: float) -> None:
        """SIGKILL a worker, the driver or all of them: as one hangs before a rename, or after `wait_s`."""
        assert self.driver is not None and self.driver.pid is not None
        if in_a_rename:
            (self.traps / "armed").touch()
            caught = self.wait_for("caught-*")
        else:
            self.driver.join(wait_s)
            caught = [pid for pid in self.wait_for("worker-*") if _alive(pid)][:1]
        if not self.running() or not caught:
            return
        if caught[0] == self.driver.pid and whom == "worker":
            whom = "driver"
        workers = [pid for pid in self.wait_for("worker-*") if _alive(pid)]
        victims = {"worker": caught, "driver": [self.driver.pid], "all": [self.driver.pid, *workers]}[whom]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        for path in self.traps.glob("caught-*"):
            path.unlink()
        self.happened[f"{whom}, {'in a rename' if in_a_rename else 'at random'}"] += 1
        if whom != "worker":
            self.driver.join()

    def check(self) -> None:
        """Every shard that is there is an undisturbed run's, whatever else is being written."""
        for shard in shard_paths(self.out):
            for name, data in folder_bytes(shard).items():
                assert data == self.expected[f"{shard.name}/{name}"], name
        if (self.out / "manifest.json").exists():
            assert verify_shards(self.out) == ()


def run_campaign(server: ForkServerContext, tmp_path: Path, kills: int, workers: int) -> Campaign:
    """`kills` of them, every other one in a rename; then the set is finished and compared."""
    rng = random.Random(2)
    prompts = write_prompts(tmp_path / "prompts.jsonl")
    started = time.monotonic()
    collect_fake(prompts, tmp_path / "undisturbed")
    seconds = time.monotonic() - started
    campaign = Campaign(server, tmp_path, prompts, folder_bytes(tmp_path / "undisturbed"), seconds, workers)
    while (count := sum(campaign.happened.values())) < kills:
        if not campaign.running():
            campaign.start()
        whom = ("worker", "driver", "worker", "all")[count // 2 % 4]
        campaign.kill(whom, count % 2 == 0, rng.uniform(0, seconds))
        campaign.check()
    assert campaign.driver is not None
    campaign.driver.kill()
    campaign.driver.join()
    collect_fake(prompts, campaign.out)
    assert folder_bytes(campaign.out) == campaign.expected
    return campaign


def _alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_eight_kills(server: ForkServerContext, tmp_path: Path) -> None:
    happened = run_campaign(server, tmp_path, kills=8, workers=2).happened
    assert sum(happened.values()) == 8 and len(happened) >= 5, happened


@pytest.mark.figures
def test_a_hundred_kills(server: ForkServerContext, tmp_path: Path) -> None:
    started = time.monotonic()
    campaign = run_campaign(server, tmp_path, kills=100, workers=3)
    for kind, count in sorted(campaign.happened.items()):
        print(f"{count:3} {kind}")
    print(f"{campaign.finished} sets completed on the way, {time.monotonic() - started:.0f} s")
    assert sum(count for kind, count in campaign.happened.items() if "in a rename" in kind) >= 50
