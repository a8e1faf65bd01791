"""Collect: prompts -> trajectories -> shards, resumable after any kill.

A lease is an ordered list of prompts; each becomes one shard, decoded on its own, so a shard's bits depend on its lease
and the recipe alone. Decoding is draft-free, or drafted, which records the same; then a shard says by what. Knows
nothing about how drafters are made and prints nothing: progress goes to a callback.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from spot_infer.atomic import BeforeRename, full_disk_named, remove_partials
from spot_infer.errors import SpotError
from spot_infer.noise import NOISE_VERSION
from spot_infer.requests import DecodeSettings, Result
from spot_infer.table import TOP_K
from spot_infer.targets import load_target
from spot_infer.targets.protocol import Target
from spot_train.batch_size import with_fitting_batch, with_recorded_batch
from spot_train.collect_methods import DRAFT_FREE, OneMethod, Schedule, method_record
from spot_train.collect_plan import Plan, check_space, make_plan
from spot_train.compare import Method
from spot_train.leases import Forwards, decode_lease, lease_record, split_leases
from spot_train.output_lock import Interrupted, PendingSignal, deferred_signals, output_lock
from spot_train.prompts import Prompt, PromptReport, load_prompts
from spot_train.provenance import append_provenance, library_versions, weights_hash
from spot_train.recipe import COLLECT_SECTIONS, Recipe, recipe_hash, recipe_values
from spot_train.shard_files import (
    Damaged,
    StoredTrajectory,
    check_shard,
    shard_bytes,
    write_shard,
)
from spot_train.shards import (
    MERGED,
    common_attributes,
    differing_field,
    read_manifest,
    shard_name,
    shard_paths,
    write_manifest,
)


@dataclass
class Tally:
    """How far a run is. trajectories, bytes: finished shards included; commits, forwards, seconds: of this run, fit_s
    of them in fits."""

    trajectories: int = 0
    bytes: int = 0
    commits: int = 0
    forwards: Forwards = field(default_factory=Forwards)
    seconds: float = 0.0
    fit_s: float = 0.0


@dataclass(frozen=True)
class Summary:
    """A finished run: its plan, its tally, how many shards it wrote, and what the whole set took, forwards of earlier
    runs included, where every shard says it."""

    out: Path
    plan: Plan
    tally: Tally
    written: int
    recorded: Forwards | None = None

    @property
    def bytes_per_trajectory(self) -> float:
        return self.tally.bytes / max(1, self.tally.trajectories)


class Progress(Protocol):
    """Hears of a run as it goes."""

    def started(self, plan: Plan) -> None:
        """Once, before the first forward."""

    def fitting(self, lease: int) -> None:
        """Before a drafter is fitted to all leases before `lease`."""

    def advanced(self, tally: Tally) -> None:
        """After every trajectory and every shard."""


@dataclass
class _Run:
    """One call of `collect`. common: attributes that all shards share; finished: attributes of sound shards by name."""

    folder: Path
    recipe: Recipe
    target: Target
    leases: list[list[Prompt]]
    report: PromptReport
    common: dict[str, Any]
    before_rename: BeforeRename | None
    finished: dict[str, dict[str, Any]] = field(default_factory=dict)

    def save_manifest(self) -> None:
        """Write the manifest of what is finished."""
        values = recipe_values(self.recipe, COLLECT_SECTIONS)
        report = self.report.to_dict()
        write_manifest(self.folder, self.common, values, report, len(self.leases), self.finished, self.before_rename)


def collect(
    recipe: Recipe,
    out: str | Path,
    target: Target | None = None,
    progress: Progress | None = None,
    before_rename: BeforeRename | None = None,
    method: Method = DRAFT_FREE,
    bootstrap: bool = False,
) -> Summary:
    """Decode the recipe's prompts and store their trajectories as shards in `out`, resuming what is there.

    `target` replaces the recipe's own, already loaded. `method` (`collect_methods.collection_method`) says what is
    drafted; with `bootstrap` it is only the start, until drafters are fitted as the recipe's `bootstrap` says. Shards
    that another method made are kept: each says what made it. `before_rename` runs before every rename (tests delay
    there). Damaged shards and manifests are made again. Raises SpotError where `out` holds another recipe's or target's
    shards (naming the field), another process writes it, or the disk is too small; Interrupted on SIGINT or SIGTERM.
    """
    folder = _folder(Path(out))
    with output_lock(folder), full_disk_named(folder):
        remove_partials(folder)
        recipe = with_recorded_batch(recipe, folder)
        repaired = _check_recipe(folder, recipe)
        target = load_recipe_target(recipe) if target is None else target
        prompts, report = load_prompts(recipe, target)
        widest = dataclasses.replace(method, budget=max(method.budget, recipe.decode.budget if bootstrap else 0))
        recipe = with_fitting_batch(recipe, target, widest, decode_settings(recipe), prompts)
        leases = split_leases(prompts, recipe.collect.lease_prompts)
        common = shared_attributes(recipe, target, report)
        run = _Run(folder, recipe, target, leases, report, common, before_rename)
        heard = (lambda lease: None) if progress is None else progress.fitting
        schedule, fits = make_schedule(recipe, target, leases, folder, common, method, bootstrap, heard)
        repaired += _adopt(run)
        plan = make_plan(recipe, target.spec, leases, report, run.finished, repaired, fits)
        check_space(folder, plan, recipe.collect.free_space_margin_bytes)
        if progress is not None:
            progress.started(plan)
        run.save_manifest()
        with deferred_signals() as pending:
            tally = _decode_missing(run, plan, schedule, progress, pending)
        written = len(run.finished) - plan.kept
        figures = {**dataclasses.asdict(tally), "shards_written": written, "interrupted": pending.number}
        append_provenance(folder, {"command": "collect", **figures})
    if pending.number is not None:
        raise Interrupted(
            pending.number,
            f"interrupted: {len(run.finished)} of {len(leases)} shards are in {folder}; run again to resume",
        )
    return Summary(folder, plan, tally, written, _recorded_forwards(run))


def target_attributes(recipe: Recipe, target: Target) -> dict[str, Any]:
    """What shards and calibrations record of a target, its block length, rule and sampling."""
    spec = target.spec
    facts = dataclasses.asdict(spec)
    block_length = facts.pop("block_length")
    if spec.name == recipe.resolve(recipe.target.path_or_id):
        facts["name"] = recipe.target.path_or_id
    model = getattr(target, "model", None)
    facts["weights_hash"] = weights_hash(model) if isinstance(model, torch.nn.Module) else ""
    attributes = {
        "target": facts,
        "block_length": block_length,
        "rule": recipe.rule.commit_rule().to_dict(),
        "sampling": dataclasses.asdict(recipe.sampling.sampling()),
    }
    return json.loads(json.dumps(attributes))


def shared_attributes(recipe: Recipe, target: Target, report: PromptReport) -> dict[str, Any]:
    """What every shard of a set records and must agree on (library versions may differ)."""
    values = recipe_values(recipe, COLLECT_SECTIONS)
    attributes = {
        **target_attributes(recipe, target),
        "noise_version": NOISE_VERSION,
        "table_top_k": TOP_K,
        "decoding": {key: value for key, value in values["collect"].items() if key != "lease_prompts"},
        "lease_prompts": recipe.collect.lease_prompts,
        "prompts": {**values["prompts"], "sha256": report.sha256},
        "recipe_hash": recipe_hash(recipe, COLLECT_SECTIONS),
        "versions": library_versions(),
    }
    return json.loads(json.dumps(attributes))


def decode_settings(recipe: Recipe) -> DecodeSettings:
    """The recipe's draft-free decoding; a batch size that only collection finds (`auto`) is 8."""
    section = recipe.collect
    rows = section.batch_size
    return DecodeSettings(
        max_new_tokens=section.max_new_tokens,
        rule=recipe.rule.commit_rule(),
        sampling=recipe.sampling.sampling(),
        layout=section.layout,
        batch_size=DecodeSettings.batch_size if rows == "auto" else rows,
        ignore_stop=section.ignore_stop,
        stop=section.stop,
    )


