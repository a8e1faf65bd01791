"""Bitwise mode: every forward has one shape, so drafted and draft-free runs agree to the bit in any dtype.

Kernels may add in another order where a matrix has another size. Here none has: a forward always holds as many
sequences of one block, its keys are padded to one length, a prompt is encoded alone, and the head reads as many rows at
once. What remains is that a sequence's bits depend neither on its row nor on what else is in the forward, which
`fixed_shape` measures before the first one. Knows nothing about drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spot_infer.answers import read_logits
from spot_infer.blocks import BlockState
from spot_infer.errors import SpotError
from spot_infer.fixed_shape import FixedShapeTarget
from spot_infer.graph import Drafter, crosses_blocks
from spot_infer.packing import Replica, RowStates, pack
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets.protocol import CanvasTarget, Target
from spot_infer.transition import confidence

_WATCHED_ROWS = 4


def bitwise_settings(settings: DecodeSettings, budget: int) -> DecodeSettings:
    """`settings` in bitwise mode, where runs of up to `budget` drafted states a round share their shape.

    Raises SpotError where another layout than batch, fused boundaries or padding were asked for.
    """
    if settings.pad:
        raise SpotError("bitwise is on, where every forward has the full shape, so pad means nothing; leave pad out")
    if settings.layout == "concat" or settings.boundary not in ("auto", "separate"):
        asked = "layout is concat" if settings.layout == "concat" else f"boundary is {settings.boundary}"
        raise SpotError(f"bitwise is on, but {asked}; leave it out: every sequence is one block there")
    return replace(settings, layout="batch", boundary="separate", sequences=settings.batch_size * (1 + budget))


def fixed_shape(
    target: Target, requests: Sequence[Request], settings: DecodeSettings, drafter: Drafter | None
) -> FixedShapeTarget:
    """`target` in the shape that `settings` and the longest of `requests` ask for, once its rows were seen not to touch
    each other.

    Raises SpotError where they do, or where forwards can't have one shape.
    """
    spec = target.spec
    if crosses_blocks(drafter):
        raise SpotError("bitwise is on, but the drafter crosses into the next block; use one that does not")
    if isinstance(target, CanvasTarget):
        raise SpotError(
            f"bitwise is on, but {spec.name} has full attention, where forwards of a canvas and of a block differ in "
            "shape; leave it off"
        )
    ends = [spec.blocks_end(len(request.prompt_ids), settings.max_new_tokens) for request in requests]
    fixed = FixedShapeTarget(target, settings.sequences, max(ends, default=spec.block_length) - spec.block_length)
    if moved := moved_bits(fixed):
        raise SpotError(
            f"bitwise is on, but on this machine ({target.device.type}, {spec.dtype}) {moved}; leave it off, or use "
            "another dtype or device"
        )
    return fixed


def moved_bits(target: FixedShapeTarget) -> str | None:
    """Permute the rows of forwards and change their company: what moved, as a clause, or None where no bit did.

    Watches two forwards, the first of which writes the blocks that the second attends to, and the head.
    """
    with torch.inference_mode():
        rows = list(range(min(_WATCHED_ROWS, target.sequences)))
        first = _watched(target, rows, company=0)
        for order in (rows[::-1], rows[1:] + rows[:1]):
            moved = _difference(first, _watched(target, order, company=1 + order[0]))
            if moved:
                return f"permuting the rows of a forward moves hidden states by up to {moved:.1e}"
        answers = _log_odds(target, first)
        for shift in (1, len(first) // 2):
            moved = _difference(answers, _log_odds(target, first.roll(shift, 0)).roll(-shift, 0))
            if moved:
                return f"permuting the rows of the head moves log-odds by up to {moved:.1e}"
    return None


def _watched(target: FixedShapeTarget, order: Sequence[int], company: int) -> Tensor:
    """Hidden states of one state a row, rows laid out in `order` among states drawn from the seed `company`."""
    spec, length = target.spec, target.spec.block_length
    most = target.prefix_tokens // length
    own = torch.Generator().manual_seed(0)
    others = torch.Generator().manual_seed(1 + company)
    cache = target.new_cache()
    blocks = {row: max(most - 1, 0) * row // max(len(order) - 1, 1) for row in sorted(order)}
    prefixes = {row: _tokens(target, own, count * length) for row, count in blocks.items()}
    finished = {row: BlockState(blocks[row] * length, _tokens(target, own, length), spec.mask_id) for row in blocks}
    watched = {row: _state(target, own, finished[row].start + length * (most > 0)) for row in blocks}
    for _ in order:
        cache.add_row()
    target.prefill(cache, list(prefixes), list(prefixes.values()))
    room = target.sequences // len(order)
    for states in (finished, watched) if most else (watched,):
        laid = {
            row: [states[row], *(_state(target, others, states[row].start) for _ in range(room - 1))] for row in order
        }
        turned = -1 if order[0] else 1
        packing = [RowStates(row, cache.lengths[row], [Replica(one) for one in laid[row][::turned]]) for row in order]
        packed = target.fill(pack(packing, "batch", target.device))
        hidden = target.forward(packed, cache)
        places = {row: packed.row_states[index] + (0 if turned > 0 else room - 1) for index, row in enumerate(order)}
        if states is finished and most:
            for row, place in places.items():
                cache.promote(row, packed, place)
    starts = packed.state_start
    return torch.cat([hidden[starts[places[row]] : starts[places[row] + 1]] for row in sorted(order)])


def _tokens(target: Target, generator: torch.Generator, count: int) -> tuple[int, ...]:
    """Random tokens, none of them the mask."""
    drawn = torch.randint(target.spec.vocab_size - 1, (count,), generator=generator).tolist()
    return tuple(token + (token >= target.spec.mask_id) for token in drawn)


def _state(target: Target, generator: torch.Generator, start: int) -> BlockState:
    """A random state with a mask in it."""
    tokens = list(_tokens(target, generator, target.spec.block_length))
    masked = torch.rand(len(tokens), generator=generator) < torch.rand(1, generator=generator)
    masked[int(torch.randint(len(tokens), (1,), generator=generator))] = True
    filled = [target.spec.mask_id if hole else token for token, hole in zip(tokens, masked.tolist(), strict=True)]
    return BlockState(start, tuple(filled), target.spec.mask_id)


def _log_odds(target: FixedShapeTarget, hidden: Tensor) -> Tensor:
    """Log-odds [m] as decoding reads them."""
    forbidden = torch.tensor(target.spec.forbidden_ids, device=hidden.device)
    return read_logits(target, hidden, lambda _, logits: confidence(logits, forbidden)[:1])[0]


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max())
