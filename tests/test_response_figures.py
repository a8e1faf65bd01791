"""What rejected states foresee, with and without them; `-m figures -s` prints docs/decoding.md's tables.

Decodes prompts of the held-out pool at D20 under the float32 rule. At every root that was drafted from, the drafter is
asked for the next commit in the states that were then passed, and the stale tokens are compared with those committed.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
import torch

from spot_infer import load_drafter, load_target
from spot_infer.api import encode_prompt
from spot_infer.blocks import Commit
from spot_infer.decode import decode
from spot_infer.drafters import OrderDrafter
from spot_infer.graph import DraftContext, DraftGraph
from spot_infer.noise import GumbelNoise
from spot_infer.packaged import packaged
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets.protocol import Target
from spot_infer.transition import Sampling, confidence, draw, draw_from_all

pytestmark = pytest.mark.figures

PROMPTS = 50
DEPTHS = ((0,), (1,), (2,), (3, 4), (5, 6, 7))
PROBABILITIES = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)


class Asked:
    """A drafter that keeps the contexts of a request."""

    def __init__(self, drafter: OrderDrafter) -> None:
        self.drafter, self.tables_read, self.reads_responses = drafter, drafter.tables_read, True
        self.contexts: list[DraftContext] = []

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        self.contexts += contexts
        return self.drafter.propose(contexts)


def foreseen(drafter: OrderDrafter, context: DraftContext, commits: Sequence[int]) -> Iterator[tuple[int, float, bool]]:
    """(depth, -log q, wrong) of every next commit: slots that were filled from the root on."""
    slots = context.tables[0].slots.tolist()
    queries = [(0, tuple(sorted(commits[:depth])), depth) for depth in range(len(commits))]
    for depth, law in enumerate(drafter.score([context])(queries)):
        label = slots.index(commits[depth])
        yield depth, -float(np.log(max(law[label], 1e-12))), int(law.argmax()) != label


def decoded(target: Target, drafter: OrderDrafter) -> Iterator[tuple[list[DraftContext], list[Commit]]]:
    """Of every prompt the contexts that were drafted from, and its commits."""
    rows = [json.loads(line) for line in packaged("data/pools/heldout.jsonl").read_text().splitlines()][:PROMPTS]
    for row in rows:
        asked = Asked(drafter)
        rounds = list(decode(target, [Request(encode_prompt(target, row["prompt"]))], DecodeSettings(budget=20), asked))
        yield asked.contexts, [commit for one in rounds for step in one.steps for commit in step]


def test_what_responses_foresee() -> None:
    target, drafter = load_target("builtin:data/tiny-sdar"), load_drafter("builtin:data/tiny-sdar-drafter-one-call")
    with_them: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    without: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for contexts, steps in decoded(target, drafter):
        place = {position: index for index, (position, _) in enumerate(steps)}
        for context in contexts:
            start, end = context.state.start, context.state.start + len(context.state.tokens)
            ahead = sorted(place[start + slot] for slot in context.state.masked_slots if start + slot in place)
            commits = [steps[index][0] - start for index in islice(ahead, 8)]
            assert all(start <= steps[index][0] < end for index in ahead)
            for found, one in ((with_them, context), (without, replace(context, responses=None))):
                for depth, loss, wrong in foreseen(drafter, one, commits):
                    found[depth].append((loss, wrong))
    print(
        "\n| steps beyond the root | states | errors without | with | loss without | with |\n|---|---|---|---|---|---|"
    )
    for depths in DEPTHS:
        cells = []
        for found in (without, with_them):
            loss, wrong = np.array([one for depth in depths for one in found[depth]]).mean(axis=0)
            cells.append((loss, wrong))
        (loss, wrong), (less, fewer) = cells
        states = sum(len(without[depth]) for depth in depths)
        name = f"{depths[0]}" if len(depths) == 1 else f"{depths[0]} to {depths[-1]}"
        print(f"| {name} | {states} | {wrong:.3f} | {fewer:.3f} | {loss:.3f} | {less:.3f} |")
        assert fewer < wrong


def test_what_votes_foresee() -> None:
    target, drafter = load_target("builtin:data/tiny-llada2"), load_drafter("builtin:data/tiny-llada2-drafter-one-call")
    found: list[tuple[float, bool, bool, bool]] = []
    for contexts, steps in decoded(target, drafter):
        committed = dict(steps)
        for context in contexts:
            table, start = context.tables[0], context.state.start
            for slot, (token, *_), logprob in zip(
                table.slots.tolist(), table.top_token, table.top_logprob, strict=True
            ):
                votes = (context.votes or {}).get(slot)
                if votes and slot in context.state.masked_slots and start + slot in committed:
                    right = committed[start + slot] == token
                    other = max((share, one) for one, share in {**votes, int(token): 0.0}.items())[1]
                    found.append(
                        (
                            np.exp(np.float64(logprob[0])),
                            votes.get(int(token)) == 1,
                            right,
                            other == committed[start + slot],
                        )
                    )
    rows = np.array(found, dtype=float)
    print(
        "\n| probability of the stale token | slots, all states name it | it is committed | slots, some name another | "
        "it is committed | the most named other one is |\n|---|---|---|---|---|---|"
    )
    for low, high in pairwise(PROBABILITIES):
        near = rows[(rows[:, 0] >= low) & (rows[:, 0] < high + (high == 1))]
        agreed, torn = near[near[:, 1] == 1], near[near[:, 1] == 0]
        kept = [each[:, 2].mean() for each in (agreed, torn)]
        other = torn[:, 3].mean()
        print(f"| {low:g} to {high:g} | {len(agreed)} | {kept[0]:.0%} | {len(torn)} | {kept[1]:.0%} | {other:.0%} |")
        assert kept[0] > kept[1]


def test_what_reading_a_wide_vocabulary_takes() -> None:
    """CPU time over 64 slots of a vocabulary of 151,936, beside what a greedy answer takes."""
    rows, vocabulary = 64, 151_936
    logits = 3 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))
    positions = list(range(16))
    noise, forbidden = GumbelNoise(0, vocabulary), torch.tensor([0])
    tokens: dict[str, torch.Tensor] = {}

    def drawn(top_p: float) -> torch.Tensor:
        return draw(logits, noise.rows(positions).repeat(4, 1), Sampling(1.0, top_p=top_p), forbidden)[0]

    ways = {
        "answer": lambda: confidence(logits, forbidden)[1],
        "unfiltered draw": lambda: draw_from_all(logits, noise.rows(positions).repeat(4, 1), 1.0, forbidden),
        "draw": lambda: drawn(1.0),
        "draw, top-p 0.95": lambda: drawn(0.95),
    }
    noise.rows(positions)
    spent = {}
    for name, way in ways.items():
        since = time.process_time()
        tokens[name] = way()
        spent[name] = time.process_time() - since
    same = float((tokens["unfiltered draw"] == tokens["draw, top-p 0.95"]).double().mean())
    print("\n" + ", ".join(f"{name} {one / spent['answer']:.1f}" for name, one in spent.items()), f"{same:.0%} alike")
    assert torch.equal(tokens["unfiltered draw"], tokens["draw"])
    assert spent["unfiltered draw"] < spent["draw, top-p 0.95"]
