"""The SPOT drafter: the trained commit order and the stale tokens, searched into a draft graph (paper section 4.2).

Every level of the search asks for all unexpanded states of all contexts at once, which is one network call (in chunks
of states with about as many slots); a table's features are computed once a round, since only the two path features
change with a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spot_infer.draft import Query, Score, search
from spot_infer.drafters.hypotheses import RUNNER_UP_BELOW, token_hypotheses
from spot_infer.errors import SpotError
from spot_infer.features import many_table_features, pad_rows
from spot_infer.graph import DraftContext, DraftGraph
from spot_infer.order_model import OrderModel
from spot_infer.transition import CommitRule

_CHUNK_STATES = {"cpu": 32}
"""States a chunk on a CPU, so that a chunk's activations stay in its cache and few slots are padding."""
_MOST_STATES = 2048


@dataclass(frozen=True)
class DraftSettings:
    """How the order model is searched.

    tau: calibration temperature of q (above 1 flattens it); merged: one node for all orders that reach a state, false
    for the paper's tree; runner_up_below: the second token is drafted too where the first is less probable.
    """

    tau: float = 1.0
    merged: bool = True
    runner_up_below: float = RUNNER_UP_BELOW

    def __post_init__(self) -> None:
        for name, low in (("tau", 0.0), ("runner_up_below", -1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value < float("inf"):
                raise SpotError(f"draft.{name} is {value!r}; expected a finite number above {max(low, 0.0):g}")
        if not isinstance(self.merged, bool):
            raise SpotError(f"draft.merged is {self.merged!r}; use true or false")


class OrderDrafter:
    """Proposes the states that the order model holds most probable; with `chain`, one after another and no branches.

    chunk_states: most states scored at once, None for what suits the device.
    """

    def __init__(
        self,
        model: OrderModel,
        settings: DraftSettings | None = None,
        chain: bool = False,
        chunk_states: int | None = None,
    ) -> None:
        self.model = model.eval()
        self.settings = settings or DraftSettings()
        self.chain = chain
        self.chunk_states = chunk_states

    def as_chain(self) -> OrderDrafter:
        """The same model drafting chains, as rejection sampling needs."""
        return OrderDrafter(self.model, self.settings, True, self.chunk_states)

    def as_tree(self) -> OrderDrafter:
        """The same model drafting one node an order, the paper's form."""
        return OrderDrafter(self.model, replace(self.settings, merged=False), self.chain, self.chunk_states)

    @property
    def device(self) -> torch.device:
        return self.model.input.weight.device

    @property
    def rule(self) -> CommitRule:
        """The commit rule it was trained under."""
        return self.model.config.rule

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> OrderDrafter:
        """Move the network; returns self."""
        self.model.to(device=device, dtype=dtype)
        return self

    def check_block_length(self, block_length: int) -> None:
        """Raise SpotError where the network was trained for another block length."""
        own = self.model.config.block_length
        if own != block_length:
            raise SpotError(
                f"the drafter was trained for block length {own}, the target decodes blocks of {block_length}; use a "
                "drafter trained for this block length"
            )

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        """One graph a context, each of at most `budget` states; one network call a level of the search."""
        if not contexts:
            return []
        for context in contexts:
            self.check_block_length(len(context.state.tokens))
        hypotheses = [token_hypotheses(context, self.settings.runner_up_below) for context in contexts]
        return search(contexts, self.score(contexts), hypotheses, self.settings.merged, width=1 if self.chain else None)

    def score(self, contexts: Sequence[DraftContext]) -> Score:
        """What the search asks: q over each context's table slots."""
        return OrderScores(self.model, contexts, self.settings.tau, self.chunk_states)


class OrderScores:
    """q over the contexts' table slots [m], for many (context, path, depth) queries at once."""

    def __init__(
        self, model: OrderModel, contexts: Sequence[DraftContext], tau: float, chunk_states: int | None
    ) -> None:
        config = model.config
        tables = [context.tables[0] for context in contexts]
        features, starts = many_table_features(tables, config.block_length, config.features, config.rule)
        rows, valid = pad_rows(starts, np.arange(len(tables)))
        self.model, self.tau = model, tau
        self.chunk_states = chunk_states or _CHUNK_STATES.get(model.input.weight.device.type, _MOST_STATES)
        self.lengths = np.diff(starts)
        self.slot = np.concatenate([table.slots for table in tables]).astype(np.int64)[rows]
        self.valid = valid
        device = model.input.weight.device
        self.table = torch.from_numpy(features[rows]).to(device)
        masked = np.zeros((len(contexts), config.block_length), dtype=bool)
        for index, context in enumerate(contexts):
            masked[index, list(context.state.masked_slots)] = True
        self.filled = ~masked

    def __call__(self, queries: list[Query]) -> list[NDArray[np.float64]]:
        """Probabilities [m] a query; see `draft.Score`."""
        answers: dict[int, NDArray[np.float64]] = {}
        shortest_first = sorted(range(len(queries)), key=lambda index: self.lengths[queries[index][0]])
        for first in range(0, len(queries), self.chunk_states):
            chunk = shortest_first[first : first + self.chunk_states]
            probabilities = self._probabilities([queries[index] for index in chunk])
            for index, row in zip(chunk, probabilities, strict=True):
                answers[index] = row[: self.lengths[queries[index][0]]]
        return [answers[index] for index in range(len(queries))]

    @torch.inference_mode()
    def _probabilities(self, queries: list[Query]) -> NDArray[np.float64]:
        contexts = np.array([context for context, _, _ in queries])
        width = int(self.lengths[contexts].max())
        filled = self.filled[contexts]
        path_rows = np.repeat(np.arange(len(queries)), [len(path) for _, path, _ in queries])
        filled[path_rows, [slot for _, path, _ in queries for slot in path]] = True
        slot, valid = self.slot[contexts, :width], self.valid[contexts, :width]
        taken = np.take_along_axis(filled, slot, axis=1) & valid
        device = self.table.device
        scores: Tensor = self.model(
            self.table[torch.from_numpy(contexts).to(device), :width],
            torch.from_numpy(slot).to(device),
            torch.from_numpy(valid).to(device),
            torch.from_numpy(taken).to(device),
            torch.tensor([depth for _, _, depth in queries], device=device),
        )
        return torch.softmax(scores.double() / self.tau, dim=-1).cpu().numpy()
