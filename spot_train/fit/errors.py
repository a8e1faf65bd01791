"""Which next commits a drafter errs on: by depth, by how close the target's own decision was, by how sure it was, and
beside another drafter. Every next commit at every measured depth counts once. Fits and replays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spot_infer.drafters import OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.features import pad_rows, ragged_ranks, stale_ranking
from spot_infer.transition import CommitRule, ranking_values
from spot_train.fit.evaluate import laid_out_for, predictions
from spot_train.fit.examples import Steps
from spot_train.fit.metrics import CALIBRATION_BINS
from spot_train.trajectory import Trajectory

MARGINS = (0.25, 0.5, 1.0, 2.0)
"""Bounds, in log-odds, of the classes that errors are told apart by."""
SURE = 0.9999
NOISES = (0.0625, 0.125, 0.25, 0.5, 1.0)
"""Standard deviations of noise on the target's next log-odds, which the drafter's errors are compared with."""
CONFIDENCES = (0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True)
class Commits:
    """Q next commits and what was made of them. depth int64 [Q]; before_stop bool [Q]: at or before the last returned
    token; slot, guess int64 [Q]: what the target fills, what the drafter holds likeliest; loss, confidence f64 [Q]:
    -log q of the first, q of the second.

    Of the target's decision: margin f64 [Q], log-odds between its two surest slots, inf where only one is open; tied
    bool [Q]: the rule can't tell the two apart; moved f64 [Q]: by how much the margin differs from the same two slots'
    in the stale table; log_odds f64 [Q]: of the filled slot; noisy bool [Q, len(NOISES)]: whether the rule would fill
    another slot if the target's log-odds had that much noise (never where it ranks by something else).
    """

    depth: NDArray[np.int64]
    before_stop: NDArray[np.bool_]
    slot: NDArray[np.int64]
    guess: NDArray[np.int64]
    loss: NDArray[np.float64]
    confidence: NDArray[np.float64]
    margin: NDArray[np.float64]
    tied: NDArray[np.bool_]
    moved: NDArray[np.float64]
    log_odds: NDArray[np.float64]
    noisy: NDArray[np.bool_]

    @property
    def missed(self) -> NDArray[np.bool_]:
        return self.guess != self.slot

    def of(self, kept: NDArray[np.bool_]) -> Commits:
        """Those that are kept."""
        return Commits(**{name: getattr(self, name)[kept] for name in self.__dataclass_fields__})


def next_commits(
    drafter: OrderDrafter,
    steps: Steps,
    rule: CommitRule,
    depths: Sequence[int] | None = None,
    limit_states: int | None = None,
) -> Commits:
    """What the drafter makes of the next commits of `steps`, recorded under `rule`, at the given depths (default all),
    of at most `limit_states` states."""
    decided = _decisions(steps, rule)
    parts: list[Commits] = []
    for states, batch, log_q in predictions(drafter, steps, depths, limit_states):
        of, label = batch.of.numpy(), batch.label.numpy()
        depth = batch.depth.numpy()
        step = states[of] + depth + 1
        column = log_q.numpy()
        slot = steps.committed[step]
        stale, fresh = _by_slot(steps, states)[of], _by_slot(steps, step)
        query = np.arange(len(step))
        first, second, tied = (one[step] for one in decided)
        alone = second < 0
        second = np.where(alone, first, second)
        margin, before = (table[query, first] - table[query, second] for table in (fresh, stale))
        parts.append(
            Commits(
                depth=depth,
                before_stop=batch.before_stop.numpy(),
                slot=slot,
                guess=batch.slot.numpy()[of, column.argmax(axis=1)],
                loss=-column[query, label],
                confidence=np.exp(column.max(axis=1)),
                margin=np.where(alone, np.inf, margin),
                tied=tied,
                moved=np.abs(margin - before),
                log_odds=fresh[query, slot],
                noisy=_noisy(fresh, slot, rule, len(parts)),
            )
        )
    return Commits(
        **{name: np.concatenate([getattr(one, name) for one in parts]) for name in parts[0].__dataclass_fields__}
    )


def errors(
    drafter: OrderDrafter,
    trajectories: Iterable[Trajectory],
    *,
    depths: Sequence[int] | None = None,
    limit_states: int | None = None,
    rule: CommitRule | None = None,
    beside: OrderDrafter | None = None,
) -> dict[str, Any]:
    """Where `drafter` errs, as JSON values; rule: of the recorded decoding, the drafter's own by default.

    scopes[name]: what `_scope` gives of all commits and of those up to the stop token; margins, sure, confidences and
    noise: what the functions of these names give; beside: the same commits by another drafter (`_beside`), where there
    is one. Raises SpotError as `evaluate` does, and where the two drafters were trained for different depths.
    """
    rule = rule or drafter.model.config.rule
    recorded = [one for one in trajectories if len(one)]
    steps = laid_out_for(drafter, recorded)
    deepest = min(one.model.config.d_max for one in (drafter, beside) if one is not None)
    if depths is not None:
        depths = sorted(set(depths))
        if depths[-1] > deepest:
            raise SpotError(f"depth {depths[-1]} is beyond {deepest}, the largest trained; use depths up to it")
    if beside is not None:
        laid_out_for(beside, recorded[:1])
        if depths is None and beside.model.config.d_max != drafter.model.config.d_max:
            raise SpotError(
                f"the drafters were trained up to depths {drafter.model.config.d_max} and {beside.model.config.d_max}; "
                "name the depths to compare with --depth"
            )
    commits = next_commits(drafter, steps, rule, depths, limit_states)
    other = None if beside is None else next_commits(beside, steps, rule, depths, limit_states)
    root = commits.of(commits.depth == 0)
    return {
        "trajectories": len(recorded),
        "commits": len(commits.depth),
        "scopes": {"all": _scope(commits), "before_stop": _scope(commits.of(commits.before_stop))},
        "margins": {"all": margins(commits), "depth_0": margins(root)},
        "sure": sure(commits),
        "confidences": confidences(commits),
        "noise": {"all": noise(commits), "depth_0": noise(root)} if rule.ranking == "probability" else None,
        **({} if other is None else {"beside": _beside(commits, other)}),
    }


def _scope(commits: Commits) -> dict[str, Any]:
    """errors, loss (nats), expected: the errors that the drafter's own probabilities foresee, calibration_error, and
    by_depth, errors by depth."""
    depths = np.unique(commits.depth)
    bins = (commits.confidence * CALIBRATION_BINS).astype(np.int64).clip(0, CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, commits.confidence - ~commits.missed, CALIBRATION_BINS)
    return {
        "commits": len(commits.depth),
        "errors": _mean(commits.missed),
        "expected": _mean(1 - commits.confidence),
        "calibration_error": float(np.abs(gaps).sum()) / len(commits.depth) if len(commits.depth) else None,
        "loss": _mean(commits.loss),
        "by_depth": {str(depth): _mean(commits.missed[commits.depth == depth]) for depth in depths.tolist()},
    }


def margins(commits: Commits) -> list[dict[str, Any]]:
    """By the margin that decided, in log-odds from a bound to the next: share of commits, errors in the class, share of
    all errors, and moved, by how much the margin differed in the stale table, the median. Commits that the rule ties
    are a class of their own, and so are those with one open slot, which no drafter misses."""
    alone = np.isinf(commits.margin)
    between = np.searchsorted(MARGINS, np.abs(commits.margin), side="right")
    bounds = [f"{low:g} to {high:g}" for low, high in pairwise((0.0, *MARGINS))]
    names = ["tied under the rule", *bounds, f"{MARGINS[-1]:g} and more", "one slot open"]
    classes = np.select([commits.tied, alone], [0, len(names) - 1], between + 1)
    return [
        {"margin": name, **_class(commits, classes == place), "moved": _median(commits.moved[classes == place])}
        for place, name in enumerate(names)
        if (classes == place).any()
    ]


def sure(commits: Commits) -> dict[str, Any]:
    """Commits of a probability above `SURE`: their share, the errors among them, and their share of all errors."""
    return {"above": SURE, **_class(commits, commits.log_odds > np.log(SURE / (1 - SURE)))}


def confidences(commits: Commits) -> list[dict[str, Any]]:
    """By the drafter's own confidence: share of commits, errors in the class, share of all errors, and the errors that
    the class's confidences foresee."""
    classes = np.searchsorted(CONFIDENCES, commits.confidence, side="right")
    return [
        {
            "confidence": f"{low:g} to {high:g}",
            **_class(commits, classes == place),
            "expected": _mean(1 - commits.confidence[classes == place]),
        }
        for place, (low, high) in enumerate(pairwise((0.0, *CONFIDENCES, 1.0)))
    ]


