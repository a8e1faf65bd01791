"""Drafters a target must be safe from: wrong, oversized, out of order, duplicated, finished, or about another row."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from spot_infer.blocks import Commit, Step
from spot_infer.graph import DraftContext, Drafter, DraftGraph


def generator_of(seed: int, context: DraftContext) -> np.random.Generator:
    """Random numbers that depend on the request and its root only."""
    state = context.state
    filled = [token for token in state.tokens if token != state.mask_id]
    name = f"{seed}:{context.request}:{state.start}:{state.masked_slots}:{filled}".encode()
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name).digest()[:8], "little"))


def best_tokens(context: DraftContext) -> dict[int, list[int]]:
    """Per masked slot of the root, tokens to draft, likeliest first (the coupled draw before the rest)."""
    table = context.tables[0]
    masked = set(context.state.masked_slots)
    tokens: dict[int, list[int]] = {}
    for index, slot in enumerate(table.slots.tolist()):
        if slot in masked:
            listed = [token for token in table.top_token[index].tolist() if token >= 0]
            drawn = [] if table.drawn_token is None else [int(table.drawn_token[index])]
            tokens[slot] = list(dict.fromkeys([*drawn, *listed]))
    return tokens


class ShuffledDrafter:
    """Another drafter's graphs with the same nodes in another order, parents still first; every node is added twice."""

    def __init__(self, inner: Drafter, seed: int = 0) -> None:
        self.inner = inner
        self.seed = seed

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        proposed = self.inner.propose(contexts)
        return [self._shuffled(context, graph) for context, graph in zip(contexts, proposed, strict=True)]

    def _shuffled(self, context: DraftContext, graph: DraftGraph) -> DraftGraph:
        edges = [
            (parent, node, graph.commits[node] - graph.commits[parent])
            for node in range(1, len(graph.keys))
            for parent in range(len(graph.keys))
            if graph.commits[parent] < graph.commits[node]
            and graph.child(parent, graph.commits[node] - graph.commits[parent]) == node
        ]
        random = generator_of(self.seed, context)
        out = DraftGraph(merged=graph.merged)
        place = {0: 0}
        while waiting := [edge for edge in edges if edge[0] in place and edge[1] not in place]:
            parent, node, step = waiting[int(random.integers(len(waiting)))]
            place[node] = out.add(place[parent], step, graph.masses[node])
            out.add(place[parent], step, graph.masses[node])
        return out


class HugeDrafter:
    """Ignores the budget: breadth-first over slots and their two likeliest tokens, up to `states` states."""

    def __init__(self, merged: bool, states: int = 40) -> None:
        self.merged = merged
        self.states = states

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        return [self._graph(context) for context in contexts]

    def _graph(self, context: DraftContext) -> DraftGraph:
        graph = DraftGraph(merged=self.merged)
        tokens = best_tokens(context)
        node = 0
        while node < len(graph.keys):
            filled = {commit.position - context.state.start for commit in graph.commits[node]}
            if len(filled) + 1 < len(tokens):
                for slot, rank in itertools.product(tokens, range(2)):
                    if len(graph) >= self.states:
                        return graph
                    if slot not in filled and rank < len(tokens[slot]):
                        step = frozenset([Commit(context.state.start + slot, tokens[slot][rank])])
                        graph.add(node, step, graph.masses[node] / 4)
            node += 1
        return graph


class OrdersDrafter:
    """A few slots in every order: as a tree the same states again and again, merged one node each."""

    def __init__(self, merged: bool, seed: int = 0) -> None:
        self.merged = merged
        self.seed = seed

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        return [self._graph(context) for context in contexts]

    def _graph(self, context: DraftContext) -> DraftGraph:
        graph = DraftGraph(merged=self.merged)
        tokens = best_tokens(context)
        room = min(3, len(tokens) - 1)
        slots = generator_of(self.seed, context).permutation(sorted(tokens))[:room].tolist()
        for order in itertools.permutations(slots):
            node = 0
            for slot in order:
                step = frozenset([Commit(context.state.start + slot, tokens[slot][0])])
                if len(graph) >= context.budget and graph.child(node, step) is None:
                    break
                node = graph.add(node, step, graph.masses[node] / 2)
        return graph


