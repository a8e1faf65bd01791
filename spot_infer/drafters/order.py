"""The SPOT drafter: the trained commit order and the stale tokens, searched into a draft graph (paper section 4.2).

Every level of the search asks for all unexpanded states of all contexts at once. That is a network call a level for a
model whose scorer is `per_level`, and one call in all for `one_call` (`order_scores.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from spot_infer.draft import Score, search
from spot_infer.drafters.entrance import entrance
from spot_infer.drafters.hypotheses import RUNNER_UP_BELOW, token_hypotheses
from spot_infer.drafters.order_scores import LevelScores, OneCallScores, StaleInputs
from spot_infer.errors import SpotError
from spot_infer.features import tables_read
from spot_infer.graph import DraftContext, DraftGraph
from spot_infer.order_model import OrderModel
from spot_infer.responses import RESPONSE, check_response
from spot_infer.set_scores import HeadArrays
from spot_infer.transition import CommitRule


@dataclass(frozen=True)
class DraftSettings:
    """How the order model is searched.

    tau: calibration temperature of q (above 1 flattens it); merged: one node for all orders that reach a state, false
    for the paper's tree; runner_up_below: the second token is drafted too where the first is less probable; response:
    how far scores follow what was measured of the block's slots (`responses.py`), 0 reads nothing; ahead: drafts run
    on into the next block where its table is at hand.
    """

    tau: float = 1.0
    merged: bool = True
    runner_up_below: float = RUNNER_UP_BELOW
    response: float = RESPONSE
    ahead: bool = True

    def __post_init__(self) -> None:
        for name, low in (("tau", 0.0), ("runner_up_below", -1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value < float("inf"):
                raise SpotError(f"draft.{name} is {value!r}; expected a finite number above {max(low, 0.0):g}")
        check_response(self.response)
        for name in ("merged", "ahead"):
            if not isinstance(getattr(self, name), bool):
                raise SpotError(f"draft.{name} is {getattr(self, name)!r}; use true or false")


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
        self._arrays: HeadArrays | None = None

    def as_chain(self) -> OrderDrafter:
        """The same model drafting chains, as rejection sampling needs."""
        return OrderDrafter(self.model, self.settings, True, self.chunk_states)

    def responding(self, response: float) -> OrderDrafter:
        """The same model with another `DraftSettings.response`."""
        return OrderDrafter(self.model, replace(self.settings, response=response), self.chain, self.chunk_states)

    def looking(self, ahead: bool) -> OrderDrafter:
        """The same model with another `DraftSettings.ahead`."""
        return OrderDrafter(self.model, replace(self.settings, ahead=ahead), self.chain, self.chunk_states)

    def as_tree(self) -> OrderDrafter:
        """The same model drafting one node an order, the paper's form."""
        return OrderDrafter(self.model, replace(self.settings, merged=False), self.chain, self.chunk_states)

    @property
    def device(self) -> torch.device:
        return self.model.input.weight.device

    @property
    def tables_read(self) -> int:
        """How many of a block's newest tables it reads."""
        return tables_read(self.model.config.features)

    @property
    def reads_responses(self) -> bool:
        """Whether what was measured of a block's slots moves the network's scores; it is of log-odds."""
        return self.settings.response > 0 and self.rule.ranking == "probability"

    @property
    def looks_ahead(self) -> bool:
        """Whether drafts run on into the next block."""
        return self.settings.ahead

    @property
    def rule(self) -> CommitRule:
        """The commit rule it was trained under."""
        return self.model.config.rule

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> OrderDrafter:
        """Move the network; returns self."""
        self.model.to(device=device, dtype=dtype)
        self._arrays = None
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
        """One graph a context, each of at most `budget` states; one network call, or one a level of the search."""
        if not contexts:
            return []
        for context in contexts:
            self.check_block_length(len(context.state.tokens))
        entrances = [entrance(context, self.rule) if self.looks_ahead else None for context in contexts]
        every = [*contexts, *(one.context for one in entrances if one is not None)]
        return search(
            contexts,
            self.score(every),
            [token_hypotheses(context, self.settings.runner_up_below) for context in every],
            self.settings.merged,
            width=1 if self.chain else None,
            one_call=self.model.config.scorer == "one_call",
            entrances=entrances,
        )

    def score(self, contexts: Sequence[DraftContext]) -> Score:
        """What the search asks: q over each context's table slots."""
        inputs = StaleInputs(self.model, contexts, self.settings.response)
        if self.model.config.scorer == "per_level":
            return LevelScores(self.model, inputs, self.settings.tau, self.chunk_states)
        return OneCallScores(self.model, self._head(), inputs, self.settings.tau, self.chunk_states)

    def _head(self) -> HeadArrays:
        """The model's one-call head on the CPU: a copy, kept, where the model is elsewhere."""
        if self.device.type == "cpu":
            return HeadArrays(self.model.set_head)
        if self._arrays is None:
            self._arrays = HeadArrays(self.model.set_head)
        return self._arrays