def noise(commits: Commits) -> dict[str, Any]:
    """What errors one would make who knew the target's log-odds of the very step, each with normal noise of a standard
    deviation in log-odds: by deviation, and `equal`, the deviation at which they are the drafter's (None beyond the
    listed ones)."""
    rates = commits.noisy.mean(axis=0) if len(commits.depth) else np.zeros(len(NOISES))
    missed = _mean(commits.missed)
    equal = None
    if missed is not None and rates[0] < missed <= rates[-1]:
        equal = float(np.exp(np.interp(missed, np.maximum.accumulate(rates), np.log(NOISES))))
    return {"errors": dict(zip(map(str, NOISES), rates.tolist(), strict=True)), "equal": equal}


def _beside(commits: Commits, other: Commits) -> dict[str, Any]:
    """errors of the other drafter; both: commits that both miss; alike: share of those where both name one slot."""
    both = commits.missed & other.missed
    return {
        "errors": _mean(other.missed),
        "both": _mean(both),
        "alike": _mean((commits.guess == other.guess)[both]),
    }


def _class(commits: Commits, chosen: NDArray[np.bool_]) -> dict[str, Any]:
    """Share of commits, errors in the class and share of all errors."""
    return {
        "commits": _mean(chosen),
        "errors": _mean(commits.missed[chosen]),
        "share": float((commits.missed & chosen).sum()) / max(int(commits.missed.sum()), 1),
    }


