"""The attention pattern and the shapes of forwards: what may not move a state's logits, and what may by rounding only.

A line of the first kind changes something out of sight in a forward of the same shape. Not a bit may move, unless
kernels mix rows (experts do, and scales taken over a whole tensor): the line `another row` measures how much they do,
and eight times that is the others' tolerance. A line of the second kind computes the same logits in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spot_infer.packing import Layout, Packed, Replica
from spot_infer.targets.protocol import CanvasTarget, Target
from spot_train.check.probes import Probe, Tokens, alone, forward_rows, open_rows, read_rows
from spot_train.check.rounding import rounding_of

_LAYOUTS: tuple[Layout, ...] = ("batch", "concat")
_SIBLINGS = 4


@dataclass(frozen=True)
class Line:
    """One statement about a target: the largest difference of a logit that contradicts it, and what is tolerated."""

    name: str
    statement: str
    difference: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.difference <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def audit_structure(target: Target, probes: Sequence[Probe], budget: int) -> list[Line]:
    """Every line for a target, measured at `probes`, as many as drafted rounds of `budget` states need."""
    canvas = isinstance(target, CanvasTarget)
    with torch.inference_mode():
        solo = [_solo(target, probe) for probe in probes]
        largest = max(float(one.abs().max()) for one in solo)
        by_shape = rounding_of(target.spec.dtype).shapes * largest
        mixed = _another_row(target, probes)
        lines = [Line("another row", "other rows change, a row stays", mixed, by_shape)]

        def still(name: str, statement: str, measure: Callable[[Target, Probe], float]) -> None:
            difference = max(measure(target, probe) for probe in probes)
            lines.append(Line(name, statement, difference, max(8 * mixed, by_shape if _has_experts(target) else 0.0)))

        def close(name: str, statement: str, difference: float) -> None:
            lines.append(Line(name, statement, difference, by_shape))

        if not canvas:
            still("a future token", "a later block, encoded or drafted, changes; a block stays", _future_token)
        still("a sibling replica", "siblings in a forward change, a replica stays", _sibling)
        still("a pad", "padding changes, what is padded stays", _pad)
        still("the control's cache", "a state reads the same after forwards of other states", _cache_kept)
        together = max(_together(target, probe, one, budget) for probe, one in zip(probes, solo, strict=True))
        close("replica against solo", f"a state among {budget} replicas reads as it does alone", together)
        if not canvas:
            stored = max(_stored_block(target, probe) for probe in probes)
            close("next block", "behind a stored block as in one forward of all", stored)
        batches = read_rows(target, probes, alone(probes), "batch")
        close("batch invariance", f"in a batch of {len(probes)} as alone", _most(batches, solo))
        shapes = max(_shapes(target, probe, one, budget) for probe, one in zip(probes, solo, strict=True))
        close("shape invariance", "in either layout, padded or not, as alone", shapes)
    return lines


def _has_experts(target: Target) -> bool:
    """Whether tokens share their experts' matrices, so that company moves rounding wherever it falls."""
    config = getattr(getattr(target, "model", None), "config", None)
    return any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts"))


