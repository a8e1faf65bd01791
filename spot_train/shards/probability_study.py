"""What storing a table's probabilities in fewer bits costs: bytes a commit against held-out accuracy and replayed NFE.

Recorded tables are encoded, decoded and handed to a drafter that was trained on tables as they are: what it loses is an
upper bound of what one trained on such tables would. Nothing is decoded with a target and no shard is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spot_infer.drafters import OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.features import LEAST_LOGPROB
from spot_train.fit.evaluate import evaluate
from spot_train.replay.replay import ReplayResult, replay, replay_summary
from spot_train.shards.files import array_bytes, read_array
from spot_train.shards.report import describe
from spot_train.shards.store import ShardSet
from spot_train.trajectory import Trajectory

Logs = NDArray[np.float16]
_STEPS = 254
_ABSENT = 255


@dataclass(frozen=True)
class Encoding:
    """One way to store `top_logprob` f16 [M, 32]; `decode(encode(x))` is what readers would see."""

    name: str
    encode: Callable[[Logs], NDArray[Any]]
    decode: Callable[[NDArray[Any]], Logs]


def _levels(logprob: Logs, power: float) -> NDArray[np.uint8]:
    """254 steps over 0 .. -20, even in (-log p) ** power; 255 where there is no token."""
    share = np.clip(logprob.astype(np.float32) / np.float32(LEAST_LOGPROB), 0, 1) ** np.float32(power)
    return np.where(np.isfinite(logprob), np.rint(share * _STEPS), _ABSENT).astype(np.uint8)


def _from_levels(levels: NDArray[Any], power: float) -> Logs:
    logprob = (levels.astype(np.float32) / _STEPS) ** np.float32(1 / power) * np.float32(LEAST_LOGPROB)
    return np.where(levels == _ABSENT, -np.inf, logprob).astype(np.float16)


def _log(probability: NDArray[Any]) -> Logs:
    with np.errstate(divide="ignore"):
        return np.log(probability.astype(np.float32)).astype(np.float16)


ENCODINGS = (
    Encoding("float16 log", lambda logprob: logprob, lambda stored: stored),
    Encoding("float16 raw", lambda logprob: np.exp(logprob.astype(np.float32)).astype(np.float16), _log),
    Encoding("8-bit log", lambda logprob: _levels(logprob, 1.0), lambda levels: _from_levels(levels, 1.0)),
    Encoding("8-bit root of log", lambda logprob: _levels(logprob, 0.5), lambda levels: _from_levels(levels, 0.5)),
)
"""What shards hold, first; the eight bits end at the smallest log probability that a drafter's features tell apart."""


def study(
    shards: ShardSet,
    drafter: OrderDrafter,
    budgets: Sequence[int] = (8, 20),
    limit: int | None = None,
    encodings: Sequence[Encoding] = ENCODINGS,
) -> list[dict[str, Any]]:
    """One row an encoding, as JSON values; the first encoding is the control.

    bytes_a_commit: of the probabilities, and with everything else of the shards, over the whole set; accuracy: held-out
    next-commit accuracy over all depths and at depth 0, every commit; nfe: mean a trajectory by budget, with the paired
    change against the control, its standard error (None of a single one), and how many trajectories it changed.
    `limit`: most held-out trajectories measured. Raises SpotError where there is none.
    """
    trajectories = [one for one in islice(shards.trajectories("heldout"), limit) if len(one)]
    if not trajectories:
        raise SpotError(f"{shards.path} has no held-out trajectory; collect with prompts.heldout_fraction above 0")
    sizes, rest = _sizes(shards, encodings)
    rows: list[dict[str, Any]] = []
    controls: list[list[ReplayResult]] = []
    for encoding, size in zip(encodings, sizes, strict=True):
        seen = [_through(encoding, one) for one in trajectories]
        temperature = shards.sampling.temperature
        model = evaluate(drafter, seen, budgets=(), replay_limit=0, temperature=temperature)["orders"]["all"]["model"]
        replays = [replay(drafter, seen, budget, temperature=temperature) for budget in budgets]
        controls = controls or replays
        rows.append(
            {
                "encoding": encoding.name,
                "bytes_a_commit": {"probabilities": size, "all": size + rest},
                "largest_error": _largest_error(trajectories, seen),
                "accuracy": {"all": model["accuracy"], "depth_0": model["by_depth"][0], "loss": model["loss"]},
                "nfe": {
                    f"D{budget}": {**replay_summary(results), **_change(results, control)}
                    for budget, results, control in zip(budgets, replays, controls, strict=True)
                },
                "trajectories": len(seen),
            }
        )
    return rows


def _through(encoding: Encoding, trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, top_logprob=encoding.decode(encoding.encode(trajectory.top_logprob)))


def _sizes(shards: ShardSet, encodings: Sequence[Encoding]) -> tuple[list[float], float]:
    """Bytes a commit of the probabilities under each encoding, and of all the rest; one shard in memory."""
    totals = np.zeros(len(encodings))
    for name in shards.names:
        logprob = read_array(shards.path / name, "top_logprob")
        totals += [array_bytes("top_logprob", encoding.encode(logprob)) for encoding in encodings]
    found = describe(shards.path)
    commits = max(1, found["commits"])
    return (totals / commits).tolist(), (found["bytes"] - found["arrays"]["top_logprob"]["bytes"]) / commits


def _largest_error(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> float:
    """Largest absolute change of a probability."""
    pairs = zip(before, after, strict=True)
    return max(float(np.abs(_probability(one) - _probability(other)).max()) for one, other in pairs)


def _probability(trajectory: Trajectory) -> NDArray[np.float32]:
    return np.exp(trajectory.top_logprob.astype(np.float32))


def _change(results: Sequence[ReplayResult], control: Sequence[ReplayResult]) -> dict[str, float | None]:
    change = np.array([one.nfe - other.nfe for one, other in zip(results, control, strict=True)], dtype=np.float64)
    error = float(change.std(ddof=1) / np.sqrt(len(change))) if len(change) > 1 else None
    return {"change": float(change.mean()), "change_error": error, "changed": int((change != 0).sum())}