def _decisions(steps: Steps, rule: CommitRule) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Of every step: the slot that `rule` ranks first, the one that it ranks second (-1 where none is), and whether it
    holds them equal; each [N]."""
    values = stale_ranking(steps.top_logprob, steps.log_odds, rule)
    rank = ragged_ranks(values, steps.slot, steps.start)
    of = np.repeat(np.arange(len(steps)), np.diff(steps.start))
    slots = np.full((2, len(steps)), -1, dtype=np.int64)
    best = np.full((2, len(steps)), np.nan)
    for place in range(2):
        rows = rank == place
        slots[place, of[rows]], best[place, of[rows]] = steps.slot[rows], values[rows]
    return slots[0], slots[1], best[0] == best[1]


def _noisy(log_odds: NDArray[np.float64], slot: NDArray[np.int64], rule: CommitRule, seed: int) -> NDArray[np.bool_]:
    """`Commits.noisy` from log-odds [Q, L], -inf at filled slots, of commits that fill slot [Q]."""
    if rule.ranking != "probability":
        return np.zeros((len(slot), len(NOISES)), dtype=bool)
    noise = np.random.Generator(np.random.Philox(key=[0, seed])).standard_normal(log_odds.shape)
    values = (ranking_values(torch.from_numpy(log_odds + one * noise).float(), rule, None).numpy() for one in NOISES)
    filled = np.isneginf(log_odds)
    return np.stack([np.where(filled, -np.inf, one).argmax(axis=1) != slot for one in values], axis=1)


def _by_slot(steps: Steps, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """The log-odds of the chosen steps' tables laid out by slot, [len(chosen), L], -inf at slots that are filled."""
    rows, valid = pad_rows(steps.start, chosen)
    table, column = np.nonzero(valid)
    laid = np.full((len(chosen), steps.block_length), -np.inf)
    laid[table, steps.slot[rows[table, column]]] = steps.log_odds[rows[table, column]]
    return laid


def _median(values: NDArray[np.float64]) -> float | None:
    return float(np.median(values)) if len(values) else None


def _mean(values: NDArray[np.generic]) -> float | None:
    return float(values.mean()) if len(values) else None
