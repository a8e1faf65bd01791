"""The clock that costs are measured with. Knows nothing about what is measured.

On a CPU target with one thread it counts this process's own CPU time, which other programs on the machine hardly touch;
everywhere else it is wall time, read after the device has finished.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from spot_infer.errors import SpotError

ClockName = Literal["auto", "cpu", "wall"]


@dataclass(frozen=True)
class Clock:
    """`name` is cpu or wall; `now()` gives seconds, only differences mean something."""

    name: str
    now: Callable[[], float]


def clock_for(device: torch.device, name: str = "auto") -> Clock:
    """The clock for work on `device`. Raises SpotError for an unknown name, and for CPU time of work on a GPU."""
    if name not in ("auto", "cpu", "wall"):
        raise SpotError(f"clock is {name!r}; use auto, cpu or wall")
    if name == "cpu" and device.type != "cpu":
        raise SpotError(f"clock cpu can't time work on {device}; use wall")
    if name == "cpu" or (name == "auto" and device.type == "cpu" and torch.get_num_threads() == 1):
        return Clock("cpu", time.process_time)
    if device.type != "cuda":
        return Clock("wall", time.perf_counter)

    def synchronised() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return Clock("wall", synchronised)
