"""What calibrations share: their prompts, and a small JSON that names its target, data, command and versions.

A file is refused with another target or block length, since what was counted on one holds for no other; another
commit rule warns. Knows nothing about what is calibrated.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from spot_infer.atomic import write_json
from spot_infer.errors import SpotError
from spot_infer.noise import request_seed
from spot_infer.packaged import local_path
from spot_infer.requests import Request
from spot_infer.targets.protocol import Target
from spot_infer.transition import CommitRule
from spot_train.prompts import Prompt, PromptReport, load_prompts
from spot_train.provenance import library_versions
from spot_train.recipe.recipe import PromptSource, Recipe
from spot_train.shards.shown import without_secrets

FORMAT = "spot-calibration"
FORMAT_VERSION = 1
Kind = Literal["graph", "floor"]
_SAME_TARGET = ("config_hash", "weights_hash")
_KEYS = {
    **dict.fromkeys(("format", "kind", "command"), str),
    **dict.fromkeys(("format_version", "block_length"), int),
    **dict.fromkeys(("target", "rule", "sampling", "data", "versions", "values", "measured"), dict),
}


def heldout_prompts(recipe: Recipe, target: Target) -> tuple[list[Prompt], PromptReport]:
    """All of the recipe's held-out pool, by content hash; see `calibration_prompts`."""
    own = recipe.calibrate.sources
    prompts, report = load_prompts(_with_pool(recipe, own) if own else recipe, target)
    return sorted((one for one in prompts if own or one.heldout), key=lambda one: one.content_hash), report


def calibration_prompts(recipe: Recipe, target: Target) -> tuple[list[Prompt], PromptReport]:
    """The first `calibrate.prompts` + `calibrate.heldout` prompts of the recipe's held-out pool, by content hash.

    The pool is `calibrate.sources`, or else what `prompts.heldout_fraction` holds out of `prompts.sources`. Prompts
    that another evaluation split holds are skipped. Raises SpotError where the pool is too small.
    """
    usable, report = heldout_prompts(recipe, target)
    wanted = recipe.calibrate.prompts + recipe.calibrate.heldout
    if len(usable) < wanted:
        raise SpotError(
            f"calibration needs {wanted} held-out prompts, there are {len(usable)}; name a larger pool in "
            "calibrate.sources, or lower calibrate.prompts and calibrate.heldout"
        )
    return usable[:wanted], report


def calibration_requests(recipe: Recipe, target: Target) -> tuple[list[Request], dict[str, Any]]:
    """The recipe's calibration prompts, both halves, and what the file records of them: how many rows were skipped and
    why (`evaluation` counts those that an evaluation split holds)."""
    prompts, report = calibration_prompts(recipe, target)
    seed = recipe.collect.seed
    sources = recipe.calibrate.sources or recipe.prompts.sources
    data = {
        "sources": [one.path_or_id for one in sources],
        "prompts": len(prompts),
        "skipped": report.skipped,
        "max_new_tokens": recipe.collect.max_new_tokens,
    }
    return [Request(one.prompt_ids, request_seed(seed, one.prompt_ids)) for one in prompts], data


def write_calibration(
    path: Path,
    kind: Kind,
    attributes: Mapping[str, Any],
    data: Mapping[str, Any],
    values: Mapping[str, Any],
    measured: Mapping[str, Any],
) -> None:
    """Write the file, whole or not at all. `attributes` are those of a set of shards: target, block length, rule."""
    facts = attributes["target"]
    record = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "target": {key: facts.get(key) for key in ("name", "revision", "dtype", *_SAME_TARGET)},
        "block_length": attributes["block_length"],
        "rule": attributes["rule"],
        "sampling": attributes["sampling"],
        "data": data,
        "values": values,
        "measured": measured,
        "command": " ".join(["spot-train", *map(without_secrets, sys.argv[1:])]),
        "versions": library_versions(),
    }
    write_json(path, record)


def read_calibration(path: Path, kind: Kind) -> dict[str, Any]:
    """The record in `path`. Raises SpotError where it is no such file or of another version."""
    command = f"`spot-train calibrate {kind}`"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpotError(f"{path} is no readable JSON file ({error}); give a file that {command} wrote") from None
    if not isinstance(record, dict) or (record.get("format"), record.get("kind")) != (FORMAT, kind):
        raise SpotError(f"{path} is no {kind} calibration; give a file that {command} wrote")
    if record.get("format_version") != FORMAT_VERSION:
        raise SpotError(
            f"{path} has format version {record.get('format_version')}; this release reads version {FORMAT_VERSION}, "
            "calibrate again"
        )
    for key, form in _KEYS.items():
        if not isinstance(record.get(key), form):
            raise SpotError(f"{path}: {key} is {record.get(key)!r}; calibrate again")
    return record


def load_calibration(path: str | Path, kind: Kind, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The record in a file or `builtin:` name, checked against a target's attributes (`collect.target_attributes`) or
    those of a set of shards.

    Raises SpotError where the file is damaged or was made for another target or block length; another commit rule
    warns.
    """
    place = local_path(path)
    record = read_calibration(place, kind)
    _check(record, place, attributes)
    return record


def _check(record: Mapping[str, Any], path: Path, attributes: Mapping[str, Any]) -> None:
    for key in _SAME_TARGET:
        there, here = record["target"].get(key), attributes["target"].get(key)
        if there != here:
            raise SpotError(
                f"{path} was calibrated for {record['target'].get('name')} ({key} {_short(there)}), not for "
                f"{attributes['target'].get('name')} ({_short(here)}); calibrate one for this target"
            )
    if record["block_length"] != attributes["block_length"]:
        raise SpotError(
            f"{path} was calibrated for block length {record['block_length']}, not {attributes['block_length']}; "
            "calibrate one for this block length"
        )
    there, here = (CommitRule.from_dict(dict(one["rule"])) for one in (record, attributes))
    if there != here:
        warnings.warn(
            f"{path} was calibrated under another commit rule ({_differing(there, here)}): decoding stays lossless, "
            "but this was not made for its order",
            stacklevel=2,
        )


def _with_pool(recipe: Recipe, sources: tuple[PromptSource, ...]) -> Recipe:
    """The recipe with `sources` as its prompts; they stop being an evaluation split of it, the others stay one."""
    places = {source.path_or_id for source in sources}
    others = tuple(source for source in recipe.prompts.evaluation if source.path_or_id not in places)
    prompts = recipe.prompts.model_copy(update={"sources": sources, "evaluation": others, "limit": None})
    return recipe.model_copy(update={"prompts": prompts})


def _differing(there: CommitRule, here: CommitRule) -> str:
    pairs = {key: (getattr(there, key), getattr(here, key)) for key in CommitRule.__dataclass_fields__}
    return ", ".join(f"{key} {own}, not {other}" for key, (own, other) in pairs.items() if own != other)


def _short(value: Any) -> str:
    return str(value)[:12]
