"""The edge that both command lines share: errors the user can fix become one sentence and exit code 2; bugs pass."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from spot_infer.errors import SpotError


def run_command(app: typer.Typer, name: str, arguments: Sequence[str]) -> int:
    """Run one command of `app` and return its exit code."""
    try:
        typer.main.get_command(app).main(list(arguments), prog_name=name)
    except SystemExit as finished:
        return finished.code if isinstance(finished.code, int) else int(finished.code is not None)
    except SpotError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
