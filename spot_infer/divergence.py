"""Where two runs of one request first differ, and by how little: what a lossless claim in finite precision must show.

In float64 drafted and draft-free runs agree exactly. In float32 and bfloat16 another packing moves logits by rounding,
and a near-tie can flip; the gap says how near it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from spot_infer.blocks import BlockState, Step
from spot_infer.noise import GumbelNoise
from spot_infer.packing import Packed, Replica, RowStates, pack
from spot_infer.requests import Request
from spot_infer.targets.protocol import CanvasTarget, PrefixCache, Target
from spot_infer.transition import CommitRule, Sampling, confidence, ranking_values


@dataclass(frozen=True)
class Divergence:
    """The first step at which two runs differ.

    step: its index in the request's trajectory; control, other: what each run committed there. kind: `order` where the
    positions differ, then gap is the difference of their ranking values (log-odds under the default rule); `token`
    where only the tokens differ, then gap is the difference of their logits (noise included at temperature > 0).
    log_odds: of the two commits' slots at that state; largest_logit: largest magnitude among their logits.
    """

    step: int
    kind: Literal["order", "token"]
    control: Step
    other: Step
    gap: float
    log_odds: tuple[float, float] = (0.0, 0.0)
    largest_logit: float = 0.0


def first_divergence(
    target: Target,
    request: Request,
    control: Sequence[Step],
    other: Sequence[Step],
    rule: CommitRule,
    sampling: Sampling,
    max_new_tokens: int | None = None,
) -> Divergence | None:
    """Compare two runs' steps; at the first difference ask the target once more, alone, how close the call was.

    `max_new_tokens`: of both runs; a target with full attention sees the masks to the end. Returns None where the runs
    are equal. A run that is a strict prefix of the other differs at its end with gap inf.
    """
    shared = min(len(control), len(other))
    step = next((index for index in range(shared) if control[index] != other[index]), shared)
    if step == len(control) == len(other):
        return None
    if step == shared:
        nothing: Step = frozenset()
        rest = (control[step] if step < len(control) else nothing, other[step] if step < len(other) else nothing)
        return Divergence(step, "order", *rest, gap=float("inf"))
    positions = [sorted(commit.position for commit in run[step]) for run in (control, other)]
    first = next(iter(sorted(control[step] - other[step])), min(control[step]))
    second = next(iter(sorted(other[step] - control[step])), min(other[step]))
    logits = _logits_at(target, request, control[:step], (first.position, second.position), max_new_tokens)
    forbidden = torch.tensor(target.spec.forbidden_ids, device=logits.device)
    log_odds = confidence(logits, forbidden)[0]
    odds, largest = (float(log_odds[0]), float(log_odds[1])), float(logits.abs().max())
    if positions[0] != positions[1]:
        values = ranking_values(log_odds, rule, logits, forbidden)
        return Divergence(step, "order", control[step], other[step], float(abs(values[0] - values[1])), odds, largest)
    scores = logits[0].double()
    if sampling.temperature > 0:
        noise = GumbelNoise(request.seed, target.spec.vocab_size).rows([first.position], scores.device)[0]
        scores = scores / sampling.temperature + noise
    gap = float(abs(scores[first.token] - scores[second.token]))
    return Divergence(step, "token", control[step], other[step], gap, odds, largest)


def _logits_at(
    target: Target, request: Request, steps: Sequence[Step], positions: Sequence[int], max_new_tokens: int | None
) -> torch.Tensor:
    """Logits [len(positions), V] at masked positions of the state after `steps`, from a forward of that state alone."""
    length, mask_id = target.spec.block_length, target.spec.mask_id
    canvas = dict(enumerate(request.prompt_ids)) | {commit.position: commit.token for step in steps for commit in step}
    origin = target.spec.first_block(len(request.prompt_ids))
    start = origin + (positions[0] - origin) // length * length
    prefix = [canvas[position] for position in range(start)]
    known = [canvas.get(position, mask_id) for position in range(start, start + length)]
    with torch.inference_mode():
        cache = target.new_cache()
        row = cache.add_row()
        target.prefill(cache, [row], [prefix])
        state = BlockState(start, tuple(known), mask_id)
        if isinstance(target, CanvasTarget):
            packed, hidden = _in_canvas(target, cache, prefix, state, len(request.prompt_ids), max_new_tokens)
        else:
            packed = pack([RowStates(row, start, (Replica(state),))], "concat", target.device)
            hidden = target.forward(packed, cache)
        slots = packed.read_slot.tolist()
        return target.logits(hidden[[slots.index(position - start) for position in positions]])


def _in_canvas(
    target: CanvasTarget,
    cache: PrefixCache,
    prefix: Sequence[int],
    state: BlockState,
    prompt_length: int,
    max_new_tokens: int | None,
) -> tuple[Packed, torch.Tensor]:
    """A forward of `state` under what its block's opening left in the cache; the opening itself where it is that."""
    if max_new_tokens is None:
        raise ValueError("a target with full attention needs max_new_tokens to say where its canvas ends")
    end = target.spec.blocks_end(prompt_length, max_new_tokens)
    target.open_blocks(cache, [[*prefix, *[state.mask_id] * (end - state.start)]], [state.start])
    opening = BlockState(state.start, (state.mask_id,) * len(state.tokens), state.mask_id)
    for one in dict.fromkeys((opening, state)):
        packed = target.pack([RowStates(0, cache.lengths[0], (Replica(one),))], cache, "concat", 0)
        hidden = target.forward(packed, cache)
    return packed, hidden
