"""A target and a drafter whose time is made up: every forward, prefill and proposal moves one clock by a known amount.

What measures time is tested against it exactly, whatever the machine does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from fake_dlm import FakeCache, FakeTarget

from spot_infer.clock import Clock
from spot_infer.graph import DraftContext, Drafter, DraftGraph
from spot_infer.packing import Packed


@dataclass
class VirtualTime:
    """Seconds gone by; a forward takes `base` plus `each` a replica beyond one, a prefill `prefill`."""

    base: float = 1.0
    each: float = 0.25
    prefill: float = 3.0
    proposal: float = 0.5
    call: float = 0.125
    state: float = 0.0625
    now: float = 0.0

    @property
    def clock(self) -> Clock:
        return Clock("virtual", lambda: self.now)


@dataclass
class VirtualTarget(FakeTarget):
    """A fake target that takes virtual time."""

    time: VirtualTime = field(default_factory=VirtualTime)

    def forward(self, packed: Packed, cache: FakeCache) -> torch.Tensor:
        replicas = packed.positions_forwarded // self.block_length
        if packed.encodes_prompts:
            self.time.now += self.time.prefill + self.time.each
        else:
            self.time.now += self.time.base + self.time.each * (replicas - 1)
        return super().forward(packed, cache)

    def prefill(self, cache: FakeCache, rows: Sequence[int], prefixes: Sequence[Sequence[int]]) -> None:
        if any(prefixes):
            self.time.now += self.time.prefill
        super().prefill(cache, rows, prefixes)


@dataclass
class VirtualDrafter:
    """Proposes what `drafter` does and takes virtual time for it."""

    drafter: Drafter
    time: VirtualTime

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        graphs = self.drafter.propose(contexts)
        calls, states = max(one.calls for one in graphs), sum(one.states_scored for one in graphs)
        self.time.now += self.time.proposal * len(contexts) + self.time.call * calls + self.time.state * states
        return graphs
