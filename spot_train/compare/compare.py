"""Run several drafting methods on the same prompts in one process, interleaved, and account for them honestly.

Every ratio is against the draft-free method of the same run. A claim of identical outputs is a count, and every first
divergence is named with its gap.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spot_infer.blocks import Step
from spot_infer.cost import CostCurve
from spot_infer.decode import decode
from spot_infer.divergence import Divergence, first_divergence
from spot_infer.drafters import OracleDrafter
from spot_infer.graph import DraftContext, Drafter, DraftGraph
from spot_infer.requests import Boundary, DecodeSettings, Request, Result, Verifier
from spot_infer.table import StaleTable
from spot_infer.targets.protocol import Target
from spot_infer.verify import same_tokens

Scorer = Callable[[int, str], bool]
"""(request index, generated text) -> solved."""
Progress = Callable[[str, int], None]
"""Called with the method's label and the number of prompts just decoded."""


@dataclass(frozen=True)
class Method:
    """A drafter under a budget; `drafter` None is the draft-free control, whose blocks are written apart. curve: where
    every round drafts only what pays on it, at most `budget` states."""

    name: str
    budget: int = 0
    drafter: Drafter | None = None
    floor: float = 0.0
    pad: bool = False
    verifier: Verifier = "coupled"
    boundary: Boundary = "auto"
    curve: CostCurve | None = None

    @property
    def label(self) -> str:
        shown = self.name if self.verifier == "coupled" else f"{self.name} {self.verifier}"
        return self.name if self.drafter is None else f"{shown} {self.budget_name}"

    @property
    def budget_name(self) -> str:
        """`D8`, or `auto`."""
        return f"D{self.budget}" if self.curve is None else "auto"


@dataclass
class MethodRun:
    """What one method did: a result and the committed steps a request, with one table a step if they were recorded,
    replicas of every forward and proposals made for it, and the wall time of its generation loops by each batch's first
    request."""

    method: Method
    results: dict[int, Result] = field(default_factory=dict)
    steps: dict[int, list[Step]] = field(default_factory=dict)
    tables: dict[int, list[StaleTable]] = field(default_factory=dict)
    replicas: dict[int, list[int]] = field(default_factory=dict)
    proposals: Counter[int] = field(default_factory=Counter)
    batch_s: dict[int, float] = field(default_factory=dict)

    @property
    def wall_s(self) -> float:
        return sum(self.batch_s.values())

    def total(self, name: str) -> float:
        """Sum of one `Stats` field over the requests."""
        return float(sum(getattr(result.stats, name) for result in self.results.values()))

    @property
    def tokens(self) -> int:
        return sum(len(result.tokens) for result in self.results.values())


def run_methods(
    target: Target,
    requests: Sequence[Request],
    methods: Sequence[Method],
    settings: DecodeSettings,
    progress: Progress = lambda label, count: None,
    record: bool = False,
) -> list[MethodRun]:
    """Decode `requests` with every method, a batch at a time, in an order that rotates from batch to batch."""
    runs = [MethodRun(method) for method in methods]
    batches = [
        range(first, min(first + settings.batch_size, len(requests)))
        for first in range(0, len(requests), settings.batch_size)
    ]
    for number, batch in enumerate(batches):
        turn = number % len(runs)
        for run in [*runs[turn:], *runs[:turn]]:
            _run_batch(target, [requests[index] for index in batch], batch.start, run, settings, record)
            progress(run.method.label, len(batch))
    return runs


def _run_batch(
    target: Target, requests: Sequence[Request], first: int, run: MethodRun, settings: DecodeSettings, record: bool
) -> None:
    method = run.method
    drafter = _Numbered(method.drafter, first) if isinstance(method.drafter, OracleDrafter) else method.drafter
    chosen = settings_of(method, settings)
    started = time.perf_counter()
    rounds = list(decode(target, requests, chosen, drafter, record))
    run.batch_s[first] = time.perf_counter() - started
    for round_ in rounds:
        index = first + round_.request
        run.steps.setdefault(index, []).extend(round_.steps)
        run.replicas.setdefault(index, []).append(round_.replicas)
        run.proposals[index] += round_.graph is not None
        if record:
            run.tables.setdefault(index, []).extend(round_.tables)
        if round_.result is not None:
            run.results[index] = replace(round_.result, request=index)


