"""The slow, obvious decoder that draft-free decoding must equal: no cache, no packing, one full forward a step.

It knows the target only through `full_logits(tokens, start) -> [len(tokens), V]`, the predictions for every position
while the block at `start` is active: block-causal over the absolute grid, or of a whole canvas under full attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fake_dlm import FakeTarget
from torch import Tensor
from transformers import DynamicCache

from spot_infer.blocks import Commit, Step
from spot_infer.noise import gumbel_row
from spot_infer.requests import DecodeSettings, Request
from spot_infer.transition import CommitRule, confidence, draw

FullLogits = Callable[[Sequence[int], int], Tensor]
WORD = (1 << 64) - 1


@dataclass(frozen=True)
class Decoded:
    """What a request returns and how it got there."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    steps: tuple[Step, ...]


def slow_decode(target: Any, full_logits: FullLogits, request: Request, settings: DecodeSettings) -> Decoded:
    """Decode one request, one full forward a step."""
    spec = target.spec
    stop_ids = () if settings.ignore_stop else spec.stop_ids
    prompt_length = len(request.prompt_ids)
    whole = spec.grid_origin == "prompt"
    start = prompt_length if whole else prompt_length // spec.block_length * spec.block_length
    canvas = prompt_length + math.ceil(settings.max_new_tokens / spec.block_length) * spec.block_length
    total = prompt_length + settings.max_new_tokens + 2 * spec.block_length
    sequence = [*request.prompt_ids, *[spec.mask_id] * (total - prompt_length)]
    steps: list[Step] = []
    while True:
        length = _returnable(target, sequence[prompt_length:], stop_ids, settings)
        if length is not None:
            break
        end = start + spec.block_length
        masked = [position for position in range(start, end) if sequence[position] == spec.mask_id]
        if not masked:
            start = end
            continue
        logits = full_logits(sequence[: canvas if whole else end], start)[masked]
        step = _step(masked, logits, request.seed, settings, torch.tensor(spec.forbidden_ids))
        for position, token in step:
            sequence[position] = token
        steps.append(step)
    tokens = tuple(sequence[prompt_length : prompt_length + length])
    return Decoded(tokens, *_ending(target, tokens, stop_ids, settings), tuple(steps))


def _returnable(target: Any, generated: list[int], stop_ids: Sequence[int], settings: DecodeSettings) -> int | None:
    for length in range(1, settings.max_new_tokens + 1):
        prefix = generated[:length]
        if target.spec.mask_id in prefix:
            return None
        text = target.tokenizer.decode(prefix) if settings.stop else ""
        if prefix[-1] in stop_ids or length == settings.max_new_tokens or any(s in text for s in settings.stop):
            return length
    return None


def _ending(target: Any, tokens: tuple[int, ...], stop_ids: Sequence[int], settings: DecodeSettings) -> tuple[str, str]:
    stopped = tokens[-1] in stop_ids
    text = target.tokenizer.decode(tokens[:-1] if stopped else tokens)
    for position in range(len(text)):
        if any(text.startswith(stop, position) for stop in settings.stop):
            return text[:position], "stop"
    return text, "stop" if stopped else "length"


def _step(masked: list[int], logits: Tensor, seed: int, settings: DecodeSettings, forbidden: Tensor) -> Step:
    log_odds, best, _ = confidence(logits, forbidden)
    commits = set()
    for index in _chosen(log_odds, logits, forbidden, settings.rule):
        token = int(best[index])
        if settings.sampling.temperature > 0:
            noise = torch.from_numpy(gumbel_row(seed, masked[index], logits.shape[-1]))
            token = int(draw(logits[index : index + 1], noise[None], settings.sampling, forbidden)[0])
        commits.add(Commit(masked[index], token))
    return frozenset(commits)


