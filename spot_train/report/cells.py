"""Results rows as the tables want them: seeds pooled, settings grouped, methods named by what sets them apart.

Pure. A figure that no row holds is None and is printed as a dash, never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, TypeVar

from spot_train.bench.spread import ratio_spread
from spot_train.results import CELL_IDENTITY, Cell

ABSENT = "–"
DAGGER = "†"
DRAFT_FREE, COUPLED = "draft-free", "coupled"
GRAPH = "calibrated_graph"
SPOT = "spot"
POSITION_ORACLE = "position_oracle"
METHOD_ORDER = (
    DRAFT_FREE,
    "random",
    "chain",
    "confidence_tree",
    "odds_tree",
    "trajectory_tree",
    GRAPH,
    SPOT,
    "token_oracle",
    POSITION_ORACLE,
    "joint_oracle",
)
STYLE_ORDER = (
    *(SPOT, GRAPH, "chain", "confidence_tree", "odds_tree", "trajectory_tree"),
    *(DRAFT_FREE, "token_oracle", "random", POSITION_ORACLE, "joint_oracle"),
)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Pooled:
    """One method under one condition, over all its seeds; `rows` has one a seed."""

    rows: tuple[Cell, ...]

    @property
    def first(self) -> Cell:
        return self.rows[0]

    @property
    def is_oracle(self) -> bool:
        return self.first.method.endswith("oracle")

    @property
    def competes(self) -> bool:
        """Whether it can have the lowest NFE of a comparison: it drafts, sees no future, keeps the distribution."""
        return self.first.method != DRAFT_FREE and not self.is_oracle and self.first.distribution_preserving

    def mean(self, name: str) -> float | None:
        """Mean over the seeds of one field, or of one entry of `measures`; None where a seed has none."""
        values = [getattr(row, name, None) if hasattr(row, name) else row.measures.get(name) for row in self.rows]
        return None if any(value is None for value in values) else fmean(values)  # type: ignore[arg-type]

    def deviation(self, name: str) -> float | None:
        """Standard deviation over the seeds of one field; None for a single seed."""
        values = [getattr(row, name) for row in self.rows]
        return None if len(values) < 2 or None in values else stdev(values)

    @property
    def nfe(self) -> float:
        return fmean(row.nfe for row in self.rows)

    @property
    def reduction(self) -> float:
        """Draft-free forwards over the method's, summed over prompts and seeds."""
        return sum(row.draft_free_nfe for row in self.rows) / sum(row.nfe for row in self.rows)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% bootstrap interval of the reduction over prompts; over several seeds a prompt's forwards are summed."""
        if len(self.rows) == 1:
            return self.first.spread.get("reduction")
        control = [sum(one) for one in zip(*(row.per_prompt.draft_free_nfe for row in self.rows), strict=True)]
        return ratio_spread(control, [sum(one) for one in zip(*(row.per_prompt.nfe for row in self.rows), strict=True)])

    @property
    def identical(self) -> tuple[int, int] | None:
        """(outputs equal to draft-free's, outputs compared)."""
        if any(row.identical is None for row in self.rows):
            return None
        return sum(row.identical or 0 for row in self.rows), sum(row.n for row in self.rows)

    @property
    def largest_gap(self) -> float | None:
        """Largest ranking gap over all first divergences."""
        gaps = [one["gap"] for row in self.rows for one in row.divergences or () if one.get("gap") is not None]
        return max(gaps, default=None)


def pool_seeds(cells: Iterable[Cell]) -> list[Pooled]:
    """Cells that differ in their seed alone, together, in order of first appearance."""
    return [Pooled(tuple(rows)) for rows in grouped(cells, lambda cell: condition(cell, "seed")).values()]


CONDITION = tuple(name for name in CELL_IDENTITY if name not in ("suite", "kind"))


