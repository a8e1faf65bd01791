"""States on a target's own trajectories, and what the target answers there among other states, rows and pads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from spot_infer.blocks import BlockState
from spot_infer.packing import Layout, Packed, Replica, RowStates, pack
from spot_infer.requests import Request
from spot_infer.targets.protocol import CanvasTarget, PrefixCache, Target, TargetSpec
from spot_train.trajectory import Trajectory

Edit = Callable[[Packed], Packed]


@dataclass(frozen=True)
class Probe:
    """A state behind its prefix. encoded: what the cache holds of the row, the prefix first; end: of the canvas under
    full attention."""

    prefix: tuple[int, ...]
    state: BlockState
    end: int
    encoded: tuple[int, ...] | None = None

    @property
    def cached(self) -> tuple[int, ...]:
        """Tokens that the cache holds of the row."""
        return self.prefix if self.encoded is None else self.encoded


def choose_probes(
    spec: TargetSpec, requests: Sequence[Request], runs: Sequence[Trajectory], max_new_tokens: int, count: int
) -> list[Probe]:
    """One state a request, of those that start with a commit already in their block: in the middle of its last block
    that has any."""
    probes = []
    for request, run in zip(requests, runs, strict=True):
        inner = [t for t in range(1, len(run)) if run.block_start[t] == run.block_start[t - 1]]
        if not inner:
            continue
        last = [t for t in inner if run.block_start[t] == run.block_start[inner[-1]]]
        step = last[len(last) // 2]
        canvas = dict(enumerate(request.prompt_ids)) | dict(c for t in range(step) for c in run.step(t))
        start = int(run.block_start[step])
        tokens = tuple(canvas.get(position, spec.mask_id) for position in range(start, start + spec.block_length))
        end = spec.blocks_end(len(request.prompt_ids), max_new_tokens)
        probes.append(Probe(tuple(canvas[p] for p in range(start)), BlockState(start, tokens, spec.mask_id), end))
        if len(probes) == count:
            break
    return probes


def open_rows(target: Target, probes: Sequence[Probe]) -> PrefixCache:
    """A cache with a row a probe, in order: its prefix encoded or, under full attention, its block opened."""
    cache = target.new_cache()
    rows = [cache.add_row() for _ in probes]
    target.prefill(cache, rows, [probe.cached for probe in probes])
    if isinstance(target, CanvasTarget):
        mask_id, length = target.spec.mask_id, target.spec.block_length
        canvases = [[*probe.prefix, *[mask_id] * (probe.end - len(probe.prefix))] for probe in probes]
        target.open_blocks(cache, canvases, [len(probe.prefix) for probe in probes])
        opening = [Replica(BlockState(len(probe.prefix), (mask_id,) * length, mask_id)) for probe in probes]
        packing = [RowStates(row, cache.lengths[row], [one]) for row, one in zip(rows, opening, strict=True)]
        target.forward(target.pack(packing, cache, "batch", 0), cache)
    return cache


def forward_rows(
    target: Target,
    cache: PrefixCache,
    probes: Sequence[Probe],
    replicas: Sequence[Sequence[Replica]],
    layout: Layout,
    pad_states: int = 0,
    edit: Edit = lambda packed: packed,
) -> tuple[Packed, list[Tensor]]:
    """One forward of every probe's `replicas`; the logits [m, V] of each row's replicas that are read, joined."""
    if isinstance(target, CanvasTarget):
        packing = [RowStates(row, cache.lengths[row], own) for row, own in enumerate(replicas)]
        packed = edit(target.pack(packing, cache, layout, pad_states))
    else:
        lengths = [len(probe.prefix) for probe in probes]
        packing = [RowStates(row, length, own) for row, (length, own) in enumerate(zip(lengths, replicas, strict=True))]
        packed = edit(pack(packing, layout, target.device, pad_states))
    hidden = target.forward(packed, cache)
    ends = [packed.state_start[packed.row_states[row]] for row in range(len(replicas) + 1)]
    logits = target.logits(hidden) if len(hidden) else hidden
    return packed, [logits[first:end] for first, end in pairwise(ends)]


def read_rows(
    target: Target,
    probes: Sequence[Probe],
    replicas: Sequence[Sequence[Replica]],
    layout: Layout,
    pad_states: int = 0,
    edit: Edit = lambda packed: packed,
) -> list[Tensor]:
    """`forward_rows` with a cache made for this forward: logits [m, V] of the one replica a row that is read."""
    return forward_rows(target, open_rows(target, probes), probes, replicas, layout, pad_states, edit)[1]


def alone(probes: Sequence[Probe]) -> list[list[Replica]]:
    """Every probe's state with nothing beside it."""
    return [[Replica(probe.state)] for probe in probes]


class Tokens:
    """Random tokens of a target from a seed, none of them forbidden."""

    def __init__(self, spec: TargetSpec, seed: int) -> None:
        self.spec = spec
        self.allowed = sorted(set(range(spec.vocab_size)) - set(spec.forbidden_ids))
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, count: int) -> tuple[int, ...]:
        """`count` tokens."""
        indices = torch.randint(len(self.allowed), (count,), generator=self.generator).tolist()
        return tuple(self.allowed[index] for index in indices)

    def finish(self, state: BlockState) -> BlockState:
        """`state` with its masked slots filled."""
        return replace(state, tokens=self._filled(state, len(state.masked_slots)))

    def among(self, state: BlockState, count: int) -> list[Replica]:
        """`state` in the middle of `count` states of the same block that are not read, with one masked slot filled,
        two, and so on."""
        most = max(len(state.masked_slots) - 1, 1)
        siblings = [
            Replica(replace(state, tokens=self._filled(state, 1 + number % most)), read=False)
            for number in range(count)
        ]
        return [*siblings[: count // 2], Replica(state), *siblings[count // 2 :]]

    def _filled(self, state: BlockState, count: int) -> tuple[int, ...]:
        new = dict(zip(state.masked_slots, self.draw(count), strict=False))
        return tuple(new.get(slot, token) for slot, token in enumerate(state.tokens))
