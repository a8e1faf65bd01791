"""Shared set-up: one thread, hypothesis without deadlines, and where the reference fixtures lie."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("repo", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("repo")

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def sdar_reference() -> Path:
    """Folder of the official SDAR fixtures, which lie beside the repository and not in it."""
    folder = REPO.parent / "shared" / "reference" / "sdar"
    if not folder.is_dir():
        pytest.skip("the official SDAR fixtures are not beside this repository")
    return folder
