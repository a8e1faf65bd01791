"""Flips by batch shape: `pytest -q -s -m figures tests/test_rule_flips.py` prints the table in docs/check.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from rounded_target import Rounded, rounded

from spot_infer.api import encode_prompt
from spot_infer.packaged import packaged
from spot_infer.prompts_io import read_prompts
from spot_infer.requests import DecodeSettings, Request
from spot_infer.transition import CommitRule
from spot_train.bench.recorded import generated
from spot_train.check.decoding import draft_free
from spot_train.check.flips import compare_runs, count_ties

pytestmark = pytest.mark.figures
COLUMNS = ("target", "rule", "same order", "same answer", "flips", "steps", "flips a 100 steps", "ties")
PROMPTS = 12
lines: list[tuple[str, ...]] = []


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    yield
    print("\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in (COLUMNS, ["---"] * len(COLUMNS), *lines)))


@pytest.fixture(scope="module", params=["tiny-sdar", "tiny-llada2"])
def target(request: pytest.FixtureRequest) -> Rounded:
    return rounded(f"builtin:data/{request.param}")


@pytest.mark.parametrize("resolution", ["float32", "bfloat16", 0.01, 0.05, 0.1])
def test_batches_of_eight_against_one_by_one(
    target: Rounded, resolution: str | float, request: pytest.FixtureRequest
) -> None:
    rows = read_prompts(packaged("data/pools/heldout.jsonl")).rows[:PROMPTS]
    requests = [Request(encode_prompt(target, row.prompt)) for row in rows]
    settings = DecodeSettings(max_new_tokens=32, batch_size=8, rule=CommitRule(resolution=resolution))
    alone, batched = (draft_free(target, requests, replace(settings, batch_size=size)) for size in (1, 8))
    flips = compare_runs(target, requests, alone, batched, settings)
    same = sum(generated(one) == generated(other) for one, other in zip(alone, batched, strict=True))
    tied, asked = count_ties(batched, settings.rule)
    counts = (f"{flips.identical}/{PROMPTS}", f"{same}/{PROMPTS}", str(len(flips.flips)), str(flips.steps))
    name = request.node.callspec.params["target"]
    lines.append((name, str(resolution), *counts, f"{100 * flips.rate:.2f}", f"{tied / asked:.0%}"))
    assert flips.largest_shift > 0 and not flips.faults
