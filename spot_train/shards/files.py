"""One shard: a Zarr v3 group of trajectories, ragged over masked slots (format in docs/formats.md).

Writes a shard whole or not at all, and reads one only after its files match the checksums in its own attributes: Zarr
reads a deleted chunk file as fill values without an error. Knows nothing about sets of shards or how they were made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore

from spot_infer.atomic import BeforeRename, new_folder
from spot_infer.errors import SpotError
from spot_infer.logprob_levels import from_levels, rounded, to_levels
from spot_train.trajectory import Trajectory

FORMAT = "spot-shard"
FORMAT_VERSION = 2
READ_VERSIONS = (1, 2)
FINISH_REASONS = ("stop", "length")
CHUNK_ROWS = 4096
_ZSTD_LEVEL = 5
_SLOT_ARRAYS = ("slot", "top_logprob", "top_token", "log_odds")
_DRAWN_ARRAYS = ("drawn_token", "drawn_logprob")


REPAIR = "run `spot-train collect` again with the same recipe and --out to repair it"


class Damaged(SpotError):
    """A shard or manifest that is missing, cut short or altered. what: it, and its damage; repair: what to do, since a
    set where it is collected is made again, and a copy elsewhere is not."""

    def __init__(self, what: str, repair: str = REPAIR) -> None:
        super().__init__(what, repair)
        self.what, self.repair = what, repair

    def __str__(self) -> str:
        return "; ".join(self.args)


@dataclass(frozen=True)
class StoredTrajectory:
    """A trajectory as a shard holds it: with the hash of its prompt's content, and whether that holds it out."""

    trajectory: Trajectory
    content_hash: str
    heldout: bool


class StoredKey(NamedTuple):
    """What tells one stored trajectory from another: of the same target and rule, trajectories of equal `identity` are
    the same."""

    identity: str
    content_hash: str
    heldout: bool


def write_shard(
    path: Path,
    stored: Sequence[StoredTrajectory],
    attributes: Mapping[str, Any],
    before_rename: BeforeRename | None = None,
) -> dict[str, Any]:
    """Write `stored` (at least one) as the shard `path`, replacing nothing; returns its attributes. Of several
    processes that write it at once the first one's stays.

    `attributes` must be JSON and hold `block_length`; counts, checksums and the format version are added. The same
    arguments give the same bytes. Log probabilities that are no levels are rounded to them. Raises SpotError when the
    disk is full; nothing is left behind then.
    """
    arrays = _arrays(stored, int(attributes["block_length"]))
    with new_folder(path, before_rename, replace=False) as folder:
        group = zarr.open_group(folder, mode="w", zarr_format=3)
        for name, array in arrays.items():
            _write_array(group, name, array)
        full = {
            **attributes,
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "counts": _counts(stored),
            "files": _file_records(folder, _listed(folder)),
        }
        full["sha256"] = attributes_digest(full)
        group.attrs.put(full)
    return full


def read_attributes(path: Path) -> dict[str, Any]:
    """A shard's attributes, after their own checksum is verified. Raises Damaged naming the shard."""
    try:
        data = (path / "zarr.json").read_bytes()
    except FileNotFoundError:
        raise Damaged(f"shard {path.name} has no zarr.json") from None
    except OSError:
        raise Damaged(f"shard {path.name} has a damaged zarr.json") from None
    return parse_attributes(data, path.name)


def parse_attributes(data: bytes, shard: str) -> dict[str, Any]:
    """The attributes in a shard's zarr.json, as `read_attributes` gives them."""
    try:
        attributes = json.loads(data)["attributes"]
        if attributes["format"] != FORMAT:
            raise KeyError
        version = attributes["format_version"]
        digest = attributes["sha256"]
    except (ValueError, KeyError, TypeError):
        raise Damaged(f"shard {shard} has a damaged zarr.json") from None
    if version not in READ_VERSIONS:
        raise SpotError(
            f"shard {shard} has format version {version}; this release reads versions "
            f"{' and '.join(map(str, READ_VERSIONS))}, use the release that wrote it"
        )
    if digest != attributes_digest(attributes):
        raise Damaged(f"shard {shard} has attributes that don't match their checksum")
    return attributes


def check_shard(path: Path) -> dict[str, Any]:
    """Compare every file of a shard with its recorded size and sha256; returns the attributes.

    Raises Damaged naming the shard, the file and what is wrong with it.
    """
    attributes = read_attributes(path)
    for name, (size, digest) in attributes["files"].items():
        try:
            data = (path / name).read_bytes()
        except OSError:
            raise Damaged(f"shard {path.name} lacks its file {name}") from None
        check_file(data, path.name, name, size, digest)
    return attributes


