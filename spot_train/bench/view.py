"""What `spot-train bench` shows while it runs: the plan, then a line a group. Nothing else prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console


class BenchView:
    """A line for the plan, for everything left out, and for every finished group with its processor time."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.waiting = 0

    def planned(self, groups: int, kept: int, notes: Sequence[str]) -> None:
        self.waiting = groups - kept
        self.console.print(f"{groups} groups, {kept} already there", highlight=False)
        for sentence in notes:
            self.console.print(f"note: {sentence}", highlight=False, soft_wrap=True)

    def finished(self, sentence: str, rows: int, seconds: float) -> None:
        self.waiting -= rows > 0
        self.console.print(
            f"{sentence}: {rows} rows, {seconds:.0f} s of processor, {self.waiting} groups left",
            highlight=False,
            soft_wrap=True,
        )
