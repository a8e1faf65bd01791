"""Several sets of shards -> one, readable and trainable like a collected one, from and to folders and URLs. Decodes
nothing.

Sets of one target, rule and format may differ in prompts and in what only moves logits by rounding (batch size, leases,
layout, library versions). A trajectory that an earlier set or shard holds too is dropped and counted.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

from spot_infer.atomic import BeforeRename
from spot_infer.errors import SpotError
from spot_train.provenance import append_provenance
from spot_train.shards.copy import Place
from spot_train.shards.files import read_shard, write_shard
from spot_train.shards.new_set import new_set, refuse_existing
from spot_train.shards.source import Source, open_source
from spot_train.shards.store import (
    MERGED,
    common_attributes,
    differing_field,
    shard_name,
    write_manifest,
)

_MAY_DIFFER = ("prompts", "recipe_hash", "lease_prompts", "versions", MERGED)
_DECODING = ("max_new_tokens", "ignore_stop", "stop")


@dataclass(frozen=True)
class Merged:
    """What `merge` wrote. dropped: duplicates left out."""

    out: str
    shards: int
    trajectories: int
    heldout: int
    dropped: int

    def sentence(self) -> str:
        return (
            f"{self.out}: {self.shards} shards, {self.trajectories} trajectories ({self.heldout} held out), "
            f"{self.dropped} duplicates dropped"
        )


def merge(
    paths: Sequence[str | Path],
    out: str | Path,
    before_rename: BeforeRename | None = None,
    take_over: str | None = None,
) -> Merged:
    """Write the sets at `paths`, in order, as the new set `out`; each is a folder or a URL. The manifest comes last,
    and without it there is no set.

    The first set's decoding section stands for all; every set's own attributes are kept in the attribute `merged`. One
    shard at a time is held in memory, and of what lies behind a URL on the disk. `take_over`: whose lock or claim of
    `out` to break. Raises SpotError where `out` exists, lies in one of the sets or is being written by another job
    (naming it), a set is damaged, or two sets differ in what must agree (naming the field).
    """
    there = Place(str(out))
    _refuse_inside(there, list(map(str, paths)))
    refuse_existing(there)
    sets = [open_source(str(path)) for path in paths]
    _refuse_mixed(sets)
    with new_set(there, before_rename, take_over) as (place, finished):
        kept, dropped = _kept(sets)
        common = _common(sets, kept)
        written: dict[str, dict[str, Any]] = {}
        for source, name, marks in _shards(sets, kept):
            with source.shard(name) as path:
                stored = list(compress(read_shard(path), marks))
            if stored:
                new = shard_name(len(written))
                lease = {**source.manifest["shards"][name]["lease"], "index": len(written)}
                if not all(marks):
                    kept_facts = {name: lease[name] for name in ("nfe", "method") if name in lease}
                    lease = {"index": len(written), "prompts": len(stored), **kept_facts}
                written[new] = write_shard(place / new, stored, {**common, "lease": lease})
                finished(new, written[new])
        recipes = {MERGED: [dict(source.manifest["recipe"]) for source in sets]}
        write_manifest(place, common, recipes, _report(sets, written, dropped), len(written), written)
        append_provenance(place, {"command": "shards merge", "sources": [source.name for source in sets]})
    counts = Counter[str]()
    for attributes in written.values():
        counts += Counter(attributes["counts"])
    return Merged(there.name, len(written), counts["trajectories"], counts["heldout"], dropped)


def _refuse_inside(there: Place, paths: Sequence[str]) -> None:
    for one in map(Place, paths):
        if one.holds(there):
            raise SpotError(
                f"--out {there.name} is the set {one.name} itself or lies in it; give another place for the merged set"
            )


def _refuse_mixed(sets: Sequence[Source]) -> None:
    first = sets[0]
    for other in sets[1:]:
        found = differing_field(_must_agree(first.attributes), _must_agree(other.attributes))
        if found is not None:
            raise SpotError(
                f"{other.name} has {found[0]} {found[2]!r} where {first.name} has {found[1]!r}; sets of different "
                "targets, rules or decoding must not be mixed, merge sets that agree"
            )


def _must_agree(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What sets may only be merged with equals of: the target, the rule, what is decoded, and who is held out."""
    decoding = attributes.get("decoding", {})
    return {
        **{key: value for key, value in attributes.items() if key not in _MAY_DIFFER},
        "decoding": {key: decoding.get(key) for key in _DECODING},
        "prompts": {"heldout_fraction": attributes.get("prompts", {}).get("heldout_fraction")},
    }


