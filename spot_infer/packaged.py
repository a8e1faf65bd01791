"""Files that ship with the package: recipes, the tiny target, its drafter and its prompt pools."""

from __future__ import annotations

from pathlib import Path

from spot_infer.errors import SpotError

BUILTIN = "builtin:"
_PACKAGE = Path(__file__).resolve().parent


def local_path(path_or_id: str | Path) -> Path:
    """The path that a folder or `builtin:` name stands for; a hub id comes back as it is. An empty name is refused."""
    text = str(path_or_id)
    if not text.strip():
        raise SpotError("a name of a target or drafter is empty; give a folder or a hub id")
    return packaged(text.removeprefix(BUILTIN)) if text.startswith(BUILTIN) else Path(text).expanduser()


def packaged(name: str) -> Path:
    """Where a shipped file or folder lies, named as in the repository: `data/tiny-sdar`, `recipes/tiny.yaml`.

    A wheel carries them inside the package; a checkout has them beside it. Raises SpotError where there is none.
    """
    for root in (_PACKAGE / "_builtin", _PACKAGE.parent):
        if ".." not in Path(name).parts and (path := root / name).exists():
            return path
    raise SpotError(f"{name} is not part of this installation; expected for example recipes/tiny.yaml")
