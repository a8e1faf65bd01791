"""Shared set-up: one thread, hypothesis without deadlines, and where the reference fixtures lie."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import fsspec
import pytest
import torch
from collecting import collect_fake, write_prompts
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("repo", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("repo")

REPO = Path(__file__).resolve().parent.parent


def _reference(family: str) -> Path:
    """Folder of a family's official fixtures, which lie beside the repository and not in it."""
    folder = REPO.parent / "shared" / "reference" / family
    if not folder.is_dir():
        pytest.skip(f"the official {family} fixtures are not beside this repository")
    return folder


@pytest.fixture(scope="session")
def sdar_reference() -> Path:
    return _reference("sdar")


@pytest.fixture(scope="session")
def llada2_reference() -> Path:
    return _reference("llada2_moe")


@pytest.fixture(scope="session")
def llada_reference() -> Path:
    return _reference("llada")


@pytest.fixture(scope="session")
def dream_reference() -> Path:
    return _reference("dream")


@pytest.fixture(scope="session")
def task_files() -> Path:
    """Folder of the official task files, which lie beside the repository and not in it."""
    folder = REPO.parent / "shared" / "tasks"
    if not folder.is_dir():
        pytest.skip("the official task files are not beside this repository")
    return folder


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prompts file for the fake target, not to be changed."""
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl")


@pytest.fixture(scope="session")
def whole(prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process collects of them draft-free, not to be changed."""
    out = tmp_path_factory.mktemp("whole")
    collect_fake(prompts, out)
    return out


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """fsync guards against power cuts, which no test makes: a killed process loses nothing that it wrote.
    `test_atomic.py` checks what is synced before it is renamed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, so that no process is left alone with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture
def store() -> Iterator[fsspec.AbstractFileSystem]:
    """The memory store, whose /bucket is empty in the end."""
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/bucket", recursive=True) if files.exists("/bucket") else None


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where copies of single shards lie, which must be empty in the end."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())
