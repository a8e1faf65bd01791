"""A set of shards: the folder that `collect` fills and `fit`, `eval` and replay read (format in docs/formats.md).

`manifest.json` lists the finished shards with their checksums. Readers verify every listed shard before the first
trajectory, so damage is named and never read as zeros. Knows nothing about decoding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from spot_infer.atomic import BeforeRename, write_json
from spot_infer.errors import SpotError
from spot_infer.table import TOP_K
from spot_infer.transition import CommitRule, Sampling
from spot_train.shards.files import (
    REPAIR,
    Damaged,
    StoredTrajectory,
    check_shard,
    read_attributes,
    read_shard,
    shard_bytes,
    write_shard,
)
from spot_train.shards.shown import without_secrets
from spot_train.trajectory import Trajectory

__all__ = [
    "ShardSet",
    "Split",
    "StoredTrajectory",
    "differing_field",
    "named_split",
    "open_shards",
    "read_trajectories",
    "shard_name",
    "verify_shards",
    "write_manifest",
    "write_shard",
]

Split = Literal["train", "heldout"]
MANIFEST = "manifest.json"
MERGED = "merged"
"""Attribute of a set made of others: what each of them was collected with."""
MANIFEST_FORMAT = "spot-shards"
MANIFEST_VERSION = 1
_OWN_TO_A_SHARD = ("lease", "counts", "files", "sha256", "format", "format_version")
_MAY_DIFFER = ("versions",)


class Listed:
    """What a set's manifest says of it, wherever the set lies. attributes: what every shard agrees on; manifest: the
    whole manifest.json."""

    manifest: Mapping[str, Any]

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.manifest["attributes"]

    @property
    def names(self) -> tuple[str, ...]:
        """Folder names of the finished shards, in order."""
        return tuple(sorted(self.manifest["shards"]))

    @property
    def mask_id(self) -> int:
        return int(self.attributes["target"]["mask_id"])


@dataclass(frozen=True)
class ShardSet(Listed):
    """A verified set in the folder `path`."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def complete(self) -> bool:
        """Whether every lease of the recipe has its shard."""
        return len(self.manifest["shards"]) == self.manifest["leases"]

    @property
    def block_length(self) -> int:
        return int(self.attributes["block_length"])

    @property
    def rule(self) -> CommitRule:
        return CommitRule.from_dict(dict(self.attributes["rule"]))

    @property
    def sampling(self) -> Sampling:
        return Sampling(**self.attributes["sampling"])

    def count(self, what: Literal["trajectories", "heldout", "steps", "commits", "rows"]) -> int:
        """A total over the finished shards."""
        return sum(shard["counts"][what] for shard in self.manifest["shards"].values())

    def trajectories(self, split: Split | None = None, names: Sequence[str] | None = None) -> Iterator[Trajectory]:
        """Trajectories in shard order: all, those to train on, or those held out by their prompt's content hash; of all
        shards or those called `names`. One shard at a time is in memory, and none that a trajectory was taken from."""
        heldout = None if split is None else split == "heldout"
        writes = self.attributes["target"].get("cache", "exact") == "exact"
        decoding = self.attributes.get("decoding", {})
        limit = decoding.get("max_new_tokens")
        stop_ids = () if decoding.get("ignore_stop") else tuple(self.attributes["target"].get("stop_ids", ()))
        for name in self.names if names is None else names:
            for stored in read_shard(self.path / name, heldout):
                yield replace(stored.trajectory, writes=writes, max_new_tokens=limit, stop_ids=stop_ids)


def named_split(name: str) -> Split | None:
    """The split that `--split` names, None for all of them. Raises SpotError where there is none of that name."""
    if name not in (*get_args(Split), "all"):
        raise SpotError(f"--split is {name!r}; use heldout, train or all")
    return None if name == "all" else name  # type: ignore[return-value]


def open_shards(path: str | Path) -> ShardSet:
    """Verify the set at `path` and open it. Raises SpotError naming the first damaged or foreign shard, or
    where its tables have another width."""
    folder = Path(path)
    manifest = read_manifest(folder)
    check_readable(str(folder), manifest)
    problems = _problems(folder, manifest)
    if problems:
        more = "" if len(problems) == 1 else f" ({len(problems) - 1} more damaged)"
        raise SpotError(f"{folder}: {problems[0]}{more}")
    return ShardSet(folder, manifest)


def check_readable(where: str, manifest: Mapping[str, Any]) -> None:
    """Raise SpotError where the set holds nothing yet, or tables of another width."""
    if not manifest["shards"]:
        raise SpotError(f"{where} has no finished shard; run `spot-train collect` until it reports one")
    if (width := manifest["attributes"].get("table_top_k", TOP_K)) != TOP_K:
        raise SpotError(
            f"{where} holds tables of the {width} likeliest tokens, but drafters of this release read {TOP_K}; use "
            "the release that wrote it, or collect again"
        )


def read_trajectories(path: str | Path, split: Split | None = None) -> Iterator[Trajectory]:
    """Trajectories of the set at `path`, all or one split. The whole set is verified before this returns."""
    if split not in (None, "train", "heldout"):
        raise SpotError(f"split is {split!r}; use train, heldout or None for both")
    return open_shards(path).trajectories(split)