class SetDrafter:
    """Steps of one to three commits, right up to the finished block, with masks and forbidden ids among the tokens."""

    def __init__(self, forbidden: Sequence[int], merged: bool, seed: int = 0) -> None:
        self.forbidden = list(forbidden)
        self.merged = merged
        self.seed = seed

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        return [self._graph(context) for context in contexts]

    def _graph(self, context: DraftContext) -> DraftGraph:
        random = generator_of(self.seed, context)
        graph = DraftGraph(merged=self.merged)
        tokens = best_tokens(context)
        for _ in range(3 * context.budget):
            if len(graph) >= context.budget:
                break
            node = int(random.integers(len(graph.keys)))
            filled = {commit.position - context.state.start for commit in graph.commits[node]}
            free = sorted(set(tokens) - filled)
            if not free:
                continue
            chosen = random.permutation(free)[: int(random.integers(1, 4))].tolist()
            step: Step = frozenset(
                Commit(context.state.start + slot, self._token(tokens[slot], random)) for slot in chosen
            )
            graph.add(node, step, graph.masses[node] / 2)
        return graph

    def _token(self, tokens: list[int], random: np.random.Generator) -> int:
        if random.random() < 0.1:
            return int(random.choice(self.forbidden))
        return tokens[0] if random.random() < 0.7 else int(random.choice(tokens))


class OutlawDrafter:
    """Commits that no decoder makes: on filled positions, before the block, twice at a position, of unknown tokens."""

    def __init__(self, vocab_size: int, merged: bool, seed: int = 0) -> None:
        self.vocab_size = vocab_size
        self.merged = merged
        self.seed = seed

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        return [self._graph(context) for context in contexts]

    def _graph(self, context: DraftContext) -> DraftGraph:
        random = generator_of(self.seed, context)
        graph = DraftGraph(merged=self.merged)
        tokens = [-1, 0, 1, self.vocab_size - 1, self.vocab_size, 2**40]
        around = range(max(context.state.start - 2, 0), context.state.start + len(context.state.tokens) + 2)
        for _ in range(context.budget):
            step = frozenset(
                Commit(int(random.choice(around)), int(random.choice(tokens)))
                for _ in range(int(random.integers(1, 4)))
            )
            graph.add(int(random.integers(len(graph.keys))), step, 0.5)
        return graph


class CrossingDrafter:
    """The control's own steps over several blocks, each among decoys: another token at the same place with the rest of
    the truth under it (a finished block's twin with states of its own), two steps in one (across a block's end too),
    and a step skipped (into a block that is not open)."""

    def __init__(self, controls: Mapping[int, Sequence[Step]], mask_id: int, merged: bool, seed: int = 0) -> None:
        self.controls = controls
        self.mask_id = mask_id
        self.merged = merged
        self.seed = seed

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        return [self._graph(context) for context in contexts]

    def _graph(self, context: DraftContext) -> DraftGraph:
        random = generator_of(self.seed, context)
        state = context.state
        after = state.start + len(state.tokens)
        left = {state.start + slot for slot in state.masked_slots}
        future = [
            step
            for step in self.controls[context.request]
            if all(commit.position in left or commit.position >= after for commit in step)
        ]
        graph = DraftGraph(merged=self.merged)
        node = 0
        for index, step in enumerate(future[: int(random.integers(1, 2 * len(state.tokens) + 2))]):
            following = future[index + 1] if index + 1 < len(future) else frozenset()
            twin = frozenset(Commit(position, (token + 1) % self.mask_id) for position, token in step)
            decoys = [[twin, following], [step | following], [following]]
            for turn in random.permutation(4).tolist():
                if turn == 3:
                    child = graph.add(node, step, graph.masses[node])
                elif random.random() < 0.5:
                    below = node
                    for wrong in filter(None, decoys[turn]):
                        below = graph.add(below, wrong, graph.masses[below] / 2)
            node = child
        return graph


class SometimesDrafter:
    """Another drafter that draws a blank half of the time, so that rows with and without drafts share forwards."""

    def __init__(self, inner: Drafter, seed: int = 0) -> None:
        self.inner = inner
        self.seed = seed

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        proposed = self.inner.propose(contexts)
        return [
            graph if generator_of(self.seed, context).random() < 0.5 else DraftGraph()
            for context, graph in zip(contexts, proposed, strict=True)
        ]
