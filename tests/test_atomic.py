"""What is renamed into place was written through to the disk before, and the folder it appears in after."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from spot_infer.atomic import new_folder, write_file


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Every fsync and rename, with the path it is of (a rename's target)."""
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: seen.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
    )

    def noted(real: Any) -> Any:
        def rename(source: Any, target: Any) -> None:
            real(source, target)
            seen.append(("rename", str(target)))

        return rename

    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, noted(getattr(os, name)))
    return seen


def test_a_file_is_synced_before_its_rename_and_its_folder_after(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    write_file(tmp_path / "rows", b"1")
    (written, renamed, folder) = calls
    assert written[0] == "sync" and Path(written[1]).parent == tmp_path and written[1] != str(tmp_path / "rows")
    assert (renamed, folder) == (("rename", str(tmp_path / "rows")), ("sync", str(tmp_path)))


def test_everything_in_a_folder_is_synced_before_its_rename(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    with new_folder(tmp_path / "set") as partial:
        (partial / "inner").mkdir()
        for name in ("one", "inner/two"):
            (partial / name).write_text(name)
    synced = {path for kind, path in calls[: calls.index(("rename", str(tmp_path / "set")))]}
    assert synced == {str(partial / name) for name in ("one", "inner/two", "inner", "")}
    assert calls[-1] == ("sync", str(tmp_path))
