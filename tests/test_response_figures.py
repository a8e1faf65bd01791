"""How well the next commit is foreseen with and without responses; `-m figures -s` prints docs/decoding.md's table.

Decodes prompts of the held-out pool at D20 under the float32 rule and asks the drafter, at every root it drafted from,
about the states that were then passed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from spot_infer import load_drafter, load_target
from spot_infer.api import encode_prompt
from spot_infer.decode import decode
from spot_infer.drafters import OrderDrafter
from spot_infer.graph import DraftContext, DraftGraph
from spot_infer.packaged import packaged
from spot_infer.requests import DecodeSettings, Request

pytestmark = pytest.mark.figures

PROMPTS = 50
DEPTHS = ((0,), (1,), (2,), (3, 4), (5, 6, 7))


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


def test_what_responses_foresee() -> None:
    target, drafter = load_target("builtin:data/tiny-sdar"), load_drafter("builtin:data/tiny-sdar-drafter-one-call")
    rows = [json.loads(line) for line in packaged("data/pools/heldout.jsonl").read_text().splitlines()][:PROMPTS]
    with_them: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    without: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for row in rows:
        asked = Asked(drafter)
        rounds = list(decode(target, [Request(encode_prompt(target, row["prompt"]))], DecodeSettings(budget=20), asked))
        steps = [(position, token) for one in rounds for step in one.steps for position, token in step]
        place = {position: index for index, (position, _) in enumerate(steps)}
        for context in asked.contexts:
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
