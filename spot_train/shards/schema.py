"""The arrays of a shard: dtype, what a row is, and whether a shard's arrays agree with that and with each other.

Checksums say that a shard is what was written; this says that what was written is a shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr


class ArraySpec(NamedTuple):
    """dtype; rows: which count a row belongs to (a key of `counts`, plus 1 for offsets, or blocks); columns: fixed
    width, `L` for the block length, None for flat arrays; offsets_into: the array that a flat array of offsets cuts."""

    dtype: str
    rows: str
    columns: int | str | None = None
    offsets_into: str | None = None


SCHEMA = {
    "slot": ArraySpec("uint8", "rows"),
    "top_logprob": ArraySpec("uint8", "rows", 32),
    "top_token": ArraySpec("int32", "rows", 32),
    "log_odds": ArraySpec("float32", "rows"),
    "drawn_token": ArraySpec("int32", "rows"),
    "drawn_logprob": ArraySpec("float16", "rows"),
    "step_start": ArraySpec("int64", "steps", offsets_into="slot"),
    "commit_start": ArraySpec("int64", "steps", offsets_into="commit_position"),
    "commit_position": ArraySpec("int32", "commits"),
    "commit_token": ArraySpec("int32", "commits"),
    "block": ArraySpec("uint16", "steps"),
    "trajectory_step": ArraySpec("int64", "trajectories", offsets_into="block"),
    "trajectory_block": ArraySpec("int64", "trajectories", offsets_into="block_tokens"),
    "block_tokens": ArraySpec("int32", "blocks", "L"),
    "prompt_hash": ArraySpec("uint8", "trajectories", 32),
    "content_hash": ArraySpec("uint8", "trajectories", 32),
    "heldout": ArraySpec("bool", "trajectories"),
    "prompt_length": ArraySpec("int32", "trajectories"),
    "returned_tokens": ArraySpec("int32", "trajectories"),
    "seed": ArraySpec("uint64", "trajectories"),
    "finish_reason": ArraySpec("uint8", "trajectories"),
}
AT_TEMPERATURE = ("drawn_token", "drawn_logprob")


def schema_of(version: int) -> Mapping[str, ArraySpec]:
    """The arrays of a shard of format `version`."""
    return SCHEMA if version > 1 else {**SCHEMA, "top_logprob": ArraySpec("float16", "rows", 32)}


def schema_problem(path: Path, attributes: Mapping[str, Any]) -> str | None:
    """What is wrong with the arrays of the shard `path`, whose files match their checksums; None where all agree."""
    group = zarr.open_group(path, mode="r", zarr_format=3)
    return next(_differences(dict(group.arrays()), attributes), None)


def _differences(arrays: Mapping[str, Any], attributes: Mapping[str, Any]) -> Iterator[str]:
    schema = schema_of(attributes["format_version"])
    optional = set(AT_TEMPERATURE) if not attributes["sampling"]["temperature"] else set()
    missing = sorted(schema.keys() - optional - arrays.keys())
    unknown = sorted(arrays.keys() - (schema.keys() - optional))
    if missing or unknown:
        yield f"lacks {', '.join(missing)}" if missing else f"holds {', '.join(unknown)}, which this format does not"
        return
    for name, array in arrays.items():
        spec = schema[name]
        offsets = spec.offsets_into is not None
        length = array.shape[0] if spec.rows == "blocks" else attributes["counts"][spec.rows] + offsets
        width = attributes["block_length"] if spec.columns == "L" else spec.columns
        shape = (length,) if width is None else (length, width)
        if (str(array.dtype), array.shape) != (spec.dtype, shape):
            yield f"has {name} as {array.dtype} {list(array.shape)}, expected {spec.dtype} {list(shape)}"
            return
    for name, spec in schema.items():
        if spec.offsets_into is not None:
            starts = np.asarray(arrays[name][...])
            if starts[0] != 0 or starts[-1] != arrays[spec.offsets_into].shape[0] or (np.diff(starts) < 0).any():
                yield f"has offsets in {name} that don't cut {spec.offsets_into}"
