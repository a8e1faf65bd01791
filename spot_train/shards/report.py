"""What a set of shards holds, and whether it is sound: the figures behind `spot-train shards info` and `verify`.

`describe` reads the manifest and the shards' attributes only; `verify` reads every byte. Decodes and prints nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spot_infer.errors import SpotError
from spot_train.shards.copy import Place
from spot_train.shards.files import read_attributes
from spot_train.shards.schema import SCHEMA, schema_of, schema_problem
from spot_train.shards.source import Source
from spot_train.shards.store import MANIFEST, read_manifest, verify_shards

COUNTS = ("trajectories", "heldout", "steps", "commits", "rows")


def describe(path: str | Path) -> dict[str, Any]:
    """Totals and attributes of the set at `path`, as JSON values. Compares no file with its checksum.

    `arrays` holds dtype, rows, columns and bytes of each stored array, all shards together; `bytes` counts every file
    of the shards; `methods` how many shards each method decoded. Raises SpotError where there is no set or a shard's
    attributes are damaged.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    totals = dict.fromkeys(COUNTS, 0)
    array_bytes: Counter[str] = Counter()
    methods: Counter[str] = Counter()
    versions: set[int] = set()
    size = nfe = 0
    for name in sorted(manifest["shards"]):
        attributes = read_attributes(folder / name)
        for count in COUNTS:
            totals[count] += attributes["counts"][count]
        for file, (length, _) in attributes["files"].items():
            array_bytes[file.split("/")[0]] += length
        size += sum(length for length, _ in attributes["files"].values()) + (folder / name / "zarr.json").stat().st_size
        nfe += attributes["lease"].get("nfe", 0)
        versions.add(attributes["format_version"])
        methods[attributes["lease"].get("method", {}).get("name", "draft-free")] += 1
    return {
        "path": str(folder),
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
    a set, where `collect` leaves none, and only counted between sets.
    """
    problems: list[str] = []
    totals: Counter[str] = Counter()
    seen: set[str] = set()
    for path in paths:
        folder = Path(path)
        found = list(verify_shards(folder))
        if not found:
            manifest = read_manifest(folder)
            names = sorted(manifest["shards"])
            totals += Counter(shards=len(names), leases=manifest["leases"])
            for name in names:
                totals += Counter(manifest["shards"][name]["counts"])
            if not names:
                found.append("has no finished shard; run `spot-train collect` until it reports one")
            found += _schema_problems(folder, manifest)
        if not found:
            keys = [key.identity for one in Source(Place(str(folder)), manifest).stored_keys() for key in one]
            repeated = len(keys) - len(set(keys))
            if repeated:
                found.append(f"{repeated} trajectories repeat another's prompt; `spot-train shards merge` drops them")
            totals["repeated"] += len(seen.intersection(keys))
            seen.update(keys)
        named = str(folder)
        problems += [one if one.startswith(named) else f"{named}: {one}" for one in found]
    figures = {name: totals[name] for name in ("shards", "leases", "trajectories", "heldout", "commits", "repeated")}
    return Verdict(sets=len(paths), problems=tuple(problems), **figures)


def _schema_problems(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    problems = []
    for name in sorted(manifest["shards"]):
        try:
            found = schema_problem(folder / name, read_attributes(folder / name))
        except (SpotError, ValueError, KeyError) as error:
            found = f"can't be read ({error})"
        if found is not None:
            problems.append(f"shard {name} {found}; {MANIFEST} lists it, move the set aside and collect again")
    return problems
