"""How much of the future the stale table knows: which slot commits next, which token (paper fig. 2b, fig. 4, F.8).

Order and token by block, and how often whole K-step continuations lie within the stale top t. With stops honoured only
commits up to the stop token count; with stops ignored the filler after it counts too. The order is read off the same
tables three ways: as stored float16 probabilities, as float32 log-odds and as the bfloat16 rule ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from spot_infer.features import stale_ranking
from spot_infer.transition import CommitRule
from spot_train.bench.conditions import STOPS, counted, places
from spot_train.bench.curves import curve
from spot_train.bench.materials import RESOLUTIONS, Materials
from spot_train.bench.plan import Condition, CurveGroup, Group
from spot_train.bench.recorded import recorded
from spot_train.fit.evaluate import stale_accuracy
from spot_train.results import Curve
from spot_train.trajectory import Trajectory

SUITE = "coverage"
STEPS = range(1, 9)
CANDIDATES = (1, 2, 4, 8, 16, 32)
BLOCK = "block of the answer, from 0"


def groups(materials: Materials) -> list[Group]:
    """T = 0 under both rules, with and without the filler after the stop token."""
    return [
        CurveGroup(SUITE, replace(counted(materials, target, rule, ignore_stop=ignore_stop), mode="replay"), measure)
        for target, rule in places(materials, RESOLUTIONS)
        for ignore_stop in STOPS
    ]


def measure(materials: Materials, condition: Condition) -> list[Curve]:
    """The order and token curves by block, then coverage by the number of steps."""
    trajectories = recorded(materials, condition).trajectories
    before_stop = not condition.ignore_stop
    curves = []
    token: list[float] = []
    for series, rule, ranking in (
        ("float16 probabilities", CommitRule(), float16_ranking),
        ("float32 log-odds", CommitRule(), stale_ranking),
        ("bfloat16 probabilities", CommitRule(resolution="bfloat16"), stale_ranking),
    ):
        found = stale_accuracy(trajectories, rule, before_stop, ranking)
        labels = BLOCK, "the stale order's first slot commits next"
        blocks = range(len(found["order_by_block"]))
        curves.append(curve(materials, condition, SUITE, series, labels, blocks, found["order_by_block"]))
        token = found["token_by_block"]
    labels = BLOCK, "the stale argmax is the committed token"
    curves.append(curve(materials, condition, SUITE, "stale argmax", labels, range(len(token)), token))
    shares = stale_coverage(trajectories, before_stop)
    labels = "steps K", "all tokens of the next K commits lie in the stale top t"
    for candidates, row in zip(CANDIDATES, shares, strict=True):
        curves.append(curve(materials, condition, SUITE, f"t = {candidates}", labels, list(STEPS), row))
    return curves


def float16_ranking(
    top_logprob: NDArray[np.float16], log_odds: NDArray[np.float32], rule: CommitRule
) -> NDArray[np.float64]:
    """Rank by the largest probability as float16 holds it, which saturates at 1 - 2^-11: near-certain slots tie."""
    return torch.from_numpy(log_odds.astype(np.float64)).sigmoid().numpy().astype(np.float16).astype(np.float64)


def stale_coverage(trajectories: Sequence[Trajectory], before_stop: bool) -> list[list[float | None]]:
    """Share of K-step continuations inside one block whose tokens all lie in the stale top t, [t][K].

    The table is the one computed at the state before the root, as a drafter reads it; steps of several commits count
    as one step, all of whose tokens must be there.
    """
    hits = np.zeros((len(CANDIDATES), len(STEPS)), dtype=np.int64)
    total = np.zeros(len(STEPS), dtype=np.int64)
    limits = np.array(CANDIDATES)
    for one in trajectories:
        for step in range(len(one) - 1):
            for ahead, rank in enumerate(_ranks_ahead(one, step, before_stop)):
                total[ahead] += 1
                hits[:, ahead] += rank < limits
    return [[float(row[ahead] / total[ahead]) if total[ahead] else None for ahead in range(len(STEPS))] for row in hits]


def _ranks_ahead(one: Trajectory, step: int, before_stop: bool) -> Iterator[int]:
    """For K = 1, 2, ..: the worst rank of the next K steps' tokens in table `step`, while they stay in its block."""
    end = one.prompt_length + one.returned_tokens
    rows = slice(one.step_start[step], one.step_start[step + 1])
    slots, tokens = one.slot[rows], one.top_token[rows]
    start = int(one.block_start[step])
    worst = 0
    for later in range(step + 1, min(step + 1 + len(STEPS), len(one))):
        commits = one.step(later)
        if one.block_start[later] != start or (before_stop and any(position >= end for position, _ in commits)):
            return
        for position, token in commits:
            found = np.flatnonzero(tokens[np.searchsorted(slots, position - start)] == token)
            worst = max(worst, int(found[0]) if len(found) else tokens.shape[1])
        yield worst
