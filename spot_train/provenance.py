"""Where a result came from: command line, git revision, library versions, a target's weights. Knows nothing about the
results."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spot_infer.atomic import write_json
from spot_train.shards.shown import without_secrets

if TYPE_CHECKING:
    import torch

PROVENANCE = "provenance.json"
WEIGHT_SAMPLES = 1024
_LIBRARIES = ("spot-dlm", "torch", "transformers", "numpy", "safetensors", "zarr", "datasets", "lightning")


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that results depend on; those not installed are left out."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def git_revision(folder: Path) -> str | None:
    """Commit that `folder` is at, with `+dirty` where tracked files were changed; None outside a checkout."""
    try:
        revision = _git(folder, "rev-parse", "HEAD")
        return revision + "+dirty" if _git(folder, "status", "--porcelain", "--untracked-files=no") else revision
    except (OSError, subprocess.SubprocessError):
        return None


def weights_hash(model: torch.nn.Module) -> str:
    """sha256 of evenly spaced elements of every tensor of a model (at most 1,024 each), whatever its device.

    Cheap at any size, and different for any two trainings of one architecture.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, -(-flat.numel() // WEIGHT_SAMPLES))].double().cpu().numpy()
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode() + sample.tobytes())
    return digest.hexdigest()


def provenance() -> dict[str, Any]:
    """argv without secrets of URLs, the package's git revision if it runs from a checkout, and library versions."""
    return {
        "argv": list(map(without_secrets, sys.argv)),
        "git": git_revision(Path(__file__).parent),
        "versions": library_versions(),
    }


def append_provenance(folder: Path, run: Mapping[str, Any]) -> None:
    """Add one run's provenance, with whatever figures `run` holds, to `folder`/provenance.json, atomically."""
    file = folder / PROVENANCE
    try:
        runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
    except (OSError, ValueError, KeyError, TypeError):
        runs = []
    write_json(file, {"runs": [*runs, {**provenance(), **run}]})


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
