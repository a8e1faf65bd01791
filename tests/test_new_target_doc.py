"""Every block of docs/new-target.md runs: the family, its registration, a checkpoint, and the commands."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from spot_infer import cli as infer_cli
from spot_infer import load_target
from spot_train import cli as train_cli

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "new-target.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)(?: title=(\S+))?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
RUN = {"spot-train": train_cli.run, "spot-infer": infer_cli.run}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's files in a folder of their own, the package as pip would have installed it."""
    files = {name: text for _, name, text in BLOCKS if name}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    entries = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in groups]
    (info / "entry_points.txt").write_text("".join(entries))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("spot_waltz", None)


def test_the_page_runs_from_a_family_to_an_exported_drafter(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (commands,) = [text.strip().splitlines() for language, _, text in BLOCKS if language == "bash"]
    for line in commands:
        program, *arguments = shlex.split(line)
        if program == "python":
            runpy.run_path(arguments[0])
        else:
            assert RUN[program](arguments) == 0, line
    printed = capsys.readouterr().out.strip().splitlines()
    steps = [line.split()[1] for line in commands if line.startswith("spot-train")]
    assert steps == ["recipe", "check", "collect", "fit", "export"]
    assert "holds: nothing flipped" in printed
    drafted = json.loads(printed[-1])
    arguments = shlex.split(commands[-1])[1:]
    del arguments[arguments.index("--drafter") : arguments.index("--drafter") + 2]
    assert infer_cli.run([*arguments, "--draft-free"]) == 0
    free = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert drafted["tokens"] == free["tokens"]
    assert drafted["stats"]["drafted"] > 0
    assert load_target("./waltz-tiny").spec.block_length == 8