def check_file(data: bytes, shard: str, name: str, size: int, digest: str) -> None:
    """Compare a file's content with its recorded size and sha256. Raises Damaged naming shard and file."""
    if len(data) != size:
        raise Damaged(f"shard {shard} has {len(data)} bytes in {name}, expected {size}")
    if hashlib.sha256(data).hexdigest() != digest:
        raise Damaged(f"shard {shard} has a file {name} that doesn't match its checksum")


def read_shard(path: Path, heldout: bool | None = None) -> Iterator[StoredTrajectory]:
    """A shard's trajectories in order: all, or those held out or not. Checks every file first."""
    version = check_shard(path)["format_version"]
    group = zarr.open_group(path, mode="r", zarr_format=3)
    arrays = {name: np.asarray(array[...]) for name, array in group.arrays()}
    arrays["top_logprob"] = read_logprob(arrays["top_logprob"], version)
    for index, mark in enumerate(arrays["heldout"].tolist()):
        if heldout is None or mark == heldout:
            content_hash = arrays["content_hash"][index].tobytes().hex()
            yield StoredTrajectory(_trajectory(arrays, index), content_hash, mark)


def read_keys(path: Path, drawn: bool) -> list[StoredKey]:
    """The keys of a shard's trajectories, in order; nothing is verified. At temperature > 0 (`drawn`) the seed is part
    of the identity, else the prompt's hash is all of it."""
    group = zarr.open_group(path, mode="r", zarr_format=3)
    prompts, seeds, contents, heldout = (
        _read_array(group, name) for name in ("prompt_hash", "seed", "content_hash", "heldout")
    )
    return [
        StoredKey(prompt.tobytes().hex() + f"-{seed}" * drawn, content.tobytes().hex(), mark)
        for prompt, seed, content, mark in zip(prompts, seeds.tolist(), contents, heldout.tolist(), strict=True)
    ]


def read_array(path: Path, name: str) -> np.ndarray:
    """One array of a shard, whole; nothing is verified."""
    return _read_array(zarr.open_group(path, mode="r", zarr_format=3), name)


def stored_logprob(logprob: NDArray[np.float16]) -> NDArray[np.uint8]:
    """`top_logprob` [M, 32] as a shard stores it."""
    return differences(to_levels(logprob))


def read_logprob(stored: np.ndarray, version: int) -> NDArray[np.float16]:
    """`top_logprob` [M, 32] of a stored array; the float16 logs of version 1 are rounded as live tables are."""
    return rounded(stored) if version == 1 else from_levels(sums(stored))