def load_recipe_target(recipe: Recipe) -> Target:
    """The target that the recipe names. Raises SpotError where it can't be loaded."""
    section = recipe.target
    if section.trust_remote_code:
        raise SpotError(
            "target.trust_remote_code is true, but every target family loads through transformers' own classes; set it "
            "to false"
        )
    return load_target(
        recipe.resolve(section.path_or_id),
        dtype=section.dtype,
        device=None if section.device == "auto" else section.device,
        revision=section.revision,
        block_length=section.block_length,
        mask_id=section.mask_id,
        cache=section.cache,
        chat_template=recipe.chat_template(),
        device_map=section.device_map,
        tp_plan=section.tp_plan,
    )


def _folder(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpotError(f"--out {out} can't be made a folder ({error.strerror}); choose another path") from None
    return out


def _check_recipe(folder: Path, recipe: Recipe) -> list[str]:
    """Refuse a folder of another recipe before anything is loaded; returns what is wrong with the manifest, if
    anything."""
    try:
        manifest = read_manifest(folder)
    except Damaged as error:
        return [str(error)]
    except SpotError:
        if (folder / "manifest.json").exists():
            raise
        return []
    if MERGED in manifest["attributes"]:
        raise SpotError(f"{folder} was merged from other sets; collect into another --out and merge that")
    _refuse_difference(folder, manifest["recipe"], recipe_values(recipe, COLLECT_SECTIONS))
    return []


def _adopt(run: _Run) -> list[str]:
    """Keep the sound shards that lie in the folder, listed or not; returns a sentence for each that must be redone."""
    repaired = []
    try:
        listed = set(read_manifest(run.folder)["shards"])
    except SpotError:
        listed = set()
    leases = {shard_name(index): lease_record(index, lease) for index, lease in enumerate(run.leases)}
    for path in shard_paths(run.folder):
        try:
            attributes = check_shard(path)
        except Damaged as error:
            repaired.append(str(error))
            continue
        _refuse_difference(run.folder, common_attributes(attributes), run.common)
        expected = leases.get(path.name)
        if expected is not None and expected.items() <= attributes["lease"].items():
            run.finished[path.name] = attributes
        else:
            repaired.append(f"shard {path.name} holds another lease than its name says")
    missing = sorted(listed - {path.name for path in shard_paths(run.folder)})
    return repaired + [f"shard {name} was listed in manifest.json but missing" for name in missing]


def _refuse_difference(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    found = differing_field(there, here)
    if found is not None:
        raise SpotError(
            f"{folder} was collected with {found[0]} {found[1]!r}, this run has {found[2]!r}; use another --out, or "
            "what the folder was made with"
        )


def make_schedule(
    recipe: Recipe,
    target: Target,
    leases: Sequence[Sequence[Prompt]],
    folder: Path,
    common: Mapping[str, Any],
    method: Method,
    bootstrap: bool,
    fitting: Callable[[int], None] = lambda lease: None,
) -> tuple[Schedule, tuple[int, ...]]:
    """Which method decodes which lease, and the leases before which a drafter is fitted."""
    if not bootstrap:
        return OneMethod(method), ()
    from spot_train.bootstrap import Bootstrap, milestones

    fits = milestones(recipe, leases)
    return Bootstrap(folder, recipe, target, common, fits, method, fitting), fits


def _decode_missing(
    run: _Run, plan: Plan, schedule: Schedule, progress: Progress | None, pending: PendingSignal
) -> Tally:
    started = time.perf_counter()
    tally = Tally(plan.kept_trajectories, sum(map(shard_bytes, run.finished.values())))
    for index, lease in enumerate(run.leases):
        if shard_name(index) in run.finished:
            continue
        if pending.number is not None:
            break
        try:
            method = schedule.at(index)
        except Interrupted as stopped:
            pending.number = stopped.code - 128
            break
        tally.fit_s = schedule.fit_s
        stored: dict[int, StoredTrajectory] = {}
        forwards = Forwards()
        for place, item, result in _decode(run, lease, method, forwards, pending):
            stored[place] = item
            tally.trajectories += 1
            tally.commits += len(item.trajectory.commit_token)
            tally.forwards.add(result)
            tally.seconds = time.perf_counter() - started
            if progress is not None:
                progress.advanced(tally)
        if len(stored) < len(lease):
            tally.trajectories -= len(stored)
            break
        ordered = [stored[place] for place in range(len(lease))]
        tally.bytes += _write(
            run, index, ordered, {"method": method_record(method, run.target.spec), **dataclasses.asdict(forwards)}
        )
        tally.forwards.calls += forwards.calls
        tally.seconds = time.perf_counter() - started
        if progress is not None:
            progress.advanced(tally)
    return tally


def _decode(
    run: _Run, lease: Sequence[Prompt], method: Method, forwards: Forwards, pending: PendingSignal
) -> Iterator[tuple[int, StoredTrajectory, Result]]:
    settings, seed = decode_settings(run.recipe), run.recipe.collect.seed
    return decode_lease(run.target, lease, settings, method, seed, forwards, lambda: pending.number is not None)


def _write(run: _Run, index: int, stored: Sequence[StoredTrajectory], how: Mapping[str, Any]) -> int:
    """Store a finished lease; returns its bytes. how: what its shard records of its decoding."""
    name = shard_name(index)
    attributes = {**run.common, "lease": {**lease_record(index, run.leases[index]), **how}}
    shutil.rmtree(run.folder / name, ignore_errors=True)
    run.finished[name] = write_shard(run.folder / name, stored, attributes, run.before_rename)
    run.save_manifest()
    return shard_bytes(run.finished[name])


def _recorded_forwards(run: _Run) -> Forwards | None:
    """What all finished shards took; None where one of an earlier release doesn't say."""
    names = [field.name for field in dataclasses.fields(Forwards)]
    leases = [attributes["lease"] for attributes in run.finished.values()]
    if not all(name in lease for lease in leases for name in names):
        return None
    return Forwards(**{name: sum(lease[name] for lease in leases) for name in names})
