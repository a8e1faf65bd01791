"""Shards as releases of format version 1 wrote them, made from shards of this one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import zarr

from spot_infer.logprob_levels import ABSENT, LEAST_LOGPROB, LEVELS
from spot_train.shards.files import (
    _file_records,
    _listed,
    _write_array,
    attributes_digest,
    check_shard,
    shard_bytes,
    sums,
)


def reseal(shard: Path, **changed: object) -> None:
    """Give a tampered shard checksums of what it now holds."""
    group = zarr.open_group(shard, mode="r+")
    full = {**dict(group.attrs), **changed, "files": _file_records(shard, _listed(shard))}
    group.attrs.put({**full, "sha256": attributes_digest(full)})


def as_version_1(folder: Path, *names: str) -> None:
    """Give shards of the set in `folder` float16 logs, up to 0.3 of a level off what they hold."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in names:
        group = zarr.open_group(folder / name, mode="r+")
        levels = sums(np.asarray(group["top_logprob"][...]))
        off = levels + np.resize([0.3, -0.3, 0.0], levels.shape)
        logprob = np.where(levels == ABSENT, -np.inf, LEAST_LOGPROB * (off / LEVELS) ** 2)
        del group["top_logprob"]
        _write_array(group, "top_logprob", logprob.astype(np.float16))
        reseal(folder / name, format_version=1)
        attributes = check_shard(folder / name)
        manifest["shards"][name] |= {"sha256": attributes["sha256"], "bytes": shard_bytes(attributes)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
