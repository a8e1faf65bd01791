"""The one-call head: scores of every state that can follow a root, from one encoding of its table's slots.

A state is the set S of filled table slots. Slot i scores

    sharpness(depth) * (prior_i + w . relu(base_i + gate_i * sum_{j in S} message_j + sum_{j in S} offset_{j - i}))

with base, gate and message read from the encoding, so a level of the draft search costs a few small products instead of
a pass through the network. Sums over a set know no order: states that two orders reach score alike. Knows nothing about
tables, features or the search.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

MOST_LAID_OUT = 1 << 19
"""Most numbers a head's forward lays out at once on a CPU for what slots tell one another: more would leave its
caches."""


class SetHead(nn.Module):
    """Scores of states from their table's encoding; with `zeroed` they start as the prior."""

    def __init__(self, d_model: int, hidden: int, block_length: int, d_max: int, zeroed: bool) -> None:
        super().__init__()
        self.block_length, self.hidden = block_length, hidden
        self.code = nn.Linear(d_model, 3 * hidden)
        self.offset = nn.Parameter(torch.zeros(2 * block_length - 1, hidden))
        self.out = nn.Linear(hidden, 1, bias=False)
        self.sharpness = nn.Parameter(torch.zeros(d_max + 1))
        if zeroed:
            nn.init.zeros_(self.out.weight)

    def encode(self, encoded: Tensor, prior: Tensor) -> Tensor:
        """What one call says of S tables, [S, m, 3 * hidden + 1]: base, gate and message of encoded slots [S, m,
        d_model], and their prior [S, m]."""
        return torch.cat([self.code(encoded), prior[..., None]], dim=-1)

    def forward(self, codes: Tensor, of: Tensor, slot: Tensor, taken: Tensor, depth: Tensor) -> Tensor:
        """Scores [Q, m] of states. codes [S, m, 3 * hidden + 1]: of `encode`; slot int64 [S, m]; of int64 [Q]: a
        state's table; taken bool [Q, m]: which of its slots are filled; depth int64 [Q]: steps between the root and the
        state."""
        place, states, telling = _layout(of, taken, len(codes))
        filled = codes.new_zeros(len(codes), states, slot.shape[1])
        filled[of, place] = taken.to(codes.dtype)
        parts = [tensor.split(self._tables_at_once(slot, telling)) for tensor in (codes, slot, filled, telling)]
        scores = torch.cat([self._scores(*part) for part in zip(*parts, strict=True)])
        return scores[of, place] * self.sharpness[depth.clamp(max=len(self.sharpness) - 1)].exp()[:, None]

    def _scores(self, codes: Tensor, slot: Tensor, filled: Tensor, telling: Tensor) -> Tensor:
        """Scores [S, k, m], not yet sharpened, of k states of each table: codes [S, m, ...], slot [S, m], filled
        [S, k, m] of zeros and ones, telling [S, t]: columns that hold those filled in any of its states."""
        base, gate, message, prior = codes.split((*(3 * [self.hidden]), 1), dim=-1)
        if telling.shape[1] < slot.shape[1]:
            message = message.gather(1, telling[:, :, None].expand(-1, -1, self.hidden))
            filled = filled.gather(2, telling[:, None].expand(-1, filled.shape[1], -1))
        offset = functional.embedding(
            slot.gather(1, telling)[:, :, None] - slot[:, None] + self.block_length - 1, self.offset
        )
        told = torch.addcmul(offset, gate[:, None], message[:, :, None])  # [S, telling slot, slot, hidden]
        hears = torch.baddbmm(base.flatten(1)[:, None], filled, told.flatten(2)).unflatten(2, (slot.shape[1], -1))
        return self.out(functional.relu(hears)).squeeze(-1) + prior.transpose(1, 2)

    def _tables_at_once(self, slot: Tensor, telling: Tensor) -> int:
        """How many tables of `slot` [S, m] are laid out, slot by telling slot, at once."""
        numbers = max(slot.shape[1] * telling.shape[1] * self.hidden, 1)
        most = MOST_LAID_OUT // numbers if slot.device.type == "cpu" else len(slot)
        return max(most, 1)


def _layout(of: Tensor, taken: Tensor, tables: int) -> tuple[Tensor, int, Tensor]:
    """How states `of` [Q] with filled slots `taken` [Q, m] lie in [S, k]: which of its table's each one is, int64 [Q];
    k, the most of a table; and columns [S, t] that hold the slots filled in any state of a table, t as few as do for
    every table: a search's states share theirs, so long blocks have few. All of them, in order, where that is all.

    A device is waited for once."""
    counts = of.new_zeros(tables).scatter_add(0, of, torch.ones_like(of))
    anywhere = of.new_zeros(tables, taken.shape[1]).scatter_add(0, of[:, None].expand_as(taken), taken.long()) > 0
    states, most = torch.stack([counts, anywhere.sum(dim=1)]).amax(dim=1).tolist() if tables else (0, 0)
    order = of.argsort(stable=True)
    place = torch.empty_like(of)
    place[order] = torch.arange(len(of), device=of.device) - (counts.cumsum(0) - counts)[of[order]]
    if most == taken.shape[1]:
        return place, states, torch.arange(most, device=of.device).expand(tables, -1)
    return place, states, anywhere.long().argsort(dim=1, descending=True, stable=True)[:, :most]
