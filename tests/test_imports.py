"""The runtime stands alone: it imports its own short list of libraries and nothing of the toolkit."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
RUNTIME = sorted((REPO / "spot_infer").rglob("*.py"))
ALLOWED = {"torch", "numpy", "safetensors", "transformers", "huggingface_hub", "rich", "typer", "spot_infer"}
FORBIDDEN = ("spot_train", "lightning", "torchmetrics", "datasets", "zarr", "pydantic", "yaml")


def imported(source: str) -> set[str]:
    """Top-level names that a module imports anywhere, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("path", RUNTIME, ids=lambda path: str(path.relative_to(REPO)))
def test_a_runtime_module_imports_only_the_runtimes_libraries(path: Path) -> None:
    outside = imported(path.read_text(encoding="utf-8")) - set(sys.stdlib_module_names)
    assert outside <= ALLOWED


def test_loading_every_runtime_module_loads_nothing_of_the_toolkit() -> None:
    modules = [".".join(path.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__") for path in RUNTIME]
    script = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        f"print(sorted(set({FORBIDDEN!r}) & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(ran.stdout))
    assert loaded <= {"yaml"}  # transformers' own
    assert "spot_infer.decode" in modules


def test_help_does_not_load_torch() -> None:
    script = "import sys, spot_infer, spot_infer.cli\nprint('torch' in sys.modules, 'transformers' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]
