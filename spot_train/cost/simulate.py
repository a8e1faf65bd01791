"""Predicts the time of drafted decoding from a cost curve and counted rounds: what a drafter would give on a GPU.

Replays and decoded runs know how many states every round drafts and accepts, a curve what a round over so many replicas
costs. Rows are decoded one at a time, or in batches of the size that the curve was measured with; a batch's rounds are
taken to cost what its rows' sizes cost on average. Knows nothing about how curves are measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spot_infer.cost import CostCurve
from spot_infer.graph import Drafter
from spot_infer.requests import Boundary, Request, Stats
from spot_train.compare.compare import MethodRun
from spot_train.replay.replay import ReplayResult, replay
from spot_train.trajectory import Trajectory


@dataclass(frozen=True)
class Rounds:
    """What a drafted run does, summed over its rows. sizes: forwards by replicas, finished blocks that a forward caches
    included; proposals: calls of `propose`, a row's share each; prefills: rows whose prompt fills a block; opened:
    those of them whose first block that forward opens."""

    rows: int
    prefills: int
    opened: int
    block_length: int
    nfe: int
    draft_free_nfe: int
    accepted: int
    drafted_rounds: int
    sizes: Mapping[int, int]
    proposals: int
    calls: int
    states_scored: int


@dataclass(frozen=True)
class Prediction:
    """Times in the curve's unit, summed over the rows. `rounds` is what the target's forwards and the work around them
    take, `drafter` what proposals take, 0 where the curve knows no drafter."""

    draft_free: float
    prefill: float
    rounds: float
    drafter: float

    @property
    def drafted(self) -> float:
        return self.prefill + self.rounds + self.drafter

    @property
    def throughput_ratio(self) -> float:
        """Tokens a second over draft-free decoding's: the tokens are the same, so it is the ratio of the times."""
        return self.draft_free / self.drafted


def replay_rounds(
    drafter: Drafter,
    trajectories: Sequence[Trajectory],
    budget: int,
    floor: float = 0.0,
    pad: bool = False,
    temperature: float = 0.0,
    boundary: Boundary = "auto",
    curve: CostCurve | None = None,
) -> Rounds:
    """What decoding these trajectories with `drafter` does; at least one trajectory. `curve`: where every round drafts
    only what pays on it."""
    results = replay(drafter, trajectories, budget, floor, temperature, boundary=boundary, curve=curve)
    return rounds_of(results, trajectories, 1 + budget if pad else 1)


def rounds_of(results: Sequence[ReplayResult], trajectories: Sequence[Trajectory], least: int = 1) -> Rounds:
    """What replayed runs do, where no forward has fewer than `least` replicas; at least one trajectory."""
    return _summed(
        results,
        [max(size, least) for result in results for size in result.sizes],
        [one.prompt_length for one in trajectories],
        trajectories[0].block_tokens.shape[-1],
        opened=sum(result.opened for result in results),
        proposals=sum(result.proposals for result in results),
    )


def decoded_rounds(run: MethodRun, requests: Sequence[Request], block_length: int) -> Rounds:
    """What a decoded run did; at least one request."""
    least = 1 + run.method.budget if run.method.pad else 1
    return _summed(
        [result.stats for result in run.results.values()],
        [max(size, least) for forwards in run.replicas.values() for size in forwards if size],
        [len(one.prompt_ids) for one in requests],
        block_length,
        opened=sum(forwards.count(0) for forwards in run.replicas.values()),
        proposals=run.proposals.total(),
    )


def _summed(
    counts: Sequence[ReplayResult] | Sequence[Stats],
    sizes: Sequence[int],
    prompt_lengths: Sequence[int],
    block_length: int,
    opened: int,
    proposals: int,
) -> Rounds:
    return Rounds(
        rows=len(counts),
        prefills=sum(length >= block_length for length in prompt_lengths),
        opened=opened,
        block_length=block_length,
        nfe=sum(one.nfe for one in counts),
        draft_free_nfe=sum(one.draft_free_nfe for one in counts),
        accepted=sum(one.accepted for one in counts),
        drafted_rounds=sum(one.drafted_rounds for one in counts),
        sizes=dict(sorted(Counter(sizes).items())),
        proposals=proposals,
        calls=sum(one.drafter_calls for one in counts),
        states_scored=sum(one.states_scored for one in counts),
    )


def predict(curve: CostCurve, rounds: Rounds) -> Prediction:
    """The time of the drafted run and of its draft-free control on the machine of `curve`. A block that the prompt's
    forward opens takes there what a second replica takes in any other; a stale table is read for a proposal alone."""
    prefill = curve.prefill * rounds.prefills
    opening = (curve.cost(2) - curve.cost(1)) * rounds.opened
    forwards = sum(count * curve.cost(replicas) for replicas, count in rounds.sizes.items())
    drafter = curve.drafter
    return Prediction(
        draft_free=prefill + rounds.draft_free_nfe * curve.cost(1),
        prefill=prefill,
        rounds=forwards + opening + curve.round_extra * rounds.proposals,
        drafter=drafter.total(rounds.proposals, rounds.calls, rounds.states_scored) if drafter else 0.0,
    )


def predicted_ratio(
    curve: CostCurve, run: MethodRun, requests: Sequence[Request], batch_size: int, block_length: int
) -> float | None:
    """Throughput over draft-free's of a decoded run on `curve`, each request by itself; None for a budget that pays
    decoded in batches, which was that of rows that share forwards."""
    if run.method.curve is not None and batch_size > 1:
        return None
    return predict(curve, decoded_rounds(run, requests, block_length)).throughput_ratio


def prediction_row(curve: CostCurve, rounds: Rounds) -> dict[str, Any]:
    """One row of results. nfe, draft_free_nfe, positions: means a row; reduction: the sums' ratio; replicas: mean a
    forward; shares: of the drafted run's time."""
    prediction = predict(curve, rounds)
    replicas = sum(count * size for size, count in rounds.sizes.items()) + rounds.opened
    return {
        "curve": curve.name,
        "n": rounds.rows,
        "nfe": rounds.nfe / rounds.rows,
        "draft_free_nfe": rounds.draft_free_nfe / rounds.rows,
        "reduction": rounds.draft_free_nfe / rounds.nfe,
        "accepted": rounds.accepted / max(rounds.drafted_rounds, 1),
        "replicas": replicas / rounds.nfe,
        "positions": replicas * rounds.block_length / rounds.rows,
        "states_scored": rounds.states_scored / rounds.rows,
        "throughput_ratio": prediction.throughput_ratio,
        "shares": {name: getattr(prediction, name) / prediction.drafted for name in ("prefill", "rounds", "drafter")},
        "drafter_included": curve.drafter is not None,
    }
