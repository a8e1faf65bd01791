"""The public calls: prompts in, results out. Turns prompts into requests; the decode loop does the rest."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from spot_infer.allocate import MOST_STATES
from spot_infer.bitwise import bitwise_settings
from spot_infer.cost import CostCurve, load_curve
from spot_infer.decode import decode
from spot_infer.errors import SpotError
from spot_infer.graph import Drafter
from spot_infer.machine_curve import machine_curve
from spot_infer.noise import request_seed
from spot_infer.packing import Layout
from spot_infer.presets import PresetName, find_preset
from spot_infer.requests import Boundary, DecodeSettings, Request, Result, Round, Verifier, check_settings
from spot_infer.targets.protocol import Target
from spot_infer.transition import CommitRule, Sampling

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]] | torch.Tensor | NDArray[np.integer]


@dataclass(frozen=True)
class GenerationConfig:
    """How to generate. The output depends on the fields up to `rule`; those after it change speed only.

    max_new_tokens: most tokens returned a sample. temperature: 0 is greedy. top_k: 0 keeps all tokens; top_p: 1 keeps
    all. seed: of the run; a request's own seed is derived from it, the prompt and the sample's number. n: samples a
    prompt. stop: strings that end a sample. ignore_stop: decode to the limit whatever the tokens. raw: string prompts
    skip the chat template. rule: the commit rule.
    budget: most drafted states a round, or `auto`: as many as pay, which `cost_curve` says (a curve, its name or file;
    None measures this machine once and keeps what it found). floor: smallest mass worth verifying. pad: fill every
    forward up to 1 + budget replicas a row. layout: how replicas are laid out. batch_size: samples decoded together.
    boundary: a finished block is cached by a forward of its own (`separate`), or by the next block's first, and drafts
    run on into it (`fused`), and the forward that encodes the prompt opens the first block (`seamless`); `auto` is
    `seamless` wherever it is exact. preset: `paper` for separate boundaries, a tree in place of a merged graph and
    stale tables alone, `default` for none of them. verifier: how drafts are accepted at temperature > 0; `greedy` and
    `rejection` change the tokens, `greedy` their distribution too. bitwise: every forward has one shape, so that
    drafted and draft-free runs of the same prompts agree to the bit; implies layout batch and boundary separate.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    n: int = 1
    stop: Sequence[str] = ()
    ignore_stop: bool = False
    raw: bool = False
    rule: CommitRule = field(default_factory=CommitRule)
    budget: int | Literal["auto"] = 8
    cost_curve: CostCurve | str | Path | None = None
    floor: float = 0.0
    pad: bool = False
    layout: Layout = "auto"
    batch_size: int = 8
    boundary: Boundary = "auto"
    preset: PresetName = "default"
    verifier: Verifier = "coupled"
    bitwise: bool = False

    def settings(self, drafted: bool) -> DecodeSettings:
        """The decode loop's view of this configuration. Raises SpotError for a value out of range."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if "" in stop:
            raise SpotError("stop holds an empty string; remove it")
        if self.n < 1:
            raise SpotError(f"n is {self.n}; use at least 1 sample a prompt")
        if self.layout not in get_args(Layout):
            raise SpotError(f"layout is {self.layout!r}; use {', '.join(get_args(Layout))}")
        if not 0 <= self.floor < 1:
            raise SpotError(f"floor is {self.floor}; use a mass of at least 0 and below 1")
        budget, curve = self._allocation(drafted)
        settings = DecodeSettings(
            max_new_tokens=self.max_new_tokens,
            rule=self.rule,
            sampling=Sampling(self.temperature, self.top_k, self.top_p),
            budget=budget if drafted else 0,
            floor=self.floor,
            pad=self.pad,
            layout=self.layout,
            batch_size=self.batch_size,
            ignore_stop=self.ignore_stop,
            stop=stop,
            boundary=find_preset(self.preset).boundary_beside(self.boundary),
            verifier=self.verifier,
            curve=curve,
        )
        if self.bitwise:
            settings = bitwise_settings(settings, budget)
        check_settings(settings)
        return settings

    def settings_on(self, target: Target, drafter: Drafter | None) -> DecodeSettings:
        """The same on a target, whose cost is measured where budget is auto and no curve was given."""
        settings = self.settings(drafter is not None)
        if drafter is None or self.budget != "auto" or settings.curve is not None:
            return settings
        return replace(settings, curve=machine_curve(target, drafter, settings))

    def _allocation(self, drafted: bool) -> tuple[int, CostCurve | None]:
        """The most states a round, and the curve that says how many pay, if one was given."""
        if self.budget != "auto":
            if not isinstance(self.budget, int) or isinstance(self.budget, bool):
                raise SpotError(f"budget is {self.budget!r}; use a number of drafted states, or auto")
            if self.cost_curve is not None:
                raise SpotError(
                    f"cost_curve is given beside a budget of {self.budget}; set budget to auto, or leave it out"
                )
            return self.budget, None
        if self.floor or self.pad or self.bitwise:
            raise SpotError("budget auto drafts what pays, so it takes no floor, pad or bitwise; leave them out")
        if self.cost_curve is None or isinstance(self.cost_curve, CostCurve) or not drafted:
            return MOST_STATES, self.cost_curve if isinstance(self.cost_curve, CostCurve) and drafted else None
        return MOST_STATES, load_curve(self.cost_curve)


@dataclass(frozen=True)
class Delta:
    """A span of one sample that has become final: its ids and text, and the whole result with the last one."""

    request: int
    tokens: tuple[int, ...]
    text: str
    result: Result | None


def generate(
    target: Target, prompts: Prompt | Iterable[Prompt], config: GenerationConfig, drafter: Drafter | None = None
) -> list[Result]:
    """Decode every prompt; `config.n` results a prompt, in prompt order. Drafted and draft-free return the same tokens.

    A string is one user message through the target's chat template; a list of messages is taken as it is, and so are
    token ids in a list or in an array or tensor of one dimension. `prompts` is one prompt or any iterable of them.
    Raises SpotError before the first forward where a prompt can't be decoded.
    """
    done = [round_.result for round_ in rounds(target, prompts, config, drafter) if round_.result is not None]
    return sorted(done, key=lambda result: result.request)


def rounds(
    target: Target, prompts: Prompt | Iterable[Prompt], config: GenerationConfig, drafter: Drafter | None = None
) -> Iterator[Round]:
    """The same decoding, forward by forward. `Round.request` is prompt index * n + sample."""
    if message := rule_mismatch(drafter, config.rule):
        warnings.warn(message, stacklevel=2)
    requests = [
        Request(ids, request_seed(config.seed, ids, sample))
        for ids in (encode_prompt(target, prompt, config.raw) for prompt in _as_prompts(prompts))
        for sample in range(config.n)
    ]
    formed = drafter and find_preset(config.preset).apply(drafter)
    return decode(target, requests, config.settings_on(target, formed), formed)


def rule_mismatch(drafter: Drafter | None, rule: CommitRule) -> str | None:
    """A sentence where `drafter` was made for another commit rule than `rule`, which costs speed and nothing else."""
    own = getattr(drafter, "rule", None)
    if not isinstance(own, CommitRule) or own == rule:
        return None
    return (
        f"the drafter was trained under {_rule_name(own)} and runs under {_rule_name(rule)}: the output is exact, but "
        "fewer drafts will be accepted"
    )


def _rule_name(rule: CommitRule) -> str:
    changed = {name: value for name, value in rule.to_dict().items() if value != getattr(CommitRule(), name)}
    return ", ".join(f"rule.{name}={value}" for name, value in changed.items()) or "the default commit rule"


def stream(
    target: Target, prompts: Prompt | Iterable[Prompt], config: GenerationConfig, drafter: Drafter | None = None
) -> Iterator[Delta]:
    """The same decoding as spans that are final: text is held back while a stop string or a character is incomplete."""
    stop = config.settings(False).stop
    tokens: dict[int, list[int]] = {}
    sent: dict[int, int] = {}
    for round_ in rounds(target, prompts, config, drafter):
        if not round_.final_tokens and round_.result is None:
            continue
        known = tokens.setdefault(round_.request, [])
        known += round_.final_tokens
        if round_.result is not None:
            text = round_.result.text
        else:
            text = _settled(target.tokenizer.decode(known, skip_special_tokens=True), stop) if target.tokenizer else ""
        start = sent.get(round_.request, 0)
        sent[round_.request] = max(start, len(text))
        yield Delta(round_.request, round_.final_tokens, text[start:], round_.result)


def encode_prompt(target: Target, prompt: Prompt, raw: bool = False) -> tuple[int, ...]:
    """Token ids of one prompt. Raises SpotError where it is empty or needs a tokenizer or template that is missing."""
    if (ids := _token_ids(prompt)) is not None:
        return ids
    if target.tokenizer is None:
        raise SpotError(f"target {target.spec.name} has no tokenizer; pass prompts as token ids")
    if isinstance(prompt, str) and not prompt.strip():
        raise SpotError("a prompt is empty; give it some text")
    if isinstance(prompt, str) and any("\ud800" <= character <= "\udfff" for character in prompt):
        raise SpotError("a prompt is not valid Unicode text (it holds half of a surrogate pair); encode it as UTF-8")
    if raw:
        if not isinstance(prompt, str):
            raise SpotError("raw takes prompts as strings or token ids, not messages; leave raw off")
        return tuple(target.tokenizer(prompt, add_special_tokens=False)["input_ids"])
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [_message(item) for item in prompt]
    if not getattr(target.tokenizer, "chat_template", None):
        raise SpotError(f"target {target.spec.name} has no chat template; pass raw=True or token ids")
    text = target.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tuple(target.tokenizer(text, add_special_tokens=False)["input_ids"])


def _message(item: object) -> dict[str, str]:
    if not isinstance(item, Mapping) or not {"role", "content"} <= set(item):
        raise SpotError(f"a message is {item!r}; use a mapping with role and content")
    if not isinstance(item["role"], str) or not isinstance(item["content"], str):
        raise SpotError(f"a message is {item!r}; its role and content must be text")
    return {str(key): value for key, value in item.items()}


def _as_prompts(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """`prompts` as a list: one prompt where it is text, a list of messages, or token ids in a list, array or tensor."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes | bytearray | Mapping) or not isinstance(prompts, Iterable):
        raise SpotError(
            f"prompts is {type(prompts).__name__}; give text, a list of messages, token ids, or a list of these"
        )
    if isinstance(prompts, torch.Tensor | np.ndarray) and prompts.ndim == 1:
        return [prompts]
    items = list(prompts)
    return [items] if items and isinstance(items[0], Integral | Mapping) else items


def _token_ids(prompt: object) -> tuple[int, ...] | None:
    """The ids of a prompt given as token ids, None for text and messages. Raises SpotError for anything else."""
    if isinstance(prompt, torch.Tensor | np.ndarray):
        ids = prompt.tolist()
        if prompt.ndim != 1 or not all(type(token) is int for token in ids):
            shape = tuple(prompt.shape)
            raise SpotError(f"a prompt is a {prompt.dtype} array of shape {shape}; give one row of whole numbers")
        return tuple(ids)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise SpotError(f"a prompt is {type(prompt).__name__}; give text, a list of messages or token ids")
    if isinstance(prompt, str) or not all(isinstance(item, Integral) for item in prompt):
        return None
    return tuple(int(item) for item in prompt)


def _settled(text: str, stop: Sequence[str]) -> str:
    """The part of `text` that no later token can change."""
    text = text.rstrip("\ufffd")
    for string in stop:
        for length in range(min(len(string) - 1, len(text)), 0, -1):
            if text.endswith(string[:length]):
                text = text[:-length]
                break
    return text
