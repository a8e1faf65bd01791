"""Collect: prompts -> draft-free trajectories -> shards, resumable after any kill.

A lease is an ordered list of prompts; each becomes one shard, decoded on its own, so a shard's bits depend on its lease
and the recipe alone. Knows nothing about training and prints nothing: progress goes to a callback.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from spot_infer.atomic import BeforeRename, full_disk_named, remove_partials
from spot_infer.decode import decode
from spot_infer.errors import SpotError
from spot_infer.noise import NOISE_VERSION, request_seed
from spot_infer.requests import DecodeSettings, Request, Round
from spot_infer.table import TOP_K
from spot_infer.targets import load_target
from spot_infer.targets.protocol import Target
from spot_train.output_lock import Interrupted, PendingSignal, deferred_signals, output_lock
from spot_train.prompts import Prompt, PromptReport, lease_hash, load_prompts
from spot_train.provenance import append_provenance, library_versions, weights_hash
from spot_train.recipe import COLLECT_SECTIONS, Recipe, recipe_hash, recipe_values
from spot_train.recording import record_trajectories
from spot_train.shard_files import Damaged, StoredTrajectory, check_shard, shard_bytes, write_shard
from spot_train.shards import (
    MERGED,
    common_attributes,
    differing_field,
    read_manifest,
    shard_name,
    shard_paths,
    write_manifest,
)


@dataclass(frozen=True)
class Plan:
    """What a run will do, known before its first forward. projected_bytes: most that the missing shards can take, or
    what they will take at the finished ones' bytes a trajectory."""

    leases: int
    kept: int
    trajectories: int
    kept_trajectories: int
    projected_bytes: int
    measured: bool
    repaired: tuple[str, ...]
    prompts: PromptReport


@dataclass
class Tally:
    """How far a run is. trajectories, bytes: finished shards included; commits, nfe, seconds: of this run."""

    trajectories: int = 0
    bytes: int = 0
    commits: int = 0
    nfe: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Summary:
    """A finished run: its plan, its tally, and how many shards it wrote."""

    out: Path
    plan: Plan
    tally: Tally
    written: int

    @property
    def bytes_per_trajectory(self) -> float:
        return self.tally.bytes / max(1, self.tally.trajectories)


