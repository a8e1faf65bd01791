"""q over the slots of contexts' stale tables, for the states that the draft search asks about.

`LevelScores` asks the network about every level of the search, in chunks of states with about as many slots.
`OneCallScores` asks it once about all tables, and scores every later level from what it said, on the CPU: one
synchronisation with the device a proposal. Either computes a table's features once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spot_infer.draft import Query
from spot_infer.drafters.odds_order import most_odds, odds_scores, shares
from spot_infer.features import pad_rows, ragged_features
from spot_infer.graph import DraftContext
from spot_infer.order_model import OrderModel
from spot_infer.responses import bounded
from spot_infer.set_scores import HeadArrays, SetScores, as_array
from spot_infer.table import lay_tables

TRAINED_SHARE, ODDS_SHARE = 0.8, 0.5
"""Weights of the network's moved scores and of `odds_scores`, which alone knows the places that responses lead to;
chosen on held-out prompts of two targets. A network trained under a rule with ties knows their places better."""
_CHUNK_STATES = {"cpu": 32}
"""States a chunk on a CPU, so that a chunk's activations stay in its cache and few slots are padding."""
_MOST_STATES = 2048


class StaleInputs:
    """What the network reads of N contexts, their tables padded to the widest, m slots.

    table f32 [N, m, F - 2] on the network's device; slot i64, valid and root bool [N, m]; lengths i64 [N]; filled bool
    [N, L]: slots that are filled in the root. responses: f32 [m, m] a context, what filling a slot of its table adds to
    the log-odds of the others; None where nothing was measured.
    """

    def __init__(self, model: OrderModel, contexts: Sequence[DraftContext], response: float) -> None:
        config = model.config
        masked = np.zeros((len(contexts), config.block_length), dtype=bool)
        for index, context in enumerate(contexts):
            masked[index, list(context.state.masked_slots)] = True
        self.filled = ~masked
        tables = lay_tables([context.tables[0] for context in contexts])
        before = lay_tables([context.tables[1] if len(context.tables) > 1 else None for context in contexts])
        features = ragged_features(tables, before, self.filled, config.features, config.rule)
        rows, self.valid = pad_rows(tables.start, np.arange(len(contexts)))
        self.device = model.input.weight.device
        self.lengths = np.diff(tables.start)
        self.slot = tables.slot.astype(np.int64)[rows]
        self.table = torch.from_numpy(features[rows]).to(self.device)
        self.root = np.take_along_axis(self.filled, self.slot, axis=1) & self.valid
        changes = [context.changes() if response else None for context in contexts]
        self.responses = [None if one is None else np.float32(response) * one for one in changes]
        self._odds = [bounded(context.tables[0].log_odds) for context in contexts]
        self._top = [context.tables[0].top_logprob for context in contexts]
        self._rule = config.rule

    def moved(self, context: int, scores: NDArray[np.float64], closed: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The network's scores [Q, m] of one context's states, moved by what responses say of its filled slots `closed`
        [Q, m], as far as the rule tells log-odds apart; where it tells all apart, blended with the order that this
        leads to."""
        responses, stale = self.responses[context], self._odds[context]
        if responses is None:
            return scores
        odds = stale + closed.astype(np.float32) @ responses
        most = most_odds(self._rule)
        scores = scores + np.minimum(odds, most) - np.minimum(stale, most)
        if self._rule.tie_width:
            return scores
        order = odds_scores(odds, closed, self._top[context], self._rule)
        return TRAINED_SHARE * scores + ODDS_SHARE * order

    def taken(self, queries: Sequence[Query]) -> tuple[NDArray[np.int64], int, NDArray[np.bool_]]:
        """The queries' contexts [Q], their widest table m, and its slots that are filled in each state, [Q, m]."""
        contexts = np.array([context for context, _, _ in queries])
        width = int(self.lengths[contexts].max())
        filled = self.filled[contexts]
        path_rows = np.repeat(np.arange(len(queries)), [len(path) for _, path, _ in queries])
        filled[path_rows, [slot for _, path, _ in queries for slot in path]] = True
        places = np.arange(len(queries))[:, None]
        return contexts, width, filled[places, self.slot[contexts, :width]] & self.valid[contexts, :width]

    def chunks(self, contexts: Sequence[int], most: int | None) -> list[list[int]]:
        """Indices into `contexts`, shortest tables first, `most` at a time (None for what suits the device)."""
        size = most or _CHUNK_STATES.get(self.device.type, _MOST_STATES)
        shortest_first = sorted(range(len(contexts)), key=lambda index: self.lengths[contexts[index]])
        return [shortest_first[first : first + size] for first in range(0, len(contexts), size)]


class LevelScores:
    """One network call for all queries of a level."""

    def __init__(self, model: OrderModel, inputs: StaleInputs, tau: float, chunk_states: int | None) -> None:
        self.model, self.inputs, self.tau, self.chunk_states = model, inputs, tau, chunk_states

    def __call__(self, queries: list[Query]) -> list[NDArray[np.float64]]:
        """Probabilities [m] a query; see `draft.Score`."""
        answers: dict[int, NDArray[np.float64]] = {}
        for chunk in self.inputs.chunks([context for context, _, _ in queries], self.chunk_states):
            probabilities = self._probabilities([queries[index] for index in chunk])
            for index, row in zip(chunk, probabilities, strict=True):
                answers[index] = row[: self.inputs.lengths[queries[index][0]]]
        return [answers[index] for index in range(len(queries))]

    @torch.inference_mode()
    def _probabilities(self, queries: list[Query]) -> NDArray[np.float64]:
        inputs = self.inputs
        contexts, width, taken = inputs.taken(queries)
        scores: Tensor = self.model.level_scores(
            inputs.table[torch.from_numpy(contexts).to(inputs.device), :width],
            torch.from_numpy(inputs.slot[contexts, :width]).to(inputs.device),
            torch.from_numpy(inputs.valid[contexts, :width]).to(inputs.device),
            torch.from_numpy(taken).to(inputs.device),
            torch.tensor([depth for _, _, depth in queries], device=inputs.device),
        )
        law = scores.double().cpu()
        for state, context in enumerate(contexts.tolist()):
            if inputs.responses[context] is None:
                continue
            row, length = law[state : state + 1], int(inputs.lengths[context])
            row[:, :length] = torch.from_numpy(
                inputs.moved(context, row[:, :length].numpy(), taken[state : state + 1, :length])
            )
        return torch.softmax(law / self.tau, dim=-1).numpy()


class OneCallScores:
    """One network call for all contexts, made when the first level is asked for. `head`: the model's, as arrays."""

    def __init__(
        self, model: OrderModel, head: HeadArrays, inputs: StaleInputs, tau: float, chunk_states: int | None
    ) -> None:
        self.model, self.head, self.inputs, self.tau, self.chunk_states = model, head, inputs, tau, chunk_states
        self._tables: list[SetScores] = []

    def __call__(self, queries: list[Query]) -> list[NDArray[np.float64]]:
        """Probabilities [m] a query; see `draft.Score`."""
        self._tables = self._tables or self._encoded()
        return [row for context, asked in groupby(queries, itemgetter(0)) for row in self._laws(context, list(asked))]

    def _laws(self, context: int, queries: list[Query]) -> NDArray[np.float64]:
        """Probabilities [Q, m] of one context's queries."""
        inputs = self.inputs
        filled = np.repeat(inputs.filled[context, None], len(queries), axis=0)
        for state, (_, path, _) in zip(filled, queries, strict=True):
            state[list(path)] = True
        closed = filled[:, inputs.slot[context, : inputs.lengths[context]]]
        law = self._tables[context](closed, [depth for _, _, depth in queries]).astype(np.float64)
        law = inputs.moved(context, law, closed)
        law /= self.tau
        law[closed] = -np.inf
        return shares(law)

    @torch.inference_mode()
    def _encoded(self) -> list[SetScores]:
        """The network's answer for every context, one synchronisation with the device a chunk."""
        inputs = self.inputs
        tables: dict[int, SetScores] = {}
        for chunk in inputs.chunks(range(len(inputs.lengths)), self.chunk_states):
            width = int(inputs.lengths[chunk].max())
            slot, valid, root = (
                torch.from_numpy(array[chunk, :width]).to(inputs.device)
                for array in (inputs.slot, inputs.valid, inputs.root)
            )
            told = as_array(self.model.encode(inputs.table[chunk, :width], slot, valid, root))
            for index, code in zip(chunk, told, strict=True):
                length = inputs.lengths[index]
                tables[index] = SetScores(self.head, code[:length], inputs.slot[index, :length])
        return [tables[index] for index in range(len(inputs.lengths))]
