"""What a bug report needs: versions, machine, threads and which packaged files are there. Loads no model."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_RUNTIME = ("torch", "numpy", "safetensors", "transformers", "tokenizers", "huggingface_hub", "rich", "typer")
_TOOLKIT = ("lightning", "torchmetrics", "datasets", "zarr", "pydantic")
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE")
_PACKAGED = (
    "data/tiny-sdar",
    "data/tiny-sdar-drafter",
    "data/tiny-sdar-drafter-bf16",
    "data/tiny-sdar-drafter-one-call",
    "data/tiny-sdar-drafter-one-call-bf16",
)


def environment() -> dict[str, Any]:
    """Everything as one JSON-ready mapping, names as printed."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "spot-dlm": _version("spot-dlm"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "runtime": {name: _version(name) for name in _RUNTIME},
        "toolkit": {name: _version(name) for name in _TOOLKIT},
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "torch_threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else ["cpu only"],
        "cuda": torch.version.cuda,
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "packaged": {name: _packaged(name) for name in _PACKAGED},
    }


def environment_lines(found: dict[str, Any]) -> list[str]:
    """`name: value` lines, nested mappings flattened."""
    lines = []
    for name, value in found.items():
        if isinstance(value, dict):
            lines += [f"{name}: " + (", ".join(f"{key} {part}" for key, part in value.items()) or "none")]
        else:
            lines.append(f"{name}: {', '.join(value) if isinstance(value, list) else value}")
    return lines


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _packaged(name: str) -> str:
    from spot_infer.errors import SpotError
    from spot_infer.packaged import packaged

    try:
        folder = packaged(name)
    except SpotError:
        return "missing"
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{size / 1e6:.1f} MB" if size else "missing"