def condition(cell: Cell, *without: str) -> str:
    """What the cell was run under, less the named fields, as a key."""
    return json.dumps([getattr(cell, name) for name in CONDITION if name not in without], sort_keys=True)


def setting(cell: Cell, *without: str) -> str:
    """The condition that methods, budgets and rules are compared under, as a key."""
    compared = ("drafter", "rule", "method", "budget", "options", "verifier", "seed")
    return condition(cell, *compared, *without)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by key, keys in order of first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def method_rank(method: str) -> int:
    """Place of a method in a table: untrained ones, calibrated, learned, oracles; unknown ones before spot."""
    return METHOD_ORDER.index(method) if method in METHOD_ORDER else METHOD_ORDER.index(SPOT)


def rule_name(rule: Mapping[str, Any]) -> str:
    """The rule's resolution, with whatever else is not the default."""
    parts = [str(rule.get("resolution", "float32"))]
    if rule.get("ranking", "probability") != "probability":
        parts.append(str(rule["ranking"]))
    if rule.get("selection", "one") == "quota":
        parts.append(f"quota {rule['quota']}")
    if rule.get("selection", "one") == "threshold":
        parts.append(f"threshold {rule['threshold']}")
    return " ".join(parts)


def stop_name(ignore_stop: bool) -> str:
    return "stop ignored" if ignore_stop else "stop honoured"


def variant_namer(pools: Sequence[Pooled]) -> Callable[[Pooled], str]:
    """Names of methods among these: the method, then what sets it apart (options that differ, a verifier other
    than coupled match, the drafter where there are several), then †."""
    varying = {
        method: {
            key
            for key in {key for one in same for key in one.first.options}
            if len({json.dumps(one.first.options.get(key), sort_keys=True) for one in same}) > 1
        }
        for method, same in grouped(pools, lambda one: one.first.method).items()
    }
    several = several_drafters(pools)

    def name(pool: Pooled) -> str:
        cell = pool.first
        parts = [cell.method]
        parts += [f"{key}={value}" for key, value in sorted(cell.options.items()) if key in varying[cell.method]]
        if cell.verifier != COUPLED:
            parts.append(cell.verifier)
        if cell.drafter and several(pool):
            parts.append(cell.drafter)
        return ", ".join(parts) + ("" if cell.distribution_preserving else DAGGER)

    return name


def several_drafters(pools: Sequence[Pooled]) -> Callable[[Pooled], bool]:
    """Whether a pool's method has rows of more than one drafter among these, on its target and under its rule."""

    def group(pool: Pooled) -> tuple[str, str, str]:
        return pool.first.method, pool.first.target, rule_name(pool.first.rule)

    found = {key for key, same in grouped(pools, group).items() if len({one.first.drafter for one in same}) > 1}
    return lambda pool: group(pool) in found


def styles(pools: Sequence[Pooled], name: Callable[[Pooled], str]) -> dict[str, int]:
    """A plot style by name: a method's own for its first variant, whatever else is plotted; the others' are free ones.

    Names that several methods share are of something else, and take styles in order.
    """
    methods = grouped(pools, name)
    if any(len({one.first.method for one in same}) > 1 for same in methods.values()):
        return {one: place for place, one in enumerate(methods)}
    first: dict[str, str] = {}
    for one, same in methods.items():
        first.setdefault(same[0].first.method, one)
    own = {one: STYLE_ORDER.index(method) for method, one in first.items() if method in STYLE_ORDER}
    free = [one for one in methods if one not in own]
    return own | {one: len(STYLE_ORDER) + place for place, one in enumerate(free)}


def lowest(pools: Iterable[Pooled]) -> frozenset[Pooled]:
    """The pools with the lowest NFE among those that compete; more than one where they tie as printed."""
    able = [pool for pool in pools if pool.competes]
    least = min((round(pool.nfe, 1) for pool in able), default=0.0)
    return frozenset(pool for pool in able if round(pool.nfe, 1) == least)