def differences(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Each level less the one before it in its row, modulo 256: small numbers, since a row's levels ascend."""
    return np.diff(levels, axis=1, prepend=np.uint8(0))


def sums(stored: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The levels of `differences`."""
    return np.cumsum(stored, axis=1, dtype=np.uint8)


def array_bytes(name: str, array: np.ndarray) -> int:
    """Bytes that `array` would take in a shard, its metadata included."""
    files: dict[str, Buffer] = {}
    _write_array(zarr.open_group(MemoryStore(files), mode="w", zarr_format=3), name, array)
    return sum(len(data) for file, data in files.items() if file.startswith(f"{name}/"))


def attributes_digest(attributes: Mapping[str, Any]) -> str:
    """sha256 of the attributes, their own digest left out; covers every file, since `files` holds their checksums."""
    rest = {key: value for key, value in attributes.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def shard_bytes(attributes: Mapping[str, Any]) -> int:
    """Bytes of a shard's files, its root zarr.json left out."""
    return sum(size for size, _ in attributes["files"].values())


def _read_array(group: zarr.Group, name: str) -> np.ndarray:
    array = group[name]
    assert isinstance(array, zarr.Array)
    return np.asarray(array[...])


def _write_array(group: zarr.Group, name: str, array: np.ndarray) -> None:
    rest = array.shape[1:]
    chunk = min(CHUNK_ROWS, max(1, len(array)))
    shard = -(-max(1, len(array)) // chunk) * chunk
    stored = group.create_array(
        name,
        shape=array.shape,
        dtype=array.dtype,
        chunks=(chunk, *rest),
        shards=(shard, *rest),
        compressors=[BloscCodec(cname="zstd", clevel=_ZSTD_LEVEL, shuffle="shuffle")],
        config={"write_empty_chunks": True},
    )
    if len(array):
        stored[...] = array


def _arrays(stored: Sequence[StoredTrajectory], block_length: int) -> dict[str, np.ndarray]:
    items = [item.trajectory for item in stored]
    drawn = items[0].drawn_token is not None
    slot_arrays = (*_SLOT_ARRAYS, *_DRAWN_ARRAYS) if drawn else _SLOT_ARRAYS
    arrays = {name: np.concatenate([getattr(item, name) for item in items]) for name in slot_arrays}
    return {
        **arrays,
        "top_logprob": stored_logprob(arrays["top_logprob"]),
        "step_start": _rebased([item.step_start for item in items]),
        "commit_start": _rebased([item.commit_start for item in items]),
        "commit_position": np.concatenate([item.commit_position for item in items]),
        "commit_token": np.concatenate([item.commit_token for item in items]),
        "block": np.concatenate([item.block_start // block_length for item in items]).astype(np.uint16),
        "block_tokens": np.concatenate([item.block_tokens for item in items]),
        "trajectory_step": _starts([len(item) for item in items]),
        "trajectory_block": _starts([len(item.block_tokens) for item in items]),
        "prompt_hash": _digests([item.prompt_hash for item in items]),
        "content_hash": _digests([item.content_hash for item in stored]),
        "heldout": np.array([item.heldout for item in stored], dtype=np.bool_),
        "prompt_length": np.array([item.prompt_length for item in items], dtype=np.int32),
        "returned_tokens": np.array([item.returned_tokens for item in items], dtype=np.int32),
        "seed": np.array([item.seed for item in items], dtype=np.uint64),
        "finish_reason": np.array([FINISH_REASONS.index(item.finish_reason) for item in items], dtype=np.uint8),
    }


def _trajectory(arrays: Mapping[str, np.ndarray], index: int) -> Trajectory:
    """Trajectory `index`, in arrays of its own: one that is kept must not keep the whole shard."""
    first, last = arrays["trajectory_step"][index : index + 2].tolist()
    steps = arrays["step_start"][first : last + 1]
    commits = arrays["commit_start"][first : last + 1]
    rows = slice(int(steps[0]), int(steps[-1]))
    written = slice(int(commits[0]), int(commits[-1]))
    blocks = slice(*arrays["trajectory_block"][index : index + 2].tolist())
    block_length = arrays["block_tokens"].shape[1]
    return Trajectory(
        prompt_hash=arrays["prompt_hash"][index].tobytes().hex(),
        prompt_length=int(arrays["prompt_length"][index]),
        seed=int(arrays["seed"][index]),
        finish_reason=FINISH_REASONS[int(arrays["finish_reason"][index])],
        returned_tokens=int(arrays["returned_tokens"][index]),
        block_start=arrays["block"][first:last].astype(np.int32) * np.int32(block_length),
        step_start=steps - steps[0],
        slot=arrays["slot"][rows].copy(),
        top_logprob=arrays["top_logprob"][rows].copy(),
        top_token=arrays["top_token"][rows].copy(),
        log_odds=arrays["log_odds"][rows].copy(),
        commit_start=commits - commits[0],
        commit_position=arrays["commit_position"][written].copy(),
        commit_token=arrays["commit_token"][written].copy(),
        block_tokens=arrays["block_tokens"][blocks].copy(),
        drawn_token=arrays["drawn_token"][rows].copy() if "drawn_token" in arrays else None,
        drawn_logprob=arrays["drawn_logprob"][rows].copy() if "drawn_logprob" in arrays else None,
    )


def _counts(stored: Sequence[StoredTrajectory]) -> dict[str, int]:
    items = [item.trajectory for item in stored]
    return {
        "trajectories": len(items),
        "heldout": sum(item.heldout for item in stored),
        "steps": sum(len(item) for item in items),
        "commits": sum(len(item.commit_token) for item in items),
        "rows": sum(len(item.slot) for item in items),
    }


def _listed(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / "zarr.json")


def _file_records(folder: Path, files: Sequence[Path]) -> dict[str, list[Any]]:
    records = {}
    for file in files:
        data = file.read_bytes()
        records[file.relative_to(folder).as_posix()] = [len(data), hashlib.sha256(data).hexdigest()]
    return records


def _digests(digests: Sequence[str]) -> np.ndarray:
    return np.frombuffer(bytes.fromhex("".join(digests)), dtype=np.uint8).reshape(len(digests), -1)


def _starts(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _rebased(starts: Sequence[np.ndarray]) -> np.ndarray:
    """One array of starts from one a trajectory, each from 0."""
    parts, base = [np.zeros(1, np.int64)], 0
    for start in starts:
        parts.append(start[1:] + base)
        base += int(start[-1])
    return np.concatenate(parts).astype(np.int64)