def _kept(sets: Sequence[Source]) -> tuple[list[list[tuple[str, bool]]], int]:
    """For each shard of each set (line of the prompts' digest, whether it is kept) a trajectory; how many are not."""
    seen: set[str] = set()
    shards: list[list[tuple[str, bool]]] = []
    for source in sets:
        for keys in source.stored_keys():
            marks = []
            for key in keys:
                marks.append((f"{key.identity} {key.content_hash} {key.heldout}\n", key.identity not in seen))
                seen.add(key.identity)
            shards.append(marks)
    return shards, sum(not keep for marks in shards for _, keep in marks)


def _shards(
    sets: Sequence[Source], kept: Sequence[Sequence[tuple[str, bool]]]
) -> Iterator[tuple[Source, str, list[bool]]]:
    """(set, name, what is kept) of every shard, in order."""
    names = [(source, name) for source in sets for name in source.names]
    for (source, name), marks in zip(names, kept, strict=True):
        yield source, name, [keep for _, keep in marks]


def _common(sets: Sequence[Source], kept: Sequence[Sequence[tuple[str, bool]]]) -> dict[str, Any]:
    """The merged set's attributes: the first set's with all sources of prompts, every set's own under `merged`."""
    first = dict(sets[0].attributes)
    prompts = [dict(source.attributes.get("prompts", {})) for source in sets]
    digest = hashlib.sha256("".join(line for marks in kept for line, keep in marks if keep).encode()).hexdigest()
    evaluation = [[_line(one) for one in each.get("evaluation", [])] for each in prompts]
    own = [part for source in sets for part in _own(source)]
    return {
        **first,
        "prompts": {
            **prompts[0],
            "sources": _distinct(one for each in prompts for one in each.get("sources", [])),
            "evaluation": [one for one in prompts[0].get("evaluation", []) if all(_line(one) in e for e in evaluation)],
            "sha256": digest,
        },
        "recipe_hash": hashlib.sha256(_line([part.get("recipe_hash") for part in own]).encode()).hexdigest(),
        MERGED: own,
    }


def _own(source: Source) -> list[dict[str, Any]]:
    """What the merged set records of one source: what was allowed to differ. Of a merged source, all of its parts."""
    if MERGED in source.attributes:
        return list(source.attributes[MERGED])
    attributes = common_attributes(source.attributes)
    names = ("recipe_hash", "lease_prompts", "prompts", "decoding", "versions")
    own = {name: attributes[name] for name in names if name in attributes}
    return [
        {**own, "trajectories": sum(shard["counts"]["trajectories"] for shard in source.manifest["shards"].values())}
    ]


def _report(sets: Sequence[Source], written: Mapping[str, Mapping[str, Any]], dropped: int) -> dict[str, Any]:
    """The manifest's account of prompts: the sets' own, added up, and the duplicates between them."""
    reports = [dict(source.manifest["prompts"]) for source in sets]
    skipped = Counter[str]()
    for report in reports:
        skipped.update(report.get("skipped", {}))
    skipped["duplicate"] += dropped
    return {
        "rows": sum(report.get("rows", 0) for report in reports),
        "used": sum(attributes["counts"]["trajectories"] for attributes in written.values()),
        "heldout": sum(attributes["counts"]["heldout"] for attributes in written.values()),
        "skipped": dict(skipped),
        "evaluation_matches": [match for report in reports for match in report.get("evaluation_matches", [])],
    }


def _distinct(values: Iterator[Any]) -> list[Any]:
    return list({_line(value): value for value in values}.values())


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
