"""Measures a target's cost curve and a drafter's latency on the machine at hand, with the decode loop itself.

A profiled block is decoded once a size and cycle, its rounds drafting states that the target does not accept, so that
every round is a real one: packing, forward, answers, verification, stale table. From cycle to cycle the sizes move
through the rounds of the block in a new random order, so every size meets every number of masked slots and every state
of a noisy machine. Means are taken, without stalls (more than three times the median): what disturbs a process costs
long rounds about their share and short ones rarely, so medians would flatter the small sizes. Knows nothing about data
or tasks.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from spot_infer.blocks import Commit
from spot_infer.clock import Clock, clock_for
from spot_infer.cost import CostCurve, DrafterCost
from spot_infer.decode import decode
from spot_infer.environment import environment
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, Drafter, DraftGraph, reads_responses
from spot_infer.packing import resolve_layout
from spot_infer.requests import DecodeSettings, Request
from spot_infer.table import TOP_K
from spot_infer.targets.protocol import Target, TargetSpec
from spot_infer.timed import TimedDrafter, TimedTarget, network_time, timed_target

SIZES = (1, 2, 4, 9, 13, 21)
_PATHS = 3
_WARM_UP = 1


@dataclass(frozen=True)
class ProfileSettings:
    """sizes: replicas measured, from 1 up; prefix_tokens: cached prefix, rounded down to whole blocks (None: four);
    cycles: times that every (size, round) is met, warm-up apart; drafter_budgets: budgets of the timed proposals."""

    sizes: tuple[int, ...] = SIZES
    prefix_tokens: int | None = None
    cycles: int = 5
    drafter_budgets: tuple[int, ...] = (2, 8, 20)
    clock: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sizes[:1] != (1,) or list(self.sizes) != sorted(set(self.sizes)) or len(self.sizes) < 2:
            raise SpotError(f"sizes are {list(self.sizes)}; give at least two, rising from 1")
        if self.cycles < 1:
            raise SpotError(f"cycles is {self.cycles}; use at least 1")


class Profiler:
    """Measures a curve block by block, so that other work can be timed in between.

    The target runs under `decoding` (its rule, sampling, layout and batch_size, which is the rows a forward); with
    `responses` every drafted state is read. Raises SpotError where the prefix does not fit the target.
    """

    def __init__(
        self, target: Target, settings: ProfileSettings, decoding: DecodeSettings, responses: bool = False
    ) -> None:
        length = target.spec.block_length
        prefix = (4 * length if settings.prefix_tokens is None else settings.prefix_tokens) // length * length
        if prefix + length > target.spec.max_positions:
            raise SpotError(
                f"prefix_tokens is {prefix}, a block of {length} more does not fit the target's "
                f"{target.spec.max_positions} positions; use a shorter one"
            )
        self.target, self.settings, self.decoding, self.prefix = target, settings, decoding, prefix
        self.responses = responses
        self.clock = clock_for(target.device, settings.clock)
        self.prompts = random_prompts(target.spec, decoding.batch_size, prefix or 1, settings.seed)
        new = length if prefix else length - 1
        self._block = replace(decoding, max_new_tokens=new, ignore_stop=True, stop=(), floor=0.0, pad=False)
        self._samples = _Samples()
        self._number = -_WARM_UP

    @property
    def blocks(self) -> int:
        """Blocks that all cycles take, warm-up included."""
        return _WARM_UP + self.settings.cycles * len(self.settings.sizes)

    def measure_block(self) -> None:
        """Decode one block draft-free and one with the sizes in turn."""
        kept = self._samples if self._number >= 0 else _Samples()
        sizes = _rotated(self.settings.sizes, self._number, self.settings.seed)
        _measure_block(self.target, self.prompts, self._block, sizes, self.responses, self.clock, kept)
        self._number += 1

    def curve(self, drafter: DrafterCost | None = None) -> CostCurve:
        """What was measured so far."""
        figures = _curve(self._samples, self.settings.sizes)
        setup = {
            "rows": self.decoding.batch_size,
            "prefix_tokens": self.prefix,
            "layout": resolve_layout(self.decoding.layout, self.target.device),
            "dtype": self.target.spec.dtype,
            "device": str(self.target.device),
            "clock": self.clock.name,
            "blocks": self._number,
            "temperature": self.decoding.sampling.temperature,
            "rule": self.decoding.rule.to_dict(),
        }
        return CostCurve(
            name=self.target.spec.name,
            source="measured by `spot-train profile`",
            drafter=drafter,
            machine=machine_facts(),
            target=_target_facts(self.target.spec),
            **{**figures, "setup": {**setup, **figures["setup"]}},
        )


def profile(
    target: Target,
    settings: ProfileSettings,
    decoding: DecodeSettings,
    drafter: Drafter | None = None,
    drafter_name: str = "",
    progress: Callable[[str], None] = lambda done: None,
) -> CostCurve:
    """The curve of `target`, and what `drafter` takes on prompts of random tokens."""
    profiler = Profiler(target, settings, decoding, reads_responses(drafter))
    for number in range(profiler.blocks):
        profiler.measure_block()
        progress(f"{number + 1} of {profiler.blocks} blocks")
    cost = None
    if drafter is not None:
        asked = replace(decoding, max_new_tokens=2 * target.spec.block_length, ignore_stop=True)
        timer = DrafterTimer(target, drafter, asked, profiler.clock)
        for cycle in range(settings.cycles):
            for budget in settings.drafter_budgets:
                timer.measure(profiler.prompts, budget)
            progress(f"{cycle + 1} of {settings.cycles} drafted runs")
        cost = timer.cost(drafter_name)
    curve = profiler.curve(cost)
    return curve if cost is None else replace(curve, setup={**curve.setup, "round_parts": timer.round_parts()})


def _target_facts(spec: TargetSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in ("name", "revision", "block_length", "config_hash")}


def machine_facts() -> dict[str, Any]:
    """What costs depend on besides the models."""
    found = environment()
    return {name: found[name] for name in ("cpu", "cores", "devices", "torch_threads", "platform")} | {
        "torch": torch.__version__
    }


def random_prompts(spec: TargetSpec, count: int, tokens: int, seed: int) -> list[Request]:
    """Prompts of random allowed tokens that do not stop a row."""
    left_out = {*spec.forbidden_ids, *spec.stop_ids}
    allowed = [token for token in range(spec.vocab_size) if token not in left_out]
    draws = random.Random(seed)
    return [Request(tuple(draws.choices(allowed, k=tokens)), seed=seed + row) for row in range(count)]


class _Samples:
    """Seconds by (replicas, masked slots) of whole rounds and of the target's forward in them, and of prefills; the
    draft-free rounds under replicas 0."""

    def __init__(self) -> None:
        self.rounds: dict[tuple[int, int], list[float]] = defaultdict(list)
        self.forwards: dict[tuple[int, int], list[float]] = defaultdict(list)
        self.prefills: list[float] = []


def _rotated(sizes: Sequence[int], block: int, seed: int) -> list[int]:
    """Sizes in a random order, a new one every len(sizes) blocks, moved on by one from block to block in between."""
    cycle, turn = divmod(block, len(sizes))
    shuffled = list(sizes)
    random.Random(f"{seed} {cycle}").shuffle(shuffled)
    return [*shuffled[turn:], *shuffled[:turn]]


def _measure_block(
    target: Target,
    prompts: Sequence[Request],
    block: DecodeSettings,
    sizes: Sequence[int],
    responses: bool,
    clock: Clock,
    into: _Samples,
) -> None:
    """Decode one block draft-free and one with rounds of `sizes` in turn, and keep what every round took."""
    timed = timed_target(target, clock)
    length = target.spec.block_length
    last = clock.now()
    for number, _ in enumerate(decode(timed, prompts, replace(block, budget=0))):
        if (number + 1) % len(prompts):
            continue
        now = clock.now()
        masked = length - number // len(prompts)
        if timed.prefill_s:
            into.prefills.append(timed.prefill_s)
        elif 1 < masked < length:
            into.rounds[0, masked].append(now - last)
            into.forwards[0, masked].append(timed.forward_s)
        timed.prefill_s, last = 0.0, clock.now()
    forced = _ForcedDrafter(sizes, responses, timed, clock)
    for _ in decode(timed, prompts, replace(block, budget=max(sizes) - 1), forced):
        forced.finish()
    for key, seconds, forward in forced.samples:
        into.rounds[key].append(seconds)
        into.forwards[key].append(forward)


class _ForcedDrafter:
    """Drafts as many states as are due at the root's number of masked slots, in three paths of tokens that the target
    holds unlikely, and times the rounds, each from the end of its proposal to what it yields."""

    def __init__(self, sizes: Sequence[int], responses: bool, target: TimedTarget, clock: Clock) -> None:
        self.sizes, self.reads_responses, self.target, self.clock = sizes, responses, target, clock
        self.samples: list[tuple[tuple[int, int], float, float]] = []
        self._open: tuple[tuple[int, int], float] | None = None

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        masked = len(contexts[0].state.masked_slots)
        replicas = self.sizes[masked % len(self.sizes)]
        graphs = [_unlikely_graph(context, replicas - 1) for context in contexts]
        if all(len(graph) == replicas - 1 for graph in graphs):
            self._open = ((replicas, masked), self.clock.now())
        return graphs

    def finish(self) -> None:
        """Close the round that is being timed, if any."""
        if self._open is not None:
            key, started = self._open
            self.samples.append((key, self.clock.now() - started, self.target.forward_s))
            self._open = None


def _unlikely_graph(context: DraftContext, states: int) -> DraftGraph:
    """`states` drafted states in paths side by side, filled with the table's candidates from the last one up."""
    graph = DraftGraph()
    table = context.tables[0]
    open_slots = [
        (index, slot) for index, slot in enumerate(table.slots.tolist()) if slot in set(context.state.masked_slots)
    ]
    for rank in range(TOP_K - 1, 0, -1):
        paths = [open_slots[first::_PATHS] for first in range(min(_PATHS, len(open_slots)))]
        nodes = [0] * len(paths)
        for depth in range(min(len(paths[0]), len(open_slots) - 1)):
            for number, path in enumerate(paths):
                if len(graph) >= states:
                    return graph
                if depth < len(path) and (token := int(table.top_token[path[depth][0], rank])) >= 0:
                    step = frozenset((Commit(context.state.start + path[depth][1], token),))
                    nodes[number] = graph.add(nodes[number], step, 0.5)
    return graph


