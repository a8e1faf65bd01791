"""What a set of shards holds, and whether it is sound: the figures behind `spot-train shards info` and `verify`.

`describe` reads the manifest and the shards' roots only; `verify` reads every byte, one shard at a time. Sets are
folders or URLs. Decodes and prints nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spot_infer.errors import SpotError
from spot_train.shards.copy import Unreachable
from spot_train.shards.files import StoredKey, read_attributes, read_keys
from spot_train.shards.schema import SCHEMA, schema_of, schema_problem
from spot_train.shards.source import Source, find_source
from spot_train.shards.store import MANIFEST, shard_paths, shard_problem

COUNTS = ("trajectories", "heldout", "steps", "commits", "rows")


def describe(path: str | Path) -> dict[str, Any]:
    """Totals and attributes of the set at `path`, as JSON values. Compares no file with its checksum.

    `arrays` holds dtype, rows, columns and bytes of each stored array, all shards together; `bytes` counts every file
    of the shards; `methods` how many shards each method decoded. Raises SpotError where there is no set, it can't be
    reached or a shard's attributes are damaged.
    """
    source = find_source(str(path))
    manifest = source.manifest
    totals = dict.fromkeys(COUNTS, 0)
    array_bytes: Counter[str] = Counter()
    methods: Counter[str] = Counter()
    versions: set[int] = set()
    size = nfe = 0
    for name in source.names:
        root, attributes = source.root(name)
        for count in COUNTS:
            totals[count] += attributes["counts"][count]
        for file, (length, _) in attributes["files"].items():
            array_bytes[file.split("/")[0]] += length
        size += sum(length for length, _ in attributes["files"].values()) + root
        nfe += attributes["lease"].get("nfe", 0)
        versions.add(attributes["format_version"])
        methods[attributes["lease"].get("method", {}).get("name", "draft-free")] += 1
    return {
        "path": source.name,
        "shards": len(manifest["shards"]),
        "leases": manifest["leases"],
        **totals,
        "bytes": size,
        "nfe": nfe,
        "methods": dict(methods),
        "arrays": {
            name: {
                "dtype": _dtypes(name, versions),
                "rows": spec.rows,
                "columns": spec.columns,
                "bytes": array_bytes[name],
            }
            for name, spec in SCHEMA.items()
            if name in array_bytes
        },
        "attributes": manifest["attributes"],
        "prompts": manifest["prompts"],
    }


def _dtypes(name: str, versions: set[int]) -> str:
    return " or ".join(dict.fromkeys(schema_of(version)[name].dtype for version in sorted(versions)))


@dataclass(frozen=True)
class Verdict:
    """Of `verify`. problems: one sentence each; repeated: trajectories of a set that an earlier set holds too."""

    sets: int
    shards: int
    leases: int
    trajectories: int
    heldout: int
    commits: int
    repeated: int
    problems: tuple[str, ...]

    def sentence(self) -> str:
        """The verdict on sound sets in one line."""
        name = "" if self.sets == 1 else f" in {self.sets} sets"
        repeated = f"{self.repeated} in more than one set, which merge drops" if self.repeated else "no duplicates"
        return (
            f"{self.shards} of {self.leases} shards sound{name}, {self.trajectories} trajectories "
            f"({self.heldout} held out), {self.commits} commits, {repeated}"
        )


def verify(paths: Sequence[str | Path]) -> Verdict:
    """Compare every file of the sets with its checksum, every array with the schema, and look for duplicates.

    A duplicate is a trajectory of the same prompt, by hash (and, at temperature > 0, of the same seed): a fault inside
    a set, where `collect` leaves none, and only counted between sets. Raises Unreachable where the way to a set that
    was found is lost.
    """
    problems: list[str] = []
    totals: Counter[str] = Counter()
    seen: set[str] = set()
    for path in paths:
        try:
            source = find_source(str(path))
        except SpotError as error:
            problems.append(str(error))
            continue
        totals += Counter(shards=len(source.names), leases=source.manifest["leases"])
        for name in source.names:
            totals += Counter(source.manifest["shards"][name]["counts"])
        found, keys = _checked(source)
        if not source.names:
            found.append("has no finished shard; run `spot-train collect` until it reports one")
        if repeated := len(keys) - len(set(keys)):
            found.append(f"{repeated} trajectories repeat another's prompt; `spot-train shards merge` drops them")
        totals["repeated"] += len(seen.intersection(keys))
        seen.update(keys)
        problems += [one if one.startswith(source.name) else f"{source.name}: {one}" for one in found]
    figures = {name: totals[name] for name in ("shards", "leases", "trajectories", "heldout", "commits", "repeated")}
    return Verdict(sets=len(paths), problems=tuple(problems), **figures)


def _checked(source: Source) -> tuple[list[str], list[str]]:
    """A sentence for each faulty shard, those that a folder holds and its manifest does not list included; and the
    identity of every trajectory in the sound ones."""
    problems: list[str] = []
    keys: list[StoredKey] = []
    for name in source.names:
        try:
            with source.shard(name) as path:
                found = shard_problem(path, source.manifest) or _schema_problem(path)
                keys += read_keys(path, source.drawn) if found is None else []
        except Unreachable:
            raise
        except SpotError as error:
            found = str(error)
        problems += [] if found is None else [found]
    for path in () if source.place.local is None else shard_paths(source.place.local):
        if path.name not in source.names and (found := shard_problem(path, source.manifest)):
            problems.append(found)
    return problems, [key.identity for key in keys]


def _schema_problem(path: Path) -> str | None:
    try:
        found = schema_problem(path, read_attributes(path))
    except (SpotError, ValueError, KeyError) as error:
        found = f"can't be read ({error})"
    if found is None:
        return None
    return f"shard {path.name} {found}; {MANIFEST} lists it, move the set aside and collect again"
