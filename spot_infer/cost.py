"""What a round over R replicas costs: measured points, read by linear interpolation. Pure; it measures nothing.

A curve answers two questions: what drafted rounds give in time on a machine that isn't at hand, and how many states are
worth drafting. The named curves hold ratios only; a curve that was measured holds seconds and what the drafter takes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from spot_infer.atomic import write_json
from spot_infer.errors import SpotError

FORMAT = "spot-cost-curve"
FORMAT_VERSION = 1
Unit = Literal["s", "c1"]
"""`s` is seconds; `c1` is multiples of the first point, for curves that are known as ratios only."""


@dataclass(frozen=True)
class DrafterCost:
    """What a drafter takes, in the curve's unit: a proposal, each call of its network (a level of the search) and each
    state scored."""

    proposal: float
    call: float
    state: float
    name: str = ""

    def total(self, proposals: float, calls: float, states: float) -> float:
        """Cost of so many proposals, network calls and scored states."""
        return self.proposal * proposals + self.call * calls + self.state * states


@dataclass(frozen=True)
class CostCurve:
    """Cost of one round of a row: pack, target forward, answers and verification, by number of replicas.

    replicas: ascending, the first 1 (the root alone, which is the draft-free round); seconds: one positive cost each,
    in `unit`. round_extra: what a drafted round costs beyond that, whatever its replicas (the stale table and the
    graph's bookkeeping); prefill: encoding the prompt; drafter: None where unknown. source: where the figures come
    from; machine, target, setup: facts of the measurement (setup: rows, prefix, layout, dtype, threads, clock, spread).
    Raises SpotError where the points make no curve.
    """

    name: str
    replicas: tuple[int, ...]
    seconds: tuple[float, ...]
    unit: Unit = "s"
    source: str = ""
    round_extra: float = 0.0
    prefill: float = 0.0
    drafter: DrafterCost | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)
    setup: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        points = f"cost curve {self.name!r}"
        if len(self.replicas) != len(self.seconds) or not self.replicas:
            raise SpotError(
                f"{points} has {len(self.replicas)} replicas and {len(self.seconds)} seconds; give one cost a size"
            )
        whole = all(isinstance(size, int) and not isinstance(size, bool) for size in self.replicas)
        if not whole or self.replicas[0] != 1 or any(a >= b for a, b in pairwise(self.replicas)):
            raise SpotError(f"{points} has replicas {list(self.replicas)}; use whole numbers that start at 1 and rise")
        if bad := [cost for cost in self.seconds if not (_number(cost) and cost > 0)]:
            raise SpotError(f"{points} has a cost of {bad[0]!r}; costs are positive finite numbers")
        if self.unit not in ("s", "c1"):
            raise SpotError(f"{points} has unit {self.unit!r}; use s or c1")
        parts = {"round_extra": self.round_extra, "prefill": self.prefill}
        if self.drafter is not None:
            parts |= {f"drafter.{name}": getattr(self.drafter, name) for name in ("proposal", "call", "state")}
        for name, cost in parts.items():
            if not _number(cost) or cost < 0:
                raise SpotError(f"{points} has {name} {cost!r}; use a finite number of at least 0")

    def cost(self, replicas: float) -> float:
        """Cost of a round over `replicas` (at least 1), in `unit`: linear between points, and beyond the last one along
        the last segment."""
        if not replicas >= 1:
            raise ValueError(f"a round has at least 1 replica, not {replicas}")
        sizes, costs = self.replicas, self.seconds
        if len(sizes) == 1:
            return costs[0]
        upper = next((index for index in range(1, len(sizes)) if replicas <= sizes[index]), len(sizes) - 1)
        share = (replicas - sizes[upper - 1]) / (sizes[upper] - sizes[upper - 1])
        if share > 1:
            return costs[upper] + (share - 1) * max(0.0, costs[upper] - costs[upper - 1])
        return costs[upper - 1] * (1 - share) + costs[upper] * share

    def ratio(self, replicas: float) -> float:
        """c(replicas): the cost in draft-free rounds, so that c(1) = 1."""
        return self.cost(replicas) / self.seconds[0]

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` reads them back to an equal curve."""
        return {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Any, name: str = "cost curve") -> CostCurve:
        """The curve in parsed JSON; `name` is what errors call it. Unknown keys that a newer writer may add within this
        format version are left out."""
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise SpotError(f"{name} is not a cost curve; give a file that `spot-train profile` wrote")
        if values.get("format_version") != FORMAT_VERSION:
            raise SpotError(
                f"{name} has format_version {values.get('format_version')!r}, this release reads {FORMAT_VERSION}; "
                "measure it again"
            )
        known = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        if missing := {"name", "replicas", "seconds"} - set(known):
            raise SpotError(f"{name} has no {', '.join(sorted(missing))}; measure it again")
        for key in ("replicas", "seconds"):
            if not isinstance(known[key], list):
                raise SpotError(f"{name}: {key} is {known[key]!r}; expected a list of numbers")
            known[key] = tuple(known[key])
        for key in ("machine", "target", "setup"):
            if not isinstance(known.get(key, {}), dict):
                raise SpotError(f"{name}: {key} is {known[key]!r}; expected an object")
        drafter = known.get("drafter")
        if drafter is not None:
            if not isinstance(drafter, dict) or not {"proposal", "call", "state"} <= set(drafter):
                raise SpotError(f"{name}: drafter is {drafter!r}; expected proposal, call and state costs")
            own = {one.name: drafter[one.name] for one in fields(DrafterCost) if one.name in drafter}
            known["drafter"] = DrafterCost(**own)
        return cls(**known)


def load_curve(name_or_path: str | Path) -> CostCurve:
    """A named curve (`NAMED_CURVES`) or one that `spot-train profile` wrote to a file."""
    if str(name_or_path) in NAMED_CURVES:
        return NAMED_CURVES[str(name_or_path)]
    try:
        values = json.loads(Path(name_or_path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpotError(
            f"{name_or_path} is neither a file nor a named cost curve; use one of {', '.join(NAMED_CURVES)} or a file "
            "that `spot-train profile` wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise SpotError(f"cost curve {name_or_path} can't be read as JSON ({error}); measure it again") from error
    return CostCurve.from_dict(values, str(name_or_path))


def save_curve(curve: CostCurve, path: Path, **more: Any) -> None:
    """Write `curve`, and `more` JSON values beside it (provenance), whole or not at all."""
    write_json(path, {**more, **curve.to_dict()})


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _named(name: str, points: Mapping[int, float], source: str) -> CostCurve:
    return CostCurve(name, tuple(points), tuple(points.values()), unit="c1", source=source)


_PAPER = "arXiv 2610.22543 table 7: SDAR-8B b32, one GPU; the joint oracle's NFE reduction over its throughput ratio"

NAMED_CURVES: dict[str, CostCurve] = {
    curve.name: curve
    for curve in (
        _named("paper-gsm8k", {1: 1.0, 9: 1.4, 13: 1.6, 21: 2.2}, f"{_PAPER} (GSM8K)"),
        _named("paper-mbpp", {1: 1.0, 9: 1.7, 13: 2.0, 21: 2.7}, f"{_PAPER} (MBPP)"),
        _named(
            "gpu-roofline",
            {1: 1.0, 2: 1.0, 4: 1.0, 9: 1.6, 13: 2.3, 21: 3.7},
            "roofline of an 8B bfloat16 target on a GPU of 4.3 TB/s and 790 TFLOP/s, no overhead",
        ),
        _named(
            "cpu-core",
            {1: 1.0, 2: 1.4, 4: 2.3, 9: 5.4, 13: 11.0, 21: 18.0},
            "a 3.2M target, L = 32, measured on one CPU core",
        ),
    )
}
"""Curves known as ratios, by name; none of them knows what the drafter takes."""
