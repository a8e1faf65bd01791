"""A checkpoint's weights where they lie: in mapped files, read when asked for, their pages returned once copied.

A page that was read of a mapped file counts as memory for as long as the mapping lasts, so a load that casts or stacks
weights would hold the file beside the copies. Knows nothing about models or families.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from spot_infer.errors import SpotError
from spot_infer.targets.checkpoint_folder import read_json

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NO_THREADS = "HF_DEACTIVATE_ASYNC_LOAD"
"""transformers' own switch."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a mapped file, bytes start..end; indexing reads it, as transformers does with safetensors' slices."""

    mapped: mmap.mmap
    start: int
    end: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    returns: list[weakref.finalize[Any, Any]]
    """What returns the pages of the tensors that were read, when these die."""

    def get_shape(self) -> list[int]:
        """As safetensors' slices have it: a tp_plan reads it."""
        return list(self.shape)

    def rows(self, counts: Sequence[int]) -> list[StoredTensor]:
        """The tensor cut along its first dimension. Raises SpotError where `counts` don't add up to it."""
        if sum(counts) != self.shape[0]:
            raise SpotError(f"fused weights have {self.shape[0]} rows, but config.json makes them {list(counts)}")
        row = (self.end - self.start) // self.shape[0]
        starts = [self.start + row * sum(counts[:number]) for number in range(len(counts))]
        return [
            replace(self, start=start, end=start + row * count, shape=(count, *self.shape[1:]))
            for start, count in zip(starts, counts, strict=True)
        ]

    def __getitem__(self, place: Any) -> Tensor:
        count = math.prod(self.shape)
        if count == 0:
            return torch.empty(self.shape, dtype=self.dtype)[place]
        whole = torch.frombuffer(self.mapped, dtype=self.dtype, count=count, offset=self.start).view(self.shape)
        tensor = whole[place]
        self.returns.append(weakref.finalize(tensor, _return_pages, self.mapped, self.start, self.end))
        return tensor


@contextmanager
def stored_weights(folder: Path, fused: Mapping[str, Mapping[str, int]]) -> Iterator[dict[str, StoredTensor]]:
    """The tensors of `folder`'s safetensors by name, those that are `fused` (`Family.fused`) as their parts.

    While the context lasts, what must not happen is a write to a tensor read from them: once it dies, its pages are
    the file's again. Later tensors that share memory with the file are ordinary ones, and writes stay in this process.
    transformers reads one weight after another meanwhile: its threads would cast all experts before it stacks any.
    Raises SpotError where the folder holds no such file, OSError or safetensors' error where one is damaged.
    """
    returns: list[weakref.finalize[Any, Any]] = []
    try:
        stored = {name: one for file in _files(folder) for name, one in _tensors(file, returns).items()}
        for whole, parts in fused.items():
            for name in [name for name in stored if whole in name]:
                cut = stored.pop(name).rows(list(parts.values()))
                stored |= {name.replace(whole, part): one for part, one in zip(parts, cut, strict=True)}
        with _set(_NO_THREADS, "1"):
            yield stored
    finally:
        for one in returns:
            one.detach()


@contextmanager
def _set(variable: str, value: str) -> Iterator[None]:
    """An environment variable while the context lasts."""
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        os.environ.pop(variable)
        if before is not None:
            os.environ[variable] = before


def _files(folder: Path) -> list[Path]:
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    index = read_json(folder / "model.safetensors.index.json")
    names = None if index is None else index.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise SpotError(
            f"{folder} holds neither model.safetensors nor a model.safetensors.index.json with a weight_map; fetch it "
            "again, or convert its weights to safetensors"
        )
    return sorted({folder / str(name) for name in names.values()})


def _tensors(file: Path, returns: list[weakref.finalize[Any, Any]]) -> dict[str, StoredTensor]:
    with safe_open(file, framework="pt"):  # refuses a header that does not fit the file
        pass
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    data = 8 + int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8:data])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] not in _DTYPES:
            raise SpotError(
                f"{file}: {name} is of dtype {entry['dtype']}, but config.json has no quantization_config, which says "
                "how to read it; fetch both again"
            )
        start, end = (data + offset for offset in entry["data_offsets"])
        shape = tuple(entry["shape"])
        tensors[name] = StoredTensor(mapped, start, end, _DTYPES[entry["dtype"]], shape, returns)
    return tensors


def _return_pages(mapped: mmap.mmap, start: int, end: int) -> None:
    """Let go of the whole pages of bytes start..end; a later read gets them from the file again."""
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)