def _curve(samples: _Samples, sizes: Sequence[int]) -> dict[str, Any]:
    """The curve's figures. Numbers of masked slots that some size did not meet are left out for all."""
    columns = (0, *sizes)
    met = [masked for masked in _masked(samples, sizes) if all((size, masked) in samples.rounds for size in columns)]
    if not met:
        raise SpotError("no round of the block could hold all sizes; use smaller sizes or more cycles")
    rounds = {size: [_mean(samples.rounds[size, masked]) for masked in met] for size in columns}
    forwards = {size: [_mean(samples.forwards[size, masked]) for masked in met] for size in columns}
    spread = {
        size: float(
            np.median([np.subtract(*np.percentile(samples.rounds[size, m], [75, 25])) for m in met])
            / np.mean(rounds[size])
        )
        for size in sizes
    }
    mean = {size: float(np.mean(rounds[size])) for size in columns}
    extra = max(0.0, mean[1] - mean[0])
    return {
        "replicas": tuple(sizes),
        "seconds": tuple(mean[0] if size == 1 else max(mean[size] - extra, 1e-9) for size in sizes),
        "round_extra": extra,
        "prefill": _mean(samples.prefills) if samples.prefills else 0.0,
        "setup": {
            "forward_s": [float(np.mean(forwards[0 if size == 1 else size])) for size in sizes],
            "spread": [spread[size] for size in sizes],
            "rounds_measured": sum(len(values) for values in samples.rounds.values()),
        },
    }


