"""What `spot-train collect` shows while it runs: the plan, then one live line. Nothing else prints."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from spot_train.collect.collect import Plan, Summary, Tally
from spot_train.collect.leases import Forwards


class CollectView:
    """Prints the plan, keeps a progress bar, prints the summary. Use as a context manager around `collect`."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar = Progress(
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]} ·"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
        )
        self._task: Any = None

    def __enter__(self) -> CollectView:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, plan: Plan) -> None:
        for sentence in plan.repaired:
            self.console.print(f"repairing: {sentence}", highlight=False, soft_wrap=True)
        self.console.print(plan.prompts.sentence(), highlight=False, soft_wrap=True)
        for match in plan.prompts.evaluation_matches[:10]:
            self.console.print(f"  in an evaluation split: {match['source']} row {match['row']}", highlight=False)
        made = ", ".join(f"{count} {method}" for method, count in plan.methods.items())
        if len(plan.methods) > 1:
            self.console.print(f"shards there: {made}", highlight=False, soft_wrap=True)
        size = f"{'about' if plan.measured else 'at most'} {decimal(plan.projected_bytes)}"
        self.console.print(
            f"{plan.leases} shards, {plan.kept} already there; projected size of the rest: {size}; batch size "
            f"{plan.batch_size}",
            highlight=False,
            soft_wrap=True,
        )
        if plan.kept < plan.leases:
            self._task = self._bar.add_task(
                "collect", total=plan.trajectories, completed=plan.kept_trajectories, figures=""
            )
            self._bar.start()

    def fitting(self, lease: int) -> None:
        self._bar.console.print(f"fitting a drafter to the leases before {lease}", highlight=False)

    def advanced(self, tally: Tally) -> None:
        rate = tally.commits / tally.seconds if tally.seconds else 0.0
        figures = f"trajectories · {rate:.0f} commits/s · {_nfe(tally.forwards)} · {decimal(tally.bytes)}"
        self._bar.update(self._task, completed=tally.trajectories, figures=figures)

    def finished(self, summary: Summary) -> None:
        tally = summary.tally
        self._bar.stop()
        rate = f", {tally.commits / tally.seconds:.0f} commits/s" if tally.seconds else ""
        self.console.print(
            f"{summary.written} shards written, {summary.plan.leases} in {summary.out}: {tally.trajectories} "
            f"trajectories, {decimal(tally.bytes)}{rate}",
            highlight=False,
            soft_wrap=True,
        )
        for sentence in summary.ended:
            self.console.print(sentence, highlight=False, soft_wrap=True)
        recorded = summary.recorded
        if recorded is not None and recorded.nfe:
            self.console.print(
                f"{_nfe(recorded)}; {recorded.calls:,} target forwards of {recorded.nfe / recorded.calls:.1f} rows, "
                f"{recorded.positions:,} positions",
                highlight=False,
                soft_wrap=True,
            )


def _nfe(forwards: Forwards) -> str:
    """NFE, beside draft-free decoding's where that differs."""
    if forwards.nfe == forwards.draft_free_nfe:
        return f"NFE {forwards.nfe:,}"
    return f"NFE {forwards.nfe:,}, draft-free {forwards.draft_free_nfe:,} ({forwards.reduction:.2f}x)"
