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

    def offsets(self) -> Tensor:
        """[L, L * hidden]: what a filled slot (row) adds to every slot's hidden layer by where it lies."""
        slots = torch.arange(self.block_length, device=self.offset.device)
        return self.offset[slots[:, None] - slots + self.block_length - 1].flatten(1)

    def forward(
        self, codes: Tensor, of: Tensor, slot: Tensor, taken: Tensor, depth: Tensor, offsets: Tensor | None = None
    ) -> Tensor:
        """Scores [Q, m] of states. codes: of `encode`; of int64 [Q]: a state's table; slot int64 and taken bool [Q, m]:
        its slots, and which are filled; depth int64 [Q]: steps between the root and the state. offsets: of `offsets`,
        where they are at hand."""
        base, gate, message, prior = codes[of].split((*(3 * [self.hidden]), 1), dim=-1)
        marked = taken.to(codes.dtype)
        offsets = self.offsets() if offsets is None else offsets
        told = torch.bmm(marked[:, None], message)
        filled = marked.new_zeros(len(marked), self.block_length).scatter_add(1, slot, marked)
        near = (filled @ offsets).unflatten(1, (self.block_length, -1))
        near = near.gather(1, slot[..., None].expand(-1, -1, near.shape[-1]))
        scores = (prior + self.out(functional.relu(base + gate * told + near))).squeeze(-1)
        return scores * self.sharpness[depth.clamp(max=len(self.sharpness) - 1)].exp()[:, None]
