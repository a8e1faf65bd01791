"""Targets and drafters that note what they take, for `profile.py`. They decode as what they wrap does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from spot_infer.clock import Clock
from spot_infer.drafters.order import OrderDrafter
from spot_infer.graph import (
    DraftContext,
    Drafter,
    DraftGraph,
    crosses_blocks,
    looks_ahead,
    reads_responses,
    tables_read,
)
from spot_infer.packing import Packed
from spot_infer.targets.protocol import CanvasTarget, PrefixCache, Target

Outcome = TypeVar("Outcome")


class TimedTarget:
    """A target that notes how long its last forward took, its prefills, all its forwards, and the answers: logits and
    what is read off them."""

    def __init__(self, target: Target, clock: Clock) -> None:
        self._target, self._clock = target, clock
        self.spec = target.spec
        self.tokenizer = target.tokenizer
        self.forward_s, self.prefill_s, self.busy_s, self.answers_s = 0.0, 0.0, 0.0, 0.0
        self.forwards = 0

    @property
    def device(self) -> torch.device:
        return self._target.device

    def new_cache(self) -> PrefixCache:
        return self._target.new_cache()

    def prefill(self, cache: PrefixCache, rows: Sequence[int], prefixes: Sequence[Sequence[int]]) -> None:
        started = self._clock.now()
        self._target.prefill(cache, rows, prefixes)
        self.prefill_s += self._clock.now() - started

    def forward(self, packed: Packed, cache: PrefixCache) -> Tensor:
        started = self._clock.now()
        hidden = self._target.forward(packed, cache)
        seconds = self._clock.now() - started
        if packed.encodes_prompts:
            self.prefill_s += seconds
        else:
            self.forward_s = seconds
            self.busy_s += seconds
            self.forwards += 1
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return self.read(hidden, lambda logits: logits)

    def read(self, hidden: Tensor, read: Callable[[Tensor], Outcome]) -> Outcome:
        """`read` of the logits of hidden [m, H]."""
        started = self._clock.now()
        outcome = read(self._target.logits(hidden))
        self.answers_s += self._clock.now() - started
        return outcome


class TimedCanvas(TimedTarget):
    """The same of a target with full attention; what opens a block counts to its round, not to the forward."""

    def __init__(self, target: CanvasTarget, clock: Clock) -> None:
        super().__init__(target, clock)
        self.open_blocks, self.pack = target.open_blocks, target.pack


def timed_target(target: Target, clock: Clock) -> TimedTarget:
    """`target`, timed by `clock`."""
    return TimedCanvas(target, clock) if isinstance(target, CanvasTarget) else TimedTarget(target, clock)


class TimedDrafter:
    """Keeps (contexts, calls, states scored, seconds) of every proposal; calls are those of the deepest search."""

    def __init__(self, drafter: Drafter, clock: Clock) -> None:
        self._drafter, self._clock = drafter, clock
        self.looks_ahead, self.crosses_blocks = looks_ahead(drafter), crosses_blocks(drafter)
        self.tables_read, self.reads_responses = tables_read(drafter), reads_responses(drafter)
        self.samples: list[tuple[int, int, int, float]] = []

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        started = self._clock.now()
        graphs = self._drafter.propose(contexts)
        seconds = self._clock.now() - started
        calls = max(graph.calls for graph in graphs)
        self.samples.append((len(contexts), calls, sum(graph.states_scored for graph in graphs), seconds))
        return graphs


@dataclass
class NetworkTime:
    """Seconds in a drafter's network so far."""

    seconds: float = 0.0


@contextmanager
def network_time(drafter: Drafter, clock: Clock) -> Iterator[NetworkTime]:
    """Time an order drafter's network calls, from its inputs to what the search reads; other drafters have none."""
    time = NetworkTime()
    if not isinstance(drafter, OrderDrafter):
        yield time
        return
    model, name = drafter.model, "encode" if drafter.model.config.scorer == "one_call" else "level_scores"
    call = getattr(model, name)

    def timed(*inputs: Tensor) -> Tensor:
        started = clock.now()
        answer: Tensor = call(*inputs)
        time.seconds += clock.now() - started
        return answer

    setattr(model, name, timed)
    try:
        yield time
    finally:
        delattr(model, name)
