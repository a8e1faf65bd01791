"""The edge that both command lines share: errors the user can fix become one sentence and exit code 2, warnings of the
program a line each; bugs pass.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from spot_infer.errors import SpotError


def run_command(app: typer.Typer, name: str, arguments: Sequence[str]) -> int:
    """Run one command of `app` and return its exit code."""
    try:
        with _warnings_as_lines():
            typer.main.get_command(app).main(list(arguments), prog_name=name)
    except SystemExit as finished:
        return finished.code if isinstance(finished.code, int) else int(finished.code is not None)
    except SpotError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print this program's warnings without the file and line that raised them."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_line(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
            if category is UserWarning and {"spot_infer", "spot_train"} & set(Path(filename).parts):
                print(f"warning: {message}", file=sys.stderr)
            else:
                show(message, category, filename, *rest)

        warnings.showwarning = show_line  # type: ignore[assignment]
        yield
