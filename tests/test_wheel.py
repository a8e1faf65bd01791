"""The built wheel, away from the clone: it carries the recipes, the tiny target, its drafter and its pools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files in a folder of their own, as `pip install --target` lays them out."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(REPO)], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, "-P", "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def runs_from(installed: Path, folder: Path) -> bool:
    """Whether a command run this way takes the package, and what ships with it, from the wheel."""
    place = "from spot_infer.packaged import packaged; print(packaged('data/tiny-sdar'))"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    found = subprocess.check_output([sys.executable, "-P", "-c", place], cwd=folder, env=environment, text=True)
    return Path(found.strip()).is_relative_to(installed)


def test_generate_works_from_the_wheel(installed, tmp_path):
    done = run(installed, tmp_path, "spot_infer.cli", "generate", "--prompt", "Add 3 and 4.", "--json")
    assert done.returncode == 0, done.stderr
    assert runs_from(installed, tmp_path)
    row = json.loads(done.stdout.strip().splitlines()[-1])
    assert row["tokens"] and row["stats"]["nfe"] < row["stats"]["commits"]


def test_quickstart_works_from_the_wheel(installed, tmp_path):
    small = ["--set", "prompts.limit=32", "--set", "fit.epochs=1", "--set", "prompts.heldout_fraction=0.3"]
    done = run(installed, tmp_path, "spot_train.cli", "quickstart", "--out", "q", "--prompts", "4", *small)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "q" / "results.jsonl").read_text().splitlines()]
    assert [(row["method"], row["budget"]) for row in rows] == [
        ("draft-free", 0),
        ("chain", 8),
        ("odds_tree", 8),
        ("odds_tree", 20),
        ("spot", 8),
        ("spot", 20),
    ]
    assert all(row["identical"] == row["n"] == 4 and row["reduction"] >= 1 for row in rows)