def _most(ones: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Largest difference between corresponding logits."""
    pairs = zip(ones, others, strict=True)
    return max(float((one.double() - other.double()).abs().max()) for one, other in pairs)


def _solo(target: Target, probe: Probe) -> Tensor:
    return read_rows(target, [probe], alone([probe]), "batch")[0]


def _another_row(target: Target, probes: Sequence[Probe]) -> float:
    """Change the prompts, states and replicas of all rows but one."""
    rows = list(probes) if len(probes) > 1 else [*probes, *probes]
    own = [Tokens(target.spec, 0).among(probe.state, _SIBLINGS) for probe in rows]
    before = read_rows(target, rows, own, "batch")
    moved = []
    for kept, probe in enumerate(rows):
        tokens = Tokens(target.spec, 1 + kept)
        changed = [_other_row(tokens, one) for one in rows]
        changed[kept] = probe
        others = [tokens.among(one.state, _SIBLINGS) for one in changed]
        others[kept] = own[kept]
        moved.append(_most([before[kept]], [read_rows(target, changed, others, "batch")[kept]]))
    return max(moved)


def _other_row(tokens: Tokens, probe: Probe) -> Probe:
    """Another prompt and another state with the same masked slots."""
    drawn = tokens.draw(len(probe.state.tokens))
    mask_id = probe.state.mask_id
    state = tuple(mask_id if old == mask_id else new for old, new in zip(probe.state.tokens, drawn, strict=True))
    return replace(probe, prefix=tokens.draw(len(probe.prefix)), state=replace(probe.state, tokens=state))


def _future_token(target: Target, probe: Probe) -> float:
    """Change the block after a prefix, encoded with it, and the block after a state, drafted behind it."""
    length = target.spec.block_length
    drawn = [Tokens(target.spec, seed) for seed in (0, 1)]
    encoded = [replace(probe, encoded=(*probe.prefix, *tokens.draw(length))) for tokens in drawn]
    moved = [_most(*(read_rows(target, [one], alone([one]), "batch") for one in encoded))]
    later = [Replica(tokens.finish(probe.state.following()), ancestor=0, read=False) for tokens in drawn]
    behind = [[Replica(probe.state), one] for one in later]
    moved += [_most(*(read_rows(target, [probe], [one], layout) for one in behind)) for layout in _LAYOUTS]
    return max(moved)


def _sibling(target: Target, probe: Probe) -> float:
    rows = [Tokens(target.spec, seed).among(probe.state, _SIBLINGS) for seed in (0, 1)]
    return max(_most(*(read_rows(target, [probe], [row], layout) for row in rows)) for layout in _LAYOUTS)


def _pad(target: Target, probe: Probe) -> float:
    """Change the replicas that only fill a forward up and, in a row shorter than another, the keys past its prefix."""
    wide = [Tokens(target.spec, 0).among(probe.state, 1)]
    moved = []
    for layout in _LAYOUTS:
        refills = [partial(_refill, target, seed) for seed in (0, 1)]
        filled = [read_rows(target, [probe], wide, layout, 2 + _SIBLINGS, refill) for refill in refills]
        moved.append(_most(*filled))
    if isinstance(target, CanvasTarget):
        return max(moved)
    length = target.spec.block_length
    tail = Tokens(target.spec, 2).draw(2 * length)
    longer = replace(
        probe, prefix=(*probe.prefix, *tail), state=replace(probe.state, start=probe.state.start + len(tail))
    )
    hidden = [replace(probe, encoded=(*probe.prefix, *Tokens(target.spec, seed).draw(length))) for seed in (0, 1)]
    moved.append(_most(*(read_rows(target, [one, longer], alone([one, longer]), "batch")[:1] for one in hidden)))
    return max(moved)


def _refill(target: Target, seed: int, packed: Packed) -> Packed:
    """`packed` with other tokens in what no replica owns."""
    ids = packed.input_ids.clone()
    owned = torch.zeros_like(ids, dtype=torch.bool)
    for sequence, offset in zip(packed.sequence_of, packed.offset_of, strict=True):
        owned[sequence, offset : offset + target.spec.block_length] = True
    drawn = torch.tensor(Tokens(target.spec, seed).draw(ids.numel()), device=ids.device).view_as(ids)
    return replace(packed, input_ids=torch.where(owned, ids, drawn))


def _cache_kept(target: Target, probe: Probe) -> float:
    cache = open_rows(target, [probe])
    _, before = forward_rows(target, cache, [probe], alone([probe]), "batch")
    row = Tokens(target.spec, 0).among(probe.state, _SIBLINGS)
    for layout in _LAYOUTS:
        forward_rows(target, cache, [probe], [row], layout)
    return _most(before, forward_rows(target, cache, [probe], alone([probe]), "batch")[1])


def _together(target: Target, probe: Probe, solo: Tensor, budget: int) -> float:
    row = Tokens(target.spec, 0).among(probe.state, budget)
    return max(_most(read_rows(target, [probe], [row], layout), [solo]) for layout in _LAYOUTS)


def _stored_block(target: Target, probe: Probe) -> float:
    """The block after the probe's, all masked, behind the finished one: as decoding stores it, encoded with the prompt,
    and in one forward of every block with no cache."""
    length, mask_id = target.spec.block_length, target.spec.mask_id
    finished = Tokens(target.spec, 0).finish(probe.state)
    whole = (*probe.prefix, *finished.tokens)
    behind = Probe(whole, finished.following(), probe.end)
    cache = open_rows(target, [probe])
    packed, _ = forward_rows(target, cache, [probe], [[Replica(finished, read=False)]], "batch")
    cache.promote(0, packed, 0)
    _, stored = forward_rows(target, cache, [behind], alone([behind]), "batch")
    encoded = read_rows(target, [behind], alone([behind]), "batch")
    blocks = [
        replace(finished, start=start, tokens=whole[start : start + length]) for start in range(0, len(whole), length)
    ]
    chain = [
        Replica(block, number - 1 if number else None, read=mask_id in block.tokens)
        for number, block in enumerate([*blocks, behind.state])
    ]
    start = replace(probe, prefix=(), encoded=())
    _, all_at_once = forward_rows(target, open_rows(target, [start]), [start], [chain], "batch")
    return max(_most(stored, encoded), _most(stored, all_at_once))


def _shapes(target: Target, probe: Probe, solo: Tensor, budget: int) -> float:
    read = [read_rows(target, [probe], alone([probe]), layout, pad) for layout in _LAYOUTS for pad in (0, 1 + budget)]
    return max(_most(one, [solo]) for one in read)
