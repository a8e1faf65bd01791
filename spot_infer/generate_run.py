"""What `spot-infer generate` does once its flags are parsed: load, decode, show or write."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from spot_infer.api import GenerationConfig, rule_mismatch
from spot_infer.checkpoint import load_drafter
from spot_infer.decode import decode
from spot_infer.drafters import OddsTreeDrafter, OrderDrafter
from spot_infer.encoded_prompts import encode_rows
from spot_infer.errors import SpotError
from spot_infer.graph import Drafter
from spot_infer.live import LiveView, live_frames
from spot_infer.noise import request_seed
from spot_infer.packaged import packaged
from spot_infer.presets import find_preset
from spot_infer.prompts_io import Prompts, ResultsFile
from spot_infer.requests import Request, Result, Round
from spot_infer.targets import load_target
from spot_infer.targets.protocol import Target
from spot_infer.transition import CommitRule
from spot_infer.verify import distribution_preserving, verdict_line

TARGET = "data/tiny-sdar"
DRAFTERS = {
    CommitRule(): "data/tiny-sdar-drafter-one-call",
    CommitRule(resolution="bfloat16"): "data/tiny-sdar-drafter-one-call-bf16",
}
"""The packaged target's drafters by the commit rule that they were trained under."""
UNTRAINED = "untrained"
"""The drafter's name that stands for the one which needs no training."""


