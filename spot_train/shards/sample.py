"""Recorded trajectories to look at: the tokens of each block with the number of the step that wrote them.

Needs the target's tokenizer to show words and shows ids without it. Reads single trajectories; measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from spot_infer.errors import SpotError
from spot_infer.live import visible
from spot_infer.packaged import local_path
from spot_infer.targets.checkpoint_folder import find_folder, json_digest, load_tokenizer
from spot_train.shards.files import StoredTrajectory, read_shard
from spot_train.shards.source import Source
from spot_train.trajectory import Trajectory

TokenText = Callable[[int], str]
WIDTH = 24
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_EARLY_TO_LATE = ("bold red", "red", "yellow", "green", "cyan", "blue")
_OUTSIDE = "dim"


def sample(shards: Source, count: int) -> Iterator[tuple[str, int, StoredTrajectory]]:
    """(shard, place in it, trajectory) of at most `count` trajectories, spread evenly over the set, in order. Of a set
    behind a URL only the shards that they lie in are fetched."""
    ends = np.cumsum([shards.manifest["shards"][name]["counts"]["trajectories"] for name in shards.names])
    total = int(ends[-1])
    wanted = np.unique(np.linspace(0, total - 1, min(count, total)).astype(np.int64))
    for index, name in enumerate(shards.names):
        first = int(ends[index - 1]) if index else 0
        places = {int(one) - first for one in wanted if first <= one < ends[index]}
        if not places:
            continue
        with shards.shard(name) as path:
            for place, stored in enumerate(read_shard(path)):
                if place in places:
                    yield name, place, stored


def token_text(attributes: Mapping[str, Any], given: str | None) -> TokenText | None:
    """How a token id reads under the tokenizer that `given` names, else the target's own if it is on this machine; None
    where there is none. Raises SpotError where `given` has no tokenizer, or another vocabulary than the target's."""
    facts = attributes["target"]
    folder = _folder_at_hand(str(facts["name"]), facts.get("revision")) if given is None else find_folder(given, None)
    tokenizer = None if folder is None else load_tokenizer(folder, None)
    if tokenizer is None:
        if given is not None:
            raise SpotError(f"--tokenizer {given} holds no tokenizer; give the target's folder or hub id")
        return None
    if json_digest(tokenizer.get_vocab()) != facts.get("tokenizer_hash"):
        if given is not None:
            raise SpotError(f"--tokenizer {given} has another vocabulary than the target {facts['name']}; give its own")
        return None
    return lambda token: str(tokenizer.decode([token]))


def drawn(trajectory: Trajectory, mask_id: int, text_of: TokenText | None) -> RenderableType:
    """The trajectory block by block: each token followed by the number of the step that wrote it, from 1 in its block,
    early ones red and late ones blue. Dim: the prompt's tail, which has no number, and what the user does not get."""
    parts: list[RenderableType] = []
    length = trajectory.block_tokens.shape[-1]
    first = int(trajectory.block_start[0]) if len(trajectory) else 0
    for number, tokens in enumerate(trajectory.block_tokens.tolist()):
        start = first + number * length
        steps = np.flatnonzero(trajectory.block_start == start).tolist()
        order = {commit.position: place for place, step in enumerate(steps, 1) for commit in trajectory.step(step)}
        line = Text(overflow="fold")
        for position, token in enumerate(tokens, start):
            shown = "·" if token == mask_id else str(token) if text_of is None else visible(text_of(token), WIDTH)
            line.append(shown, _style(position, order, len(steps), trajectory))
            line.append(str(order[position]).translate(_SUBSCRIPTS) if position in order else "", _OUTSIDE)
            line.append(" ")
        parts.append(Text(f"block {number}, positions {start} to {start + length - 1}, {len(steps)} steps", "dim"))
        parts.append(Padding(line, (0, 0, 0, 2)))
    return Group(*parts)


def headline(name: str, place: int, stored: StoredTrajectory) -> str:
    """Where a trajectory lies and what it is, in one line."""
    one = stored.trajectory
    split = "held out" if stored.heldout else "train"
    leftmost = leftmost_share(one)
    return (
        f"{name} #{place} · prompt {one.prompt_hash[:12]} of {one.prompt_length} tokens ({split}) · "
        f"{one.returned_tokens} tokens returned, {len(one)} steps, finished by {one.finish_reason} · "
        + (f"{leftmost:.0%} of the steps wrote the leftmost open slot" if len(one) else "nothing decoded")
    )


def leftmost_share(trajectory: Trajectory) -> float:
    """Share of the steps that filled the leftmost slot that was open."""
    hits = 0
    for step in range(len(trajectory)):
        leftmost = int(trajectory.block_start[step]) + int(trajectory.slot[trajectory.step_start[step]])
        hits += any(commit.position == leftmost for commit in trajectory.step(step))
    return hits / max(1, len(trajectory))


def _style(position: int, order: Mapping[int, int], steps: int, trajectory: Trajectory) -> str:
    if position not in order or position >= trajectory.prompt_length + trajectory.returned_tokens:
        return _OUTSIDE
    return _EARLY_TO_LATE[(order[position] - 1) * len(_EARLY_TO_LATE) // max(1, steps)]


def _folder_at_hand(name: str, revision: str | None) -> Path | None:
    """The target's folder if it is on this machine: a folder, what ships with the package, or the hub's cache."""
    try:
        folder = local_path(name)
        if folder.is_dir():
            return folder
        cached = try_to_load_from_cache(name, "tokenizer_config.json", revision=revision)
    except (SpotError, HFValidationError):
        return None
    return Path(cached).parent if isinstance(cached, str) else None
