"""Drafted collection against draft-free collection of the same prompts, in one process, lease by lease.

Every lease is decoded three times, in an order that rotates: draft-free and drafted as `collect` does both, stored, and
drafted with nothing recorded, which tells what recording costs. Knows nothing about printing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from spot_infer.decode import decode
from spot_infer.requests import DecodeSettings
from spot_infer.targets.protocol import Target
from spot_train.agreement import Agreement, agreement, table_tolerance
from spot_train.collect.leases import Forwards, decode_lease, lease_record, lease_requests
from spot_train.collect.methods import DRAFT_FREE, Schedule, method_label, method_record
from spot_train.compare.compare import Method, settings_of
from spot_train.prompts import Prompt
from spot_train.shards.files import read_shard, write_shard
from spot_train.shards.store import shard_name


@dataclass
class Spent:
    """Of one way to collect: forwards, and wall and process CPU seconds of each lease, fits left out."""

    forwards: Forwards = field(default_factory=Forwards)
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self.forwards), "wall_s": sum(self.wall_s), "cpu_s": sum(self.cpu_s)}


@dataclass(frozen=True)
class DraftedReport:
    """draft_free, drafted: recorded and stored; unrecorded: drafted decoding alone; fit_s: seconds in fits; methods:
    how many leases each method drafted."""

    dtype: str
    batch_size: int
    draft_free: Spent
    drafted: Spent
    unrecorded: Spent
    agreement: Agreement
    methods: Mapping[str, int]
    fit_s: float

    @property
    def reduction(self) -> float:
        """Draft-free forwards over drafted ones, both counted."""
        return self.draft_free.forwards.nfe / self.drafted.forwards.nfe

    @property
    def recording_share(self) -> float:
        """CPU seconds that recording and storing add to drafted decoding, as a share of it."""
        return sum(self.drafted.cpu_s) / sum(self.unrecorded.cpu_s) - 1

    @property
    def tolerance(self) -> float:
        return table_tolerance(self.dtype)

    @property
    def sound(self) -> bool:
        """Tables within tolerance before every first divergence; none at all in float64."""
        found = self.agreement
        return found.table_shift <= self.tolerance and (self.dtype != "float64" or found.identical == found.prompts)

    def to_dict(self) -> dict[str, Any]:
        ways = {name: getattr(self, name).to_dict() for name in ("draft_free", "drafted", "unrecorded")}
        return {
            "dtype": self.dtype,
            "batch_size": self.batch_size,
            **ways,
            "reduction": self.reduction,
            "recording_share": self.recording_share,
            "fit_s": self.fit_s,
            "methods": dict(self.methods),
            "agreement": self.agreement.to_dict(),
            "tolerance": self.tolerance,
            "sound": self.sound,
        }


def check_drafted(
    target: Target,
    leases: Sequence[Sequence[Prompt]],
    settings: DecodeSettings,
    seed: int,
    schedule: Schedule,
    attributes: Mapping[str, Any],
    folder: Path,
    progress: Callable[[int], None] = lambda lease: None,
) -> DraftedReport:
    """Collect `leases` both ways. Drafted shards lie in `folder`, draft-free ones in a folder of it; `attributes` are
    those that all shards of the set share. The first lease is decoded once beforehand and not counted."""
    control = folder / "draft-free"
    control.mkdir()
    collection = _Collection(target, settings, seed, attributes)
    spent = [Spent(), Spent(), Spent()]
    labels: Counter[str] = Counter()
    collection.decode(DRAFT_FREE, leases[0])
    for index, lease in enumerate(leases):
        method = schedule.at(index)
        labels[method_label(method_record(method, target.spec))] += 1
        ways: list[Callable[[], Forwards]] = [
            partial(collection.store, control, DRAFT_FREE, index, lease),
            partial(collection.store, folder, method, index, lease),
            partial(collection.decode, method, lease),
        ]
        for turn in range(len(ways)):
            number = (index + turn) % len(ways)
            _timed(spent[number], ways[number])
        progress(index)
    names = [shard_name(index) for index in range(len(leases))]
    one, other = (
        [stored.trajectory for name in names for stored in read_shard(place / name)] for place in (control, folder)
    )
    requests = [request for lease in leases for request in lease_requests(lease, seed)]
    found = agreement(target, requests, one, other, settings)
    return DraftedReport(
        target.spec.dtype, settings.batch_size, spent[0], spent[1], spent[2], found, labels, schedule.fit_s
    )


@dataclass(frozen=True)
class _Collection:
    """The ways to decode a lease."""

    target: Target
    settings: DecodeSettings
    seed: int
    attributes: Mapping[str, Any]

    def store(self, folder: Path, method: Method, index: int, lease: Sequence[Prompt]) -> Forwards:
        """Decode, record and write the lease's shard, as `collect` does."""
        forwards = Forwards()
        decoded = decode_lease(self.target, lease, self.settings, method, self.seed, forwards)
        stored = {place: item for place, item, _ in decoded}
        record = {**lease_record(index, lease), "method": method_record(method, self.target.spec)}
        ordered = [stored[place] for place in range(len(lease))]
        write_shard(folder / shard_name(index), ordered, {**self.attributes, "lease": record})
        return forwards

    def decode(self, method: Method, lease: Sequence[Prompt]) -> Forwards:
        """Decode the lease and keep nothing."""
        forwards = Forwards()
        requests = lease_requests(lease, self.seed)
        for round_ in decode(self.target, requests, settings_of(method, self.settings), method.drafter):
            forwards.calls = round_.forward + 1
            if round_.result is not None:
                forwards.add(round_.result)
        return forwards


def _timed(spent: Spent, way: Callable[[], Forwards]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    forwards = way()
    spent.wall_s.append(time.perf_counter() - wall)
    spent.cpu_s.append(time.process_time() - cpu)
    total = spent.forwards
    spent.forwards = Forwards(**{name: value + getattr(total, name) for name, value in vars(forwards).items()})