@dataclass(frozen=True)
class Run:
    """A loaded target, its drafter if any, and the settings; the names are what the user called them."""

    target: Target
    drafter: Drafter | None
    config: GenerationConfig
    target_name: str
    drafter_name: str | None

    def digest(self) -> str:
        """Names everything that the text and its statistics depend on."""
        named = [self.target_name, self.drafter_name, self.target.spec.config_hash, self.target.spec.dtype]
        text = json.dumps([*named, asdict(self.config)], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Sample:
    """One request and the name of its row."""

    id: str | int
    sample: int
    request: Request


def load_run(
    target: str | None,
    drafter: str | None,
    draft_free: bool,
    config: GenerationConfig,
    loading: Mapping[str, Any],
    threads: int | None,
) -> Run:
    """Load what the flags name; without names the packaged target and its drafter. Notes go to stderr."""
    if draft_free and drafter is not None:
        raise SpotError("--draft-free and --drafter contradict each other; give one of them")
    if threads is not None:
        torch.set_num_threads(threads)
    packaged_drafter = DRAFTERS[min(DRAFTERS, key=lambda rule: abs(rule.tie_width - config.rule.tie_width))]
    loaded = load_target(packaged(TARGET) if target is None else target, **loading)
    chosen: OrderDrafter | OddsTreeDrafter | None = None
    if drafter == UNTRAINED:
        chosen = OddsTreeDrafter(config.rule)
    elif not draft_free and (drafter is not None or target is None):
        chosen = load_drafter(packaged(packaged_drafter) if drafter is None else drafter).to(device=loaded.device)
    elif not draft_free:
        _note("no --drafter was given, so decoding is draft-free; `--drafter untrained` drafts for any target")
    if isinstance(chosen, OrderDrafter):
        chosen.check_block_length(loaded.spec.block_length)
        if mismatch := rule_mismatch(chosen, config.rule):
            _note(mismatch)
    if chosen is not None and config.settings(drafted=True).verifier_in_force == "rejection":
        chosen = chosen.as_chain()
        _note("rejection sampling verifies chains, so the drafter drafts no branches")
    verdict = distribution_preserving(loaded.spec, config.settings(drafted=chosen is not None))
    if not verdict[0]:
        _note(verdict_line(*verdict))
    name = None if chosen is None else drafter or packaged_drafter
    formed = None if chosen is None else find_preset(config.preset).apply(chosen)
    return Run(loaded, formed, _with_curve(config, loaded, formed), target or TARGET, name)


def _with_curve(config: GenerationConfig, target: Target, drafter: Drafter | None) -> GenerationConfig:
    """Where budget is auto, the configuration with the curve it works with, so that results are kept under it."""
    curve = config.settings_on(target, drafter).curve
    if curve is None:
        return config
    _note(f"budget auto on the cost curve {curve.name} ({curve.source})")
    return replace(config, cost_curve=curve)


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def _samples(run: Run, prompts: Prompts) -> list[Sample]:
    """Every row's samples, each checked; an error names the line it comes from."""
    return [
        Sample(row.id, number, Request(ids, request_seed(run.config.seed, ids, number)))
        for row, ids in encode_rows(run.target, prompts, run.config.max_new_tokens, run.config.raw)
        for number in range(run.config.n)
    ]


def _rounds(run: Run, samples: Sequence[Sample], record: bool = False) -> Iterator[Round]:
    settings = run.config.settings(run.drafter is not None)
    return decode(run.target, [sample.request for sample in samples], settings, run.drafter, record)


def generate_to_file(run: Run, prompts: Prompts, output: Path) -> None:
    """Decode a prompt file into a results file, skipping the samples that it already holds."""
    samples = _samples(run, prompts)
    with ResultsFile(output, {"prompts": prompts.digest, "settings": run.digest()}) as results:
        missing = [sample for sample in samples if (sample.id, sample.sample) not in results.done]
        kept = len(samples) - len(missing)
        done = (round_.result for round_ in _rounds(run, missing) if round_.result is not None)
        shown = track(done, "decoding", total=len(missing), console=Console(stderr=True), transient=True)
        for result in shown:
            sample = missing[result.request]
            results.append(sample.id, sample.sample, _fields(result))
    _note(f"{output}: {len(missing)} samples decoded, {kept} were already there")


def generate_to_terminal(run: Run, prompts: Prompts, *, as_json: bool, live: bool | None, pace_s: float) -> None:
    """Decode and print: JSON rows, or the live picture followed by every text."""
    samples = _samples(run, prompts)
    console = Console()
    show = not as_json and (console.is_terminal if live is None else live)
    rounds = _rounds(run, samples, record=show and run.drafter is None)
    if as_json:
        for result in _results(rounds):
            row = {"id": samples[result.request].id, "sample": samples[result.request].sample, **_fields(result)}
            print(json.dumps(row, ensure_ascii=False), flush=True)
        return
    if show:
        rounds = iter(_shown(run, rounds, console, pace_s))
    for result in sorted(_results(rounds), key=lambda result: result.request):
        sample = samples[result.request]
        if len(samples) > 1:
            print(f"[{sample.id}.{sample.sample}]", flush=True)
        print(result.text, flush=True)
        print(_summary(result), file=sys.stderr)


def _results(rounds: Iterable[Round]) -> Iterator[Result]:
    return (round_.result for round_ in rounds if round_.result is not None)


def _shown(run: Run, rounds: Iterable[Round], console: Console, pace_s: float) -> list[Round]:
    """Show every round and keep those that carry a result."""
    tokenizer = run.target.tokenizer

    def new_view() -> LiveView:
        return LiveView(
            lambda token: tokenizer.decode([token]),
            lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True),
            run.drafter is not None,
            run.target.spec.cache == "exact",
        )

    kept = []
    with live_frames(new_view, console, pace_s) as show:
        for round_ in rounds:
            show(round_)
            if round_.result is not None:
                kept.append(round_)
    return kept


def _fields(result: Result) -> dict[str, Any]:
    stats = asdict(result.stats) | {
        "accepted_per_round": result.stats.accepted_per_round,
        "draft_free_nfe": result.stats.draft_free_nfe,
    }
    return {"text": result.text, "tokens": result.tokens, "finish_reason": result.finish_reason, "stats": stats}


def _summary(result: Result) -> str:
    stats, free = result.stats, result.stats.draft_free_nfe
    return (
        f"{len(result.tokens)} tokens ({result.finish_reason}) · NFE {stats.nfe} · draft-free {free} · "
        f"{free / stats.nfe:.2f}x fewer forwards · {stats.accepted_per_round:.1f} accepted a round · "
        f"{stats.wall_s:.2f} s"
    )
