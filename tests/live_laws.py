"""Stale and fresh laws of the tiny target along draft-free runs, for tests of what survives a fresh forward."""

from __future__ import annotations

import json
from functools import cache

from lossless_cases import run
from small_target import REPO

from spot_infer.api import encode_prompt
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets import load_target
from spot_infer.targets.protocol import Target
from spot_infer.transition import Sampling
from spot_train.compare.coupling import Pair, live_pairs


@cache
def tiny() -> Target:
    return load_target(str(REPO / "data" / "tiny-sdar"))


@cache
def pairs(temperature: float, age: int = 6) -> list[Pair]:
    """Pairs along two held-out prompts' runs at `temperature`."""
    lines = (REPO / "data" / "pools" / "heldout.jsonl").read_text().splitlines()[:2]
    prompts = [encode_prompt(tiny(), json.loads(line)["prompt"]) for line in lines]
    requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts)]
    sampling = Sampling(temperature)
    outcomes = run(tiny(), requests, DecodeSettings(max_new_tokens=40, sampling=sampling, ignore_stop=True), None)
    return [
        pair
        for request, one in zip(requests, outcomes, strict=True)
        for pair in live_pairs(tiny(), request, one.decoded.steps, sampling, age)
    ]
