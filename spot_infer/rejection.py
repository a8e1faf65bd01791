"""Rejection sampling on chains (paper appendix B): accept a link with min(1, pi/q), else draw from (pi - q)+.

The drafter chooses the slots, before anything is drawn and without seeing draws; the tokens are drawn here, from the
law that the stale table holds (equation 12 with a deterministic position). So q is exactly what was sampled from,
whatever the drafter is. A proposal and its acceptance use two numbers keyed by (seed, position), a replacement the
position's Gumbel row; all three are used by the one link that commits the position, so a commit follows the target's
law whatever came before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spot_infer.blocks import Commit
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, DraftGraph, Proposal
from spot_infer.noise import uniforms
from spot_infer.table import StaleTable
from spot_infer.transition import Sampling, filter_logits, pick


def proposal_law(table: StaleTable, sampling: Sampling) -> NDArray[np.float64]:
    """q over the table's candidates, [m, 32]: its log-probabilities at temperature > 0, filtered and renormalised.

    Candidates that the table lacks have none: the law is the stored one, rounding included.
    """
    stored = torch.from_numpy(table.top_logprob.astype(np.float64)) / sampling.temperature
    return filter_logits(stored, sampling).softmax(dim=-1).numpy()


def chain_commits(graph: DraftGraph) -> list[Commit]:
    """The commits of a chain, one a state, in order. Raises SpotError for any other graph."""
    commits: list[Commit] = []
    for before, after in zip(graph.commits, graph.commits[1:], strict=False):
        if not before < after or len(after - before) != 1:
            raise SpotError(
                "verifier is rejection, which verifies chains of single commits only, and the drafter drafted another "
                "graph; use a chain drafter, a budget of 1, or the verifier coupled"
            )
        commits += after - before
    return commits


def draw_tokens(graph: DraftGraph, context: DraftContext, sampling: Sampling, seed: int) -> DraftGraph:
    """`graph`, a chain, with every token drawn anew from its stale law, and the laws as `proposals`.

    `seed` is the request's. The drafter's masses are kept: they are of the states it drafted.
    """
    laws: dict[int, tuple[NDArray[np.int32], NDArray[np.float64]]] = {}
    next_start = context.state.start + len(context.state.tokens)
    for start, table in ((context.state.start, context.tables[0]), (next_start, context.next_table)):
        if table is not None:
            rows = zip(table.slots.tolist(), table.top_token, proposal_law(table, sampling), strict=True)
            laws |= {start + slot: (token[law > 0], law[law > 0]) for slot, token, law in rows}
    drawn = DraftGraph(merged=graph.merged, calls=graph.calls, states_scored=graph.states_scored)
    for node, (position, _) in enumerate(chain_commits(graph)):
        if position not in laws:
            raise SpotError(
                f"verifier is rejection and the drafter drafted position {position}, for which there is no stale law; "
                "draft inside the active block only"
            )
        tokens, probabilities = laws[position]
        proposing, accepting = uniforms(seed, position, 2)
        commit = Commit(position, int(tokens[propose(probabilities, proposing)]))
        drawn.proposals[node] = Proposal(commit, tokens.astype(np.int64), probabilities, float(accepting))
        drawn.add(node, frozenset((commit,)), graph.masses[node + 1])
    return drawn


def propose(probabilities: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices drawn from a law [k] by inverting its distribution function at `uniform`, shape kept."""
    cumulative = np.cumsum(probabilities)
    return np.searchsorted(cumulative[:-1], uniform * cumulative[-1], side="right")


def accept_or_replace(log_law: Tensor, drawn: Tensor, noise: Tensor, proposals: Sequence[Proposal | None]) -> Tensor:
    """Tokens [M]: the proposed one with probability min(1, pi/q), else one drawn from the normalised (pi - q)+.

    log_law, noise float64 [M, V]: pi and the Gumbel rows of replacements. A row without a proposal keeps `drawn` [M].
    """
    rows = [row for row, one in enumerate(proposals) if one is not None]
    if not rows:
        return drawn
    law = log_law[rows].exp()
    proposed_law = torch.zeros_like(law)
    links = [one for one in proposals if one is not None]
    for row, one in enumerate(links):
        proposed_law[row, torch.from_numpy(one.tokens).to(law.device)] = torch.from_numpy(one.probabilities).to(law)
    token = torch.tensor([one.commit.token for one in links], device=law.device)
    uniform = torch.tensor([one.uniform for one in links], dtype=law.dtype, device=law.device)
    p, q = (values.gather(-1, token[:, None]).squeeze(-1) for values in (law, proposed_law))
    residual = (law - proposed_law).clamp(min=0)
    residual = torch.where(residual.sum(dim=-1, keepdim=True) > 0, residual, law)
    replaced = pick(residual.log(), noise[rows])
    tokens = drawn.clone()
    tokens[rows] = torch.where(uniform * q < p, token, replaced)
    return tokens