class Progress(Protocol):
    """Hears of a run as it goes."""

    def started(self, plan: Plan) -> None:
        """Once, before the first forward."""

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
) -> Summary:
    """Decode the recipe's prompts draft-free and store their trajectories as shards in `out`, resuming what is there.

    `target` replaces the recipe's own, already loaded. `before_rename` runs before every rename (tests delay there).
    Damaged shards and manifests are made again. Raises SpotError where `out` holds another recipe's or target's shards
    (naming the field), another process writes it, or the disk is too small; Interrupted on SIGINT or SIGTERM.
    """
    folder = _folder(Path(out))
    with output_lock(folder), full_disk_named(folder):
        remove_partials(folder)
        repaired = _check_recipe(folder, recipe)
        target = load_recipe_target(recipe) if target is None else target
        prompts, report = load_prompts(recipe, target)
        size = recipe.collect.lease_prompts
        leases = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        common = shared_attributes(recipe, target, report)
        run = _Run(folder, recipe, target, leases, report, common, before_rename)
        repaired += _adopt(run)
        plan = _plan(run, repaired)
        _check_space(run, plan)
        if progress is not None:
            progress.started(plan)
        run.save_manifest()
        with deferred_signals() as pending:
            tally = _decode_missing(run, plan, progress, pending)
        written = len(run.finished) - plan.kept
        figures = {**dataclasses.asdict(tally), "shards_written": written, "interrupted": pending.number}
        append_provenance(folder, {"command": "collect", **figures})
    if pending.number is not None:
        raise Interrupted(
            pending.number,
            f"interrupted: {len(run.finished)} of {len(leases)} shards are in {folder}; run again to resume",
        )
    return Summary(folder, plan, tally, written)


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
    """The recipe's draft-free decoding."""
    section = recipe.collect
    return DecodeSettings(
        max_new_tokens=section.max_new_tokens,
        rule=recipe.rule.commit_rule(),
        sampling=recipe.sampling.sampling(),
        layout=section.layout,
        batch_size=section.batch_size,
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
    leases = {shard_name(index): _lease(index, lease) for index, lease in enumerate(run.leases)}
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


def _plan(run: _Run, repaired: Sequence[str]) -> Plan:
    missing = [lease for index, lease in enumerate(run.leases) if shard_name(index) not in run.finished]
    kept = sum(attributes["counts"]["trajectories"] for attributes in run.finished.values())
    prompts = sum(len(lease) for lease in missing)
    if kept:
        projected = sum(map(shard_bytes, run.finished.values())) * prompts // kept
    else:
        projected = sum(_most_bytes(run, prompt) for lease in missing for prompt in lease)
    return Plan(
        leases=len(run.leases),
        kept=len(run.finished),
        trajectories=run.report.used,
        kept_trajectories=kept,
        projected_bytes=projected,
        measured=bool(kept),
        repaired=tuple(repaired),
        prompts=run.report,
    )


def _most_bytes(run: _Run, prompt: Prompt) -> int:
    """Bytes of one trajectory, uncompressed and decoded to its limit, one commit a step."""
    length = run.target.spec.block_length
    row = 1 + TOP_K * (2 + 4) + 4 + (6 if run.recipe.sampling.temperature > 0 else 0)
    step = 8 + 8 + 4 + 4 + 2
    end = len(prompt.prompt_ids) + run.recipe.collect.max_new_tokens
    total = 0
    for start in range(run.target.spec.first_block(len(prompt.prompt_ids)), end, length):
        masked = length - max(0, len(prompt.prompt_ids) - start)
        total += masked * (masked + 1) // 2 * row + masked * step + 4 * length
    return total


def _check_space(run: _Run, plan: Plan) -> None:
    free = shutil.disk_usage(run.folder).free
    needed = plan.projected_bytes + run.recipe.collect.free_space_margin_bytes
    if plan.kept < plan.leases and free < needed:
        raise SpotError(
            f"{run.folder} has {free:,} bytes free, {needed:,} are needed ({plan.projected_bytes:,} projected and "
            f"collect.free_space_margin_bytes {run.recipe.collect.free_space_margin_bytes:,}); free space or lower "
            "prompts.limit or collect.max_new_tokens"
        )


def _decode_missing(run: _Run, plan: Plan, progress: Progress | None, pending: PendingSignal) -> Tally:
    started = time.perf_counter()
    tally = Tally(plan.kept_trajectories, sum(map(shard_bytes, run.finished.values())))
    for index, lease in enumerate(run.leases):
        name = shard_name(index)
        if name in run.finished:
            continue
        if pending.number is not None:
            break
        stored: dict[int, StoredTrajectory] = {}
        nfe = tally.nfe
        for place, item, forwards in _decode_lease(run, lease, pending):
            stored[place] = item
            tally.trajectories += 1
            tally.commits += len(item.trajectory.commit_token)
            tally.nfe += forwards
            tally.seconds = time.perf_counter() - started
            if progress is not None:
                progress.advanced(tally)
        if len(stored) < len(lease):
            tally.trajectories -= len(stored)
            break
        attributes = {**run.common, "lease": {**_lease(index, lease), "nfe": tally.nfe - nfe}}
        shutil.rmtree(run.folder / name, ignore_errors=True)
        ordered = [stored[place] for place in range(len(lease))]
        run.finished[name] = write_shard(run.folder / name, ordered, attributes, run.before_rename)
        run.save_manifest()
        tally.bytes += shard_bytes(run.finished[name])
        tally.seconds = time.perf_counter() - started
        if progress is not None:
            progress.advanced(tally)
    return tally


def _decode_lease(
    run: _Run, lease: Sequence[Prompt], pending: PendingSignal
) -> Iterator[tuple[int, StoredTrajectory, int]]:
    """(place in the lease, trajectory, NFE) of each prompt as it finishes; ends early once a signal is pending."""
    seed = run.recipe.collect.seed
    requests = [Request(prompt.prompt_ids, request_seed(seed, prompt.prompt_ids)) for prompt in lease]
    rounds = _until(pending, decode(run.target, requests, decode_settings(run.recipe), record=True))
    for index, trajectory, result in record_trajectories(requests, rounds):
        item = StoredTrajectory(trajectory, lease[index].content_hash, lease[index].heldout)
        yield index, item, result.stats.nfe


def _until(pending: PendingSignal, rounds: Iterator[Round]) -> Iterator[Round]:
    for round_ in rounds:
        if pending.number is not None:
            return
        yield round_


def _lease(index: int, lease: Sequence[Prompt]) -> dict[str, Any]:
    return {"index": index, "prompts": len(lease), "sha256": lease_hash(lease)}