def verify_shards(path: str | Path) -> tuple[str, ...]:
    """What is wrong with the set at `path`, one sentence a damaged, missing or foreign shard; empty when sound."""
    folder = Path(path)
    try:
        manifest = read_manifest(folder)
    except SpotError as error:
        return (str(error),)
    return _problems(folder, manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the set in `folder`. Raises SpotError where it is missing, damaged or of another version."""
    file = folder / MANIFEST
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if folder.parts[:1] and folder.parts[0].endswith(":"):
            url = without_secrets(str(folder).replace(":/", "://", 1))
            raise SpotError(f"{url} is a URL; copy the set with `spot-train shards copy` and give the folder") from None
        if not folder.is_dir():
            raise SpotError(f"{folder} is not a folder; give the --out of a `spot-train collect` run") from None
        if shard_paths(folder):
            raise Damaged(f"{folder} has shards but no {MANIFEST}") from None
        raise SpotError(f"{folder} has no {MANIFEST}; give the --out of a `spot-train collect` run") from None
    except OSError:
        raise Damaged(f"{file} is damaged") from None
    return parse_manifest(data, str(file))


def parse_manifest(data: bytes, file: str) -> dict[str, Any]:
    """The manifest that `file` holds, as `read_manifest` gives it."""
    try:
        manifest = json.loads(data)
        sound = manifest["format"] == MANIFEST_FORMAT and isinstance(manifest["format_version"], int)
        needed = {"attributes": dict, "recipe": dict, "prompts": dict, "leases": int, "shards": dict}
        sound = sound and all(isinstance(manifest[key], kind) for key, kind in needed.items())
        sound = sound and all(isinstance(manifest["attributes"][key], dict) for key in ("target", "sampling"))
        sound = sound and all(
            isinstance(record["sha256"], str) and all(isinstance(one, int) for one in record["counts"].values())
            for record in manifest["shards"].values()
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise Damaged(f"{file} is damaged")
    if manifest["format_version"] != MANIFEST_VERSION:
        raise SpotError(
            f"{file} has format version {manifest['format_version']}; this release reads version {MANIFEST_VERSION}, "
            "use the release that wrote it"
        )
    return manifest


def write_manifest(
    folder: Path,
    common: Mapping[str, Any],
    recipe: Mapping[str, Any],
    prompts: Mapping[str, Any],
    leases: int,
    shards: Mapping[str, Mapping[str, Any]],
    before_rename: BeforeRename | None = None,
) -> None:
    """Write the manifest atomically. `shards` maps shard names to their full attributes, `common` is what they share,
    `recipe` the collecting half of the recipe, `prompts` the report of which prompts were used and skipped."""
    records = {
        name: {
            "sha256": attributes["sha256"],
            "bytes": shard_bytes(attributes),
            "counts": attributes["counts"],
            "lease": attributes["lease"],
        }
        for name, attributes in shards.items()
    }
    manifest = {
        "format": MANIFEST_FORMAT,
        "format_version": MANIFEST_VERSION,
        "attributes": common,
        "recipe": recipe,
        "prompts": prompts,
        "leases": leases,
        "shards": records,
    }
    write_json(folder / MANIFEST, manifest, before_rename)


def shard_name(index: int) -> str:
    """Folder name of the shard of lease `index`."""
    return f"part-{index:05d}.zarr"


def shard_paths(folder: Path) -> list[Path]:
    """Every shard folder that lies in `folder`, listed or not, in order."""
    return sorted(path for path in folder.glob("part-*.zarr") if path.is_dir())


def common_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What a shard must share with its set: everything but its lease, counts and checksums."""
    return {key: value for key, value in attributes.items() if key not in _OWN_TO_A_SHARD}


def differing_field(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first field in which two sets of attributes differ, as a dotted name and both values; library versions may
    differ."""
    for key in [*one, *(key for key in other if key not in one)]:
        if key in _MAY_DIFFER:
            continue
        left, right = _plain(one.get(key)), _plain(other.get(key))
        if left == right:
            continue
        if isinstance(left, dict) and isinstance(right, dict):
            found = differing_field(left, right)
            if found is not None:
                return f"{key}.{found[0]}", found[1], found[2]
            continue
        return key, left, right
    return None


def shard_problem(path: Path, manifest: Mapping[str, Any]) -> str | None:
    """What is wrong with the shard `path` of the set with this manifest: that it is missing, damaged or foreign. One
    that the manifest does not list is read no further than its attributes."""
    listed = manifest["shards"].get(path.name)
    if listed is not None and not path.is_dir():
        return f"shard {path.name} is listed in {MANIFEST} but missing; {REPAIR}"
    try:
        attributes = read_attributes(path) if listed is None else check_shard(path)
    except SpotError as error:
        return str(error)
    found = differing_field(manifest["attributes"], common_attributes(attributes))
    if found is not None:
        return (
            f"shard {path.name} has {found[0]} {found[2]!r} where the set has {found[1]!r}; sets must not be mixed, "
            "move it to a folder of its own"
        )
    if listed is not None and attributes["sha256"] != listed["sha256"]:
        return f"shard {path.name} is not the one that {MANIFEST} lists; {REPAIR}"
    return None


def _problems(folder: Path, manifest: Mapping[str, Any]) -> tuple[str, ...]:
    names = sorted({*manifest["shards"], *(path.name for path in shard_paths(folder))})
    found = (shard_problem(folder / name, manifest) for name in names)
    return tuple(problem for problem in found if problem is not None)


def _plain(value: Any) -> Any:
    """As JSON would read it back."""
    return json.loads(json.dumps(value))
