"""A packed forward beside a plain one of as many positions: what laying out replicas costs beyond their arithmetic.

Plain is the model itself, called as transformers would for a batch: as many rows as there are replicas, each a block
behind a cached prefix of its own. Packed are the same blocks as replicas of one row, in either layout. Both return the
same hidden states. Knows nothing about drafts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, get_args

import torch
from torch import Tensor
from transformers import DynamicCache

from spot_infer.blocks import BlockState
from spot_infer.clock import Clock
from spot_infer.errors import SpotError
from spot_infer.packing import Layout, Replica, RowStates, pack
from spot_infer.targets.block_causal import BlockCausalTarget
from spot_infer.targets.protocol import Target

LAYOUTS: tuple[Layout, ...] = tuple(one for one in get_args(Layout) if one != "auto")
PLAIN = "plain"
Forward = Callable[[], Tensor]


def packed_against_plain(
    target: Target, sizes: Sequence[int], prefix_tokens: int, repeats: int, clock: Clock, seed: int = 0
) -> list[dict[str, Any]]:
    """One row of figures a size and layout: `plain` and `packed` seconds (medians of `repeats`, all ways in turn) and
    their `ratio`; the prefix is rounded down to whole blocks. Raises SpotError where the target is no native
    block-causal model, a size is below 1, and where prefix and block are longer than the target's context."""
    if not isinstance(target, BlockCausalTarget):
        raise SpotError(
            f"target {target.spec.name} has full attention, where a replica is no block behind a cached prefix; "
            "profile a block-causal target"
        )
    length = target.spec.block_length
    prefix_tokens = prefix_tokens // length * length
    if min(sizes) < 1:
        raise SpotError(f"--size is {min(sizes)}; use at least 1")
    if prefix_tokens + length > target.spec.max_positions:
        raise SpotError(
            f"--prefix is {prefix_tokens} and a block {length} tokens, but target {target.spec.name} holds "
            f"{target.spec.max_positions}; use a shorter prefix"
        )
    rows = []
    for size in sizes:
        with torch.inference_mode():
            ways = forwards(target, *_blocks(target, size, prefix_tokens, seed))
            seconds = _in_turn(ways, repeats, clock)
        plain = median(seconds[PLAIN])
        rows += [
            {
                "replicas": size,
                "positions": size * length,
                "prefix_tokens": prefix_tokens,
                "layout": layout,
                "plain": plain,
                "packed": median(seconds[layout]),
                "ratio": median(seconds[layout]) / plain,
            }
            for layout in LAYOUTS
        ]
    return rows


def forwards(target: BlockCausalTarget, prefix: Sequence[int], states: Sequence[BlockState]) -> dict[str, Forward]:
    """The plain forward and the packed ones over `states` behind `prefix`; each returns the hidden states [M, H] of
    all masked slots, state by state."""
    cache = target.new_cache()
    cache.add_row()
    target.prefill(cache, [0], [prefix])
    replicas = [Replica(state) for state in states]

    def way(layout: Layout) -> Forward:
        packed = pack([RowStates(0, len(prefix), replicas)], layout, target.device)
        return lambda: target.forward(packed, cache)

    return {PLAIN: _plain(target, prefix, states), **{layout: way(layout) for layout in LAYOUTS}}


def _plain(target: BlockCausalTarget, prefix: Sequence[int], states: Sequence[BlockState]) -> Forward:
    length, count = target.spec.block_length, len(states)
    past = DynamicCache()
    decoder: Any = target.model.get_decoder()

    def run(ids: Tensor, start: int, mask: Tensor) -> Tensor:
        positions = torch.arange(start, start + ids.shape[1], device=target.device).expand(count, -1)
        return decoder(
            input_ids=ids, position_ids=positions, attention_mask=mask, cache=past, use_cache=True
        ).last_hidden_state

    if prefix:
        block = torch.arange(len(prefix), device=target.device) // length
        mask = (block[:, None] >= block[None, :]).expand(count, 1, -1, -1)
        run(torch.tensor([list(prefix)] * count, device=target.device), 0, mask)
    ids = torch.tensor([state.tokens for state in states], device=target.device)
    sees = torch.ones(count, 1, length, len(prefix) + length, dtype=torch.bool, device=target.device)
    masked = torch.tensor(
        [number * length + slot for number, state in enumerate(states) for slot in state.masked_slots],
        device=target.device,
    )

    def forward() -> Tensor:
        hidden = run(ids, len(prefix), sees)
        past.crop(-length)
        return hidden.flatten(0, 1)[masked]

    return forward


def _blocks(target: Target, size: int, prefix_tokens: int, seed: int) -> tuple[list[int], list[BlockState]]:
    """A prefix of random tokens, and blocks behind it of which every other slot is masked."""
    spec, draws = target.spec, random.Random(seed)
    allowed = [token for token in range(spec.vocab_size) if token not in {spec.mask_id, *spec.forbidden_ids}]
    prefix = draws.choices(allowed, k=prefix_tokens)
    tokens = [draws.choices(allowed, k=spec.block_length) for _ in range(size)]
    blocks = [tuple(token if slot % 2 else spec.mask_id for slot, token in enumerate(one)) for one in tokens]
    return prefix, [BlockState(prefix_tokens, one, spec.mask_id) for one in blocks]


def _in_turn(ways: dict[str, Forward], repeats: int, clock: Clock) -> dict[str, list[float]]:
    """Seconds of every way, all of them once a repeat in a new order; the first repeat warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for repeat in range(1 + repeats):
        random.Random(repeat).shuffle(order)
        for name in order:
            started = clock.now()
            ways[name]()
            if repeat:
                seconds[name].append(clock.now() - started)
    return seconds