def _chosen(log_odds: Tensor, logits: Tensor, forbidden: Tensor, rule: CommitRule) -> list[int]:
    values = log_odds.tolist()
    if rule.ranking != "probability":
        probabilities = torch.softmax(logits, dim=-1)
        allowed = [token for token in range(logits.shape[-1]) if token not in forbidden.tolist()]
        best, second = torch.sort(probabilities[:, allowed], descending=True).values[:, :2].T
        entropy = torch.special.entr(probabilities).sum(dim=-1)
        value = best - second if rule.ranking == "margin" else -entropy
        values = (value.to(torch.bfloat16) if rule.resolution == "bfloat16" else value).tolist()
    elif rule.resolution == "bfloat16":
        values = torch.sigmoid(log_odds).to(torch.bfloat16).tolist()
    elif not isinstance(rule.resolution, str):
        edge = float(torch.logit(torch.tensor(1 - rule.resolution, dtype=torch.float64)))
        values = [min(value, edge) for value in values]
    order = sorted(range(len(values)), key=lambda index: (-values[index], index))
    if rule.selection == "one":
        return order[:1]
    if rule.selection == "quota":
        return order[: rule.quota]
    edge = float(torch.logit(torch.tensor(rule.threshold, dtype=torch.float64)))
    above = [index for index in order if float(log_odds[index]) > edge]
    return above if len(above) >= rule.quota else order[: rule.quota]


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)


def fake_full_logits(target: FakeTarget) -> FullLogits:
    """The fake target's two hash layers over a whole sequence, in plain integers, block-causal."""

    def logits_of(tokens: Sequence[int], start: int = 0) -> Tensor:
        keys = [
            _mix(_mix((position * 0xD1B54A32D192ED03) & WORD) ^ ((token * 0x8CB92BA72F3D8DD7) & WORD))
            for position, token in enumerate(tokens)
        ]
        ends = [(position // target.block_length + 1) * target.block_length for position in range(len(tokens))]
        second = [_mix(key ^ _mix(sum(keys[:end]) & WORD)) for key, end in zip(keys, ends, strict=True)]
        answers = [_mix((sum(second[:end]) & WORD) ^ own) for own, end in zip(second, ends, strict=True)]
        positions = np.arange(len(tokens), dtype=np.uint64)
        return torch.from_numpy(target.slot_logits(np.array(answers, dtype=np.uint64), positions))

    return logits_of


def model_full_logits(model: Any, block_length: int) -> FullLogits:
    """A transformers model over a whole sequence under an explicit block-causal mask."""

    @torch.inference_mode()
    def logits_of(tokens: Sequence[int], start: int = 0) -> Tensor:
        block = torch.arange(len(tokens)) // block_length
        return model(
            input_ids=torch.tensor([list(tokens)]),
            position_ids=torch.arange(len(tokens))[None],
            attention_mask=(block[:, None] >= block[None, :])[None, None],
            use_cache=False,
        ).logits[0]

    return logits_of


def canvas_full_logits(model: Any, cache: str, shift: int, block_length: int, mask_id: int) -> FullLogits:
    """A transformers model with full attention under `cache`, nothing remembered: every call opens the block anew."""

    @torch.inference_mode()
    def forward(tokens: Sequence[int], positions: Sequence[int], mask: Tensor, past: DynamicCache) -> Tensor:
        return model(
            input_ids=torch.tensor([list(tokens)]),
            position_ids=torch.tensor([list(positions)]),
            attention_mask=mask[None, None],
            cache=past,
        ).logits[0]

    def logits_of(tokens: Sequence[int], start: int) -> Tensor:
        size, end = len(tokens), start + block_length
        opening = [*tokens[:start], *[mask_id] * block_length, *tokens[end:]]
        past = DynamicCache()
        logits = forward(opening, range(size), torch.ones(size, size, dtype=torch.bool), past)
        if cache == "none" or list(tokens) == opening:
            logits = forward(tokens, range(size), torch.ones(size, size, dtype=torch.bool), DynamicCache())
            return torch.cat([logits[:1], logits[:-1]]) if shift else logits
        stop = end if cache == "dual" else size
        own, kept = range(start - shift, stop), [*range(start), *range(stop, size)]
        known = DynamicCache()
        for layer, one in enumerate(past.layers):
            known.update(one.keys[:, :, kept], one.values[:, :, kept], layer)
        mask = torch.ones(len(own), len(kept) + len(own), dtype=torch.bool)
        if shift:  # the position before the block asks with a key of its own, which only it sees
            mask[0, start - 1] = False
            mask[1:, len(kept)] = False
        found = forward([tokens[position] for position in own], own, mask, known)
        result = torch.zeros(size, logits.shape[-1], dtype=logits.dtype)
        result[start : start + len(own)] = found[: size - start]
        return result

    return logits_of
