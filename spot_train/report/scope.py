"""In words: which prompts, target, rule, temperature, stop handling and mode some rows are of. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePath
from typing import Any

from spot_train.report.cells import grouped, rule_name, stop_name
from spot_train.results import Cell, Curve

MODES = {"real": "on real forwards", "replay": "replayed from recorded trajectories (no wall clock)"}


def sentence(answers: str, rows: Sequence[Cell | Curve]) -> str:
    """What a suite answers and what of: one plain sentence."""
    parts = [f"{answers}, on {prompts(rows)}"]
    parts.append(f"commit rule {listed(dict.fromkeys(rule_name(row.rule) for row in rows))}")
    parts.append(f"temperature {listed(f'{value:g}' for value in sorted({row.temperature for row in rows}))}")
    parts.append(_stops({row.ignore_stop for row in rows}))
    modes = {row.mode for row in rows if isinstance(row, Cell)}
    parts += [listed(text for mode, text in MODES.items() if mode in modes)] if modes else []
    return "; ".join(parts) + "."


def prompts(rows: Iterable[Cell | Curve]) -> str:
    """As in "200 prompts of tiny (target tiny-sdar)"; every number of prompts that occurs is named."""
    parts = []
    for task, of_task in grouped(rows, lambda row: row.task).items():
        counts = listed(str(n) for n in sorted({row.n for row in of_task}, reverse=True))
        targets = listed(dict.fromkeys(row.target for row in of_task))
        seeds = {row.seed for row in of_task if isinstance(row, Cell)}
        times = f", {len(seeds)} seeds" if len(seeds) > 1 else ""
        parts.append(f"{counts} prompts of {task} (target {targets}{times})")
    return listed(parts)


def setting_title(cell: Cell, cells: Collection[Cell], without: Collection[str] = ()) -> str:
    """Title of a table or plot of cells like this one: the task, and what else tells it from the suite's others."""
    parts = [cell.task]
    for name in ("target", "max_new_tokens", "block_length", "top_k", "top_p"):
        if name not in without and len({getattr(one, name) for one in cells}) > 1:
            parts.append(f"{_WORDS[name]} {getattr(cell, name)}")
    if "temperature" not in without:
        parts.append(f"T = {cell.temperature:g}")
    if "ignore_stop" not in without:
        parts.append(stop_name(cell.ignore_stop))
    parts.append(f"{cell.n} prompts, {'real forwards' if cell.mode == 'real' else 'replayed'}")
    return ", ".join(parts)


_WORDS = {
    "target": "target",
    "max_new_tokens": "at most tokens:",
    "block_length": "block length",
    "top_k": "top-k",
    "top_p": "top-p",
}


def commands(rows: Iterable[Cell | Curve]) -> tuple[str, ...]:
    """The command lines that made the rows, each once, ready for a shell."""
    return tuple(dict.fromkeys(_command(row.provenance) for row in rows if row.provenance.get("argv")))


def _command(provenance: dict[str, Any]) -> str:
    program, *arguments = map(str, provenance["argv"])
    name = PurePath(program).name
    return shlex.join(["spot-train" if name.endswith(".py") else name, *arguments])


def _stops(handled: Collection[bool]) -> str:
    if len(handled) == 2:
        return "stop tokens honoured and, apart, ignored"
    return "stop tokens ignored" if True in handled else "stop tokens honoured"


def listed(words: Iterable[str]) -> str:
    """Words as a sentence lists them: a, b and c."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
