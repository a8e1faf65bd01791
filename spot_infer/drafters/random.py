"""A drafter that knows nothing: random slots and random or deliberately unlikely tokens. For tests of losslessness."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from spot_infer.blocks import Commit
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, DraftGraph

RandomMode = Literal["random", "wrong"]


class RandomDrafter:
    """Grows a random graph up to the budget. The same seed, request and root always give the same graph.

    `random` draws a slot's token from the stale table's 32 candidates, `wrong` never takes its likeliest or drawn one.
    """

    def __init__(self, seed: int = 0, mode: RandomMode = "random", merged: bool = True) -> None:
        if mode not in get_args(RandomMode):
            raise SpotError(f"random.mode is {mode!r}; use {' or '.join(get_args(RandomMode))}")
        self.seed = seed
        self.mode = mode
        self.merged = merged

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        return [self._graph(context) for context in contexts]

    def _graph(self, context: DraftContext) -> DraftGraph:
        state = context.state
        filled_tokens = [token for token in state.tokens if token != state.mask_id]
        name = f"{self.seed}:{context.request}:{state.start}:{state.masked_slots}:{filled_tokens}".encode()
        generator = np.random.default_rng(int.from_bytes(hashlib.sha256(name).digest()[:8], "little"))
        graph = DraftGraph(merged=self.merged)
        table = context.tables[0]
        masked = state.masked_slots
        tokens = {slot: self._tokens(context, index) for index, slot in enumerate(table.slots.tolist())}
        for _ in range(4 * context.budget):
            if len(graph) >= context.budget:
                break
            node = int(generator.integers(len(graph.keys)))
            filled = {commit.position - state.start for commit in graph.commits[node]}
            open_slots = [slot for slot in masked if slot not in filled and tokens[slot]]
            if len(filled) >= context.room or not open_slots:
                continue
            slot = int(generator.choice(open_slots))
            commit = Commit(state.start + slot, int(generator.choice(tokens[slot])))
            graph.add(node, frozenset((commit,)), graph.masses[node] * float(generator.uniform(0.1, 1.0)))
        return graph

    def _tokens(self, context: DraftContext, index: int) -> list[int]:
        table = context.tables[0]
        tokens = [token for token in table.top_token[index].tolist() if token >= 0]
        if self.mode == "random":
            return tokens
        likeliest = {tokens[0]} if tokens else set()
        if table.drawn_token is not None:
            likeliest.add(int(table.drawn_token[index]))
        return [token for token in tokens if token not in likeliest]
