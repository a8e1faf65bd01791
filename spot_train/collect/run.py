"""A set of shards while processes fill it: what is finished, what is missing, and how a finished lease gets in.

Shards lie in one folder and appear by rename, the first of each name staying, since every process makes the same bits.
Knows nothing about decoding.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from spot_infer.atomic import BeforeRename, remove_partials
from spot_infer.errors import SpotError
from spot_train.collect.leases import Forwards, lease_record
from spot_train.collect.ranks import Rank, decodable
from spot_train.output_lock import OutputLock
from spot_train.prompts import Prompt, PromptReport
from spot_train.recipe.recipe import COLLECT_SECTIONS, Recipe, recipe_values
from spot_train.shards.files import Damaged, StoredTrajectory, check_shard, read_attributes, write_shard
from spot_train.shards.store import (
    MERGED,
    common_attributes,
    differing_field,
    read_manifest,
    shard_name,
    shard_paths,
    write_manifest,
)

FITTING = "fitting.lock"
"""Held by the process that fits a drafter on the way."""


@dataclass
class Run:
    """One process's part in collecting a set. common: attributes that all shards share; milestones: leases before which
    a drafter is fitted; finished: attributes of sound shards by name."""

    lock: OutputLock
    rank: Rank
    recipe: Recipe
    leases: list[list[Prompt]]
    report: PromptReport
    common: dict[str, Any]
    milestones: tuple[int, ...] = ()
    before_rename: BeforeRename | None = None
    finished: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.lock.folder

    @cached_property
    def records(self) -> dict[str, dict[str, Any]]:
        """What tells each lease from every other, by its shard's name."""
        return {shard_name(index): lease_record(index, lease) for index, lease in enumerate(self.leases)}

    def adopt(self) -> list[str]:
        """Keep the sound shards that lie in the folder, listed or not; returns a sentence for each that must be redone.

        Every file of the rank's own shards is read, and damaged ones are deleted; of the others' the attributes alone.
        Raises SpotError where a shard is of another recipe or target.
        """
        repaired, redo = [], []
        try:
            listed = set(read_manifest(self.folder)["shards"])
        except SpotError:
            listed = set()
        for path in shard_paths(self.folder):
            record = self.records.get(path.name)
            mine = record is not None and self.rank.owns(record["index"])
            try:
                attributes = (check_shard if mine else read_attributes)(path)
            except Damaged as error:
                repaired.append(str(error))
                redo += [path] if mine else []
                continue
            refuse_difference(self.folder, common_attributes(attributes), self.common)
            if not self._adopted(path.name, attributes):
                repaired.append(f"shard {path.name} holds another lease than its name says")
                redo += [path] if mine else []
        missing = sorted(listed - {path.name for path in shard_paths(self.folder)})
        for path in redo:
            shutil.rmtree(path)
        return repaired + [f"shard {name} was listed in manifest.json but missing" for name in missing]

    def refresh(self) -> None:
        """Take note of the shards that other processes have finished."""
        for path in shard_paths(self.folder):
            if path.name not in self.finished:
                with suppress(Damaged):
                    self._adopted(path.name, read_attributes(path))

    def missing(self) -> list[int]:
        """Leases without a shard, ascending."""
        there = {path.name for path in shard_paths(self.folder)}
        return [index for index in range(len(self.leases)) if shard_name(index) not in there]

    def next_lease(self) -> int | None:
        """The lease to decode next; None where none is missing."""
        return self.rank.next_lease(decodable(self.missing(), self.milestones))

    def has(self, index: int) -> bool:
        """Whether the lease's shard is there."""
        return (self.folder / shard_name(index)).is_dir()

    def store(self, index: int, stored: Sequence[StoredTrajectory], how: Mapping[str, Any]) -> None:
        """Put a finished lease into the folder. how: what its shard records of its decoding."""
        name = shard_name(index)
        attributes = {**self.common, "lease": {**self.records[name], **how}}
        self.finished[name] = write_shard(self.folder / name, stored, attributes, self._before_rename)

    def save_manifest(self) -> None:
        """Write the manifest of what is finished; only one process at a time may."""
        values = recipe_values(self.recipe, COLLECT_SECTIONS)
        report = self.report.to_dict()
        write_manifest(self.folder, self.common, values, report, len(self.leases), self.finished, self._before_rename)

    def tidy(self) -> None:
        """Delete what killed processes left; for the last process of a job."""
        remove_partials(self.folder)
        (self.folder / FITTING).unlink(missing_ok=True)

    def recorded_forwards(self) -> Forwards | None:
        """What all finished shards took; None where one of an earlier release doesn't say."""
        names = [one.name for one in fields(Forwards)]
        leases = [attributes["lease"] for attributes in self.finished.values()]
        if not all(name in lease for lease in leases for name in names):
            return None
        return Forwards(**{name: sum(lease[name] for lease in leases) for name in names})

    def _before_rename(self) -> None:
        if self.before_rename is not None:
            self.before_rename()
        self.lock.check()

    def _adopted(self, name: str, attributes: dict[str, Any]) -> bool:
        """Whether the shard is of the lease that its name says; then it counts as finished."""
        record = self.records.get(name)
        if record is None or not record.items() <= attributes["lease"].items():
            return False
        self.finished[name] = attributes
        return True


def check_recipe(folder: Path, recipe: Recipe) -> list[str]:
    """Refuse a folder of another recipe before anything is loaded; returns what is wrong with the manifest, if
    anything."""
    try:
        manifest = read_manifest(folder)
    except Damaged as error:
        return [str(error)]
    except SpotError:
        if (folder / "manifest.json").exists():
            raise
        return []
    refuse_recipe(folder, manifest, recipe)
    return []


def refuse_recipe(folder: Path | str, manifest: Mapping[str, Any], recipe: Recipe) -> None:
    """Raise SpotError where the set with this manifest is another recipe's."""
    if MERGED in manifest["attributes"]:
        raise SpotError(f"{folder} was merged from other sets; collect into another --out and merge that")
    refuse_difference(folder, manifest["recipe"], recipe_values(recipe, COLLECT_SECTIONS))


def refuse_difference(folder: Path | str, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise SpotError naming the first field in which a set and this run differ."""
    found = differing_field(there, here)
    if found is not None:
        raise SpotError(
            f"{folder} was collected with {found[0]} {found[1]!r}, this run has {found[2]!r}; use another --out, or "
            "what the folder was made with"
        )