@dataclass(frozen=True)
class _Numbered:
    """Shows an oracle, which looks answers up by request, a batch's requests under their numbers in the whole list."""

    oracle: OracleDrafter
    first: int

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        return self.oracle.propose([replace(one, request=one.request + self.first) for one in contexts])


def settings_of(method: Method, settings: DecodeSettings) -> DecodeSettings:
    """`settings` with what the method itself decides."""
    return replace(
        settings,
        budget=method.budget if method.drafter else 0,
        floor=method.floor,
        pad=method.pad,
        verifier=method.verifier,
        boundary=method.boundary if method.drafter else "separate",
        curve=method.curve if method.drafter else None,
    )


def promises_same_tokens(method: Method, settings: DecodeSettings) -> bool:
    """Whether the method returns the control's tokens, up to rounding, and not only its law."""
    return same_tokens(settings_of(method, settings))


def divergences(
    target: Target, requests: Sequence[Request], control: MethodRun, run: MethodRun, settings: DecodeSettings
) -> dict[int, Divergence]:
    """Requests whose output differs from the control's, each with its first divergence; none are looked for where the
    method's verifier promises no more than the control's law."""
    if not promises_same_tokens(run.method, settings):
        return {}
    found: dict[int, Divergence] = {}
    for index, request in enumerate(requests):
        if control.results[index].tokens != run.results[index].tokens:
            first = first_divergence(
                target,
                request,
                control.steps[index],
                run.steps[index],
                settings.rule,
                settings.sampling,
                settings.max_new_tokens,
            )
            if first is not None:
                found[index] = first
    return found


def summarise(
    run: MethodRun,
    control: MethodRun,
    settings: DecodeSettings,
    solved: Mapping[int, bool],
    differing: Mapping[int, Divergence],
) -> dict[str, Any]:
    """One row of a results file. reduction: control's NFE over the method's; accepted: drafts a drafted round."""
    n = len(run.results)
    rounds = run.total("drafted_rounds")
    return {
        "method": run.method.name,
        "budget": run.method.budget,
        "temperature": settings.sampling.temperature,
        "n": n,
        "nfe": run.total("nfe") / n,
        "reduction": control.total("nfe") / run.total("nfe"),
        "accepted": run.total("accepted") / rounds if rounds else 0.0,
        "throughput_ratio": (run.tokens / run.wall_s) / (control.tokens / control.wall_s),
        "accuracy": sum(solved.values()) / len(solved) if solved else None,
        "identical": n - len(differing) if promises_same_tokens(run.method, settings) else None,
        "divergences": [
            {"prompt": index, "step": one.step, "kind": one.kind, "gap": one.gap} for index, one in differing.items()
        ],
        "positions": run.total("positions") / n,
        "drafter_calls": run.total("drafter_calls") / n,
        "states_scored": run.total("states_scored") / n,
        "drafter_s": run.total("drafter_s"),
        "wall_s": run.wall_s,
        "tokens": run.tokens,
        "rule": settings.rule.to_dict(),
        "ignore_stop": settings.ignore_stop,
        "max_new_tokens": settings.max_new_tokens,
        "batch_size": settings.batch_size,
        "curve": None if run.method.curve is None else run.method.curve.to_dict(),
        "floor": run.method.floor,
        "pad": run.method.pad,
        "verifier": run.method.verifier,
        "boundary": "/".join(sorted({result.stats.boundary for result in run.results.values()})),
        "distribution_preserving": all(result.stats.distribution_preserving for result in run.results.values()),
        "reason": "; ".join(sorted({result.stats.reason for result in run.results.values()})),
    }
