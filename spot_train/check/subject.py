"""What is checked: a target by name or by recipe, the prompts it decodes and how. Loads; measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spot_infer.api import encode_prompt
from spot_infer.decode import check_requests
from spot_infer.encoded_prompts import encode_rows
from spot_infer.errors import SpotError
from spot_infer.noise import request_seed
from spot_infer.packaged import packaged
from spot_infer.prompts_io import read_prompts
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets import load_target
from spot_infer.targets.protocol import Target
from spot_infer.transition import CommitRule, Sampling
from spot_train.calibrate.calibration import heldout_prompts
from spot_train.check.decoding import RESOLUTIONS, Resolution
from spot_train.collect.collect import decode_settings, load_recipe_target
from spot_train.recipe.recipe import Recipe, load_recipe, parse_overrides, resolve_path

PROMPTS = "data/pools/heldout.jsonl"


@dataclass(frozen=True)
class SubjectOptions:
    """What the command line says; None leaves it to the recipe, or to the defaults where there is none."""

    target: str
    prompts: int
    input: Path | None = None
    overrides: tuple[str, ...] = ()
    loading: Mapping[str, Any] | None = None
    budget: int | None = None
    batch_size: int | None = None
    max_new_tokens: int | None = None
    resolutions: Sequence[Resolution] = RESOLUTIONS


@dataclass(frozen=True)
class Subject:
    """The target, the requests, and the settings of drafted runs; name: what the user called it; bitwise: the recipe
    decodes in bitwise mode; resolutions: of the commit rule, each checked apart."""

    name: str
    target: Target
    requests: tuple[Request, ...]
    settings: DecodeSettings
    bitwise: bool = False
    resolutions: Sequence[Resolution] = RESOLUTIONS


def load_subject(options: SubjectOptions) -> Subject:
    """Load what the options name. Prompts come from `input`, or else from the recipe's held-out pool or the packaged
    one; they are decoded greedily with one commit a step.

    Raises SpotError where the options contradict each other or a prompt can't be decoded.
    """
    recipe = None
    if options.target.endswith((".yaml", ".yml")):
        values = {f"target.{name}": value for name, value in (options.loading or {}).items() if value is not None}
        recipe = load_recipe(options.target, parse_overrides(options.overrides) | values)
        target = load_recipe_target(recipe)
        settings = replace(
            decode_settings(recipe),
            budget=recipe.decode.budget,
            layout=recipe.decode.layout,
            boundary=recipe.decode.form().boundary,
            pad=recipe.decode.pad,
        )
    elif options.overrides:
        raise SpotError(f"--set goes with a recipe, and {options.target} is a target; leave it out")
    else:
        target = load_target(resolve_path(options.target, Path.cwd()), **(options.loading or {}))
        settings = DecodeSettings(max_new_tokens=128, budget=8)
    given = {
        name: getattr(options, name)
        for name in ("budget", "batch_size", "max_new_tokens")
        if getattr(options, name) is not None
    }
    settings = replace(settings, rule=CommitRule(), sampling=Sampling(), stop=(), **given)
    requests = _requests(options, target, recipe, settings.max_new_tokens)
    check_requests(target.spec, requests, settings)
    for one in options.resolutions:
        replace(settings.rule, resolution=one)
    bitwise = recipe is not None and recipe.decode.bitwise
    return Subject(options.target, target, requests, settings, bitwise, options.resolutions)


def _requests(
    options: SubjectOptions, target: Target, recipe: Recipe | None, max_new_tokens: int
) -> tuple[Request, ...]:
    if recipe is not None and options.input is None:
        prompts = [one.prompt_ids for one in heldout_prompts(recipe, target)[0]]
        source = "the recipe's held-out pool"
    else:
        read = read_prompts(options.input or packaged(PROMPTS))
        first = replace(read, rows=read.rows[: options.prompts])
        if options.input is None:
            prompts = [encode_prompt(target, row.prompt) for row in first.rows]
        else:
            prompts = [ids for _, ids in encode_rows(target, first, max_new_tokens)]
        source = str(options.input or f"builtin:{PROMPTS}")
    if len(prompts) < options.prompts:
        raise SpotError(f"--prompts is {options.prompts}, but {source} holds {len(prompts)}; ask for fewer")
    return tuple(Request(ids, request_seed(0, ids)) for ids in prompts[: options.prompts])