def _mean(seconds: Sequence[float]) -> float:
    """Mean without stalls."""
    values = np.asarray(seconds)
    return float(values[values <= 3 * np.median(values)].mean())


def _masked(samples: _Samples, sizes: Sequence[int]) -> list[int]:
    return sorted({masked for size, masked in samples.rounds if size == sizes[0]})


class DrafterTimer:
    """Times a drafter's proposals in real decoding, request by request, so that other work can be timed in between."""

    def __init__(self, target: Target, drafter: Drafter, decoding: DecodeSettings, clock: Clock) -> None:
        self.target, self.drafter, self.decoding, self.clock = target, drafter, decoding, clock
        self._seconds: dict[tuple[Any, ...], list[float]] = defaultdict(list)
        self._parts: dict[int, list[dict[str, float]]] = defaultdict(list)

    def measure(self, requests: Sequence[Request], budget: int) -> None:
        """Decode `requests` under `budget` and keep what every proposal took. The same proposals come again when this
        is called again: their mean counts."""
        timed = TimedDrafter(self.drafter, self.clock)
        target = timed_target(self.target, self.clock)
        with network_time(self.drafter, self.clock) as network:
            started = self.clock.now()
            for _ in decode(target, requests, replace(self.decoding, budget=budget), timed):
                pass
            total = self.clock.now() - started
        draft = sum(seconds for *_, seconds in timed.samples)
        parts = {"network": network.seconds, "search": draft - network.seconds}
        parts |= {"target": target.busy_s, "answers": target.answers_s}
        parts["rest"] = total - sum(parts.values()) - target.prefill_s
        self._parts[budget].append({name: seconds / target.forwards for name, seconds in parts.items()})
        for number, (*work, seconds) in enumerate(timed.samples):
            self._seconds[(*work, budget, tuple(requests), number)].append(seconds)

    def round_parts(self) -> dict[str, dict[str, float]]:
        """By budget the seconds that a round of real decoding takes: the drafter's network, the search around it, the
        target's forward, its answers (the vocabulary's logits, the rule's values and the tables, a pass over the
        vocabulary each) and the rest (packing, choosing and comparing steps, bookkeeping)."""
        return {
            str(budget): {name: float(np.median([one[name] for one in runs])) for name in runs[0]}
            for budget, runs in self._parts.items()
        }

    def cost(self, name: str = "") -> DrafterCost:
        """What a proposal, a network call and a scored state take: least squares over the proposals, none negative."""
        rows = [[*key[:3], _mean(seconds)] for key, seconds in self._seconds.items()]
        if not rows:
            raise SpotError("the drafter was never asked for drafts; time it on prompts that leave more to decode")
        return DrafterCost(*_least_squares(np.array(rows)), name)


def _least_squares(rows: np.ndarray) -> tuple[float, float, float]:
    """Non-negative x [3] that minimises |rows[:, :3] x - rows[:, 3]|, by trying every set of positive entries."""
    inputs, seconds = rows[:, :3], rows[:, 3]
    best, least = np.zeros(3), float("inf")
    for chosen in range(1, 8):
        columns = [index for index in range(3) if chosen >> index & 1]
        fitted = np.linalg.lstsq(inputs[:, columns], seconds, rcond=None)[0]
        error = float(((inputs[:, columns] @ fitted - seconds) ** 2).sum())
        if (fitted >= 0).all() and error < least:
            best, least = np.zeros(3), error
            best[columns] = fitted
    return float(best[0]), float(best[1]), float(best[2])
