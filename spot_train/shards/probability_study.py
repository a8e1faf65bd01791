"""What storing a table's probabilities in fewer bits costs: bytes a commit against held-out accuracy and replayed NFE.

Recorded tables are encoded, decoded and handed to a drafter that was trained on other ones: what it loses is an upper
bound of what one trained on such tables would. Shards of format version 1 hold float16 logs, the control; of later ones
eight bits are the control. Nothing is decoded with a target and no shard is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spot_infer.drafters import OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.logprob_levels import ABSENT, LEAST_LOGPROB
from spot_train.fit.evaluate import evaluate
from spot_train.replay.replay import ReplayResult, replay, replay_summary
from spot_train.shards.files import (
    FORMAT_VERSION,
    array_bytes,
    differences,
    read_array,
    read_attributes,
    read_logprob,
    stored_logprob,
    sums,
)
from spot_train.shards.report import describe
from spot_train.shards.store import ShardSet
from spot_train.trajectory import Trajectory

Logs = NDArray[np.float16]


@dataclass(frozen=True)
class Encoding:
    """One way to store `top_logprob` f16 [M, 32]; `decode(encode(x))` is what readers would see."""

    name: str
    encode: Callable[[Logs], NDArray[Any]]
    decode: Callable[[NDArray[Any]], Logs]


def even_steps(name: str, steps: int, power: float) -> Encoding:
    """`steps` steps over 0 .. -20, even in (-log p) ** power, stored as shards store levels."""

    def encode(logprob: Logs) -> NDArray[np.uint8]:
        share = np.clip(logprob.astype(np.float32) / np.float32(LEAST_LOGPROB), 0, 1) ** np.float32(power)
        return differences(np.where(np.isfinite(logprob), np.rint(share * steps), ABSENT).astype(np.uint8))

    def decode(stored: NDArray[np.uint8]) -> Logs:
        levels = sums(stored)
        logprob = (levels.astype(np.float32) / steps) ** np.float32(1 / power) * np.float32(LEAST_LOGPROB)
        return np.where(levels == ABSENT, -np.inf, logprob).astype(np.float16)

    return Encoding(name, encode, decode)


def _log(probability: NDArray[Any]) -> Logs:
    with np.errstate(divide="ignore"):
        return np.log(probability.astype(np.float32)).astype(np.float16)


EIGHT_BITS = (
    Encoding("8-bit root of log", stored_logprob, partial(read_logprob, version=FORMAT_VERSION)),
    even_steps("6-bit root of log", 62, 0.5),
)
"""What shards hold, first."""
FLOAT16 = (
    Encoding("float16 log", lambda logprob: logprob, lambda stored: stored),
    Encoding("float16 raw", lambda logprob: np.exp(logprob.astype(np.float32)).astype(np.float16), _log),
    even_steps("8-bit log", 254, 1.0),
    *EIGHT_BITS,
)
"""What shards of format version 1 hold, first."""


def study(
    shards: ShardSet,
    drafter: OrderDrafter,
    budgets: Sequence[int] = (8, 20),
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """One row an encoding, as JSON values; the first, what the shards hold, is the control.

    bytes_a_commit: of the probabilities, and with everything else of the shards, over the whole set; accuracy: held-out
    next-commit accuracy over all depths and at depth 0, every commit; nfe: mean a trajectory by budget, with the paired
    change against the control, its standard error (None of a single one), and how many trajectories it changed.
    `limit`: most held-out trajectories measured. Raises SpotError where there is none.
    """
    encodings = FLOAT16 if all(_version(shards.path / name) == 1 for name in shards.names) else EIGHT_BITS
    trajectories = [one for one in islice(_heldout(shards), limit) if len(one)]
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


def _heldout(shards: ShardSet) -> Iterator[Trajectory]:
    """Held-out trajectories with their log probabilities as the shards hold them."""
    for name in shards.names:
        path = shards.path / name
        logprob = _held(path)
        rows = read_array(path, "step_start")[read_array(path, "trajectory_step")]
        marked = np.flatnonzero(read_array(path, "heldout"))
        for index, one in zip(marked, shards.trajectories("heldout", [name]), strict=True):
            yield replace(one, top_logprob=logprob[rows[index] : rows[index + 1]].copy())


def _held(path: Path) -> Logs:
    """A shard's log probabilities; the float16 logs of version 1 are not rounded, as readers do."""
    stored, version = read_array(path, "top_logprob"), _version(path)
    return stored if version == 1 else read_logprob(stored, version)


def _version(path: Path) -> int:
    return int(read_attributes(path)["format_version"])


def _through(encoding: Encoding, trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, top_logprob=encoding.decode(encoding.encode(trajectory.top_logprob)))


def _sizes(shards: ShardSet, encodings: Sequence[Encoding]) -> tuple[list[float], float]:
    """Bytes a commit of the probabilities under each encoding, and of all the rest; one shard in memory."""
    totals = np.zeros(len(encodings))
    for name in shards.names:
        logprob = _held(shards.path / name)
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
