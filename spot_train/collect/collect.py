"""Collect: prompts -> trajectories -> shards, resumable after any kill.

A lease is an ordered list of prompts; each becomes one shard, decoded on its own, so a shard's bits depend on its lease
and the recipe alone. Decoding is draft-free, or drafted, which records the same; then a shard says by what. Knows
nothing about how drafters are made and prints nothing: progress goes to a callback.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from spot_infer.atomic import BeforeRename, full_disk_named, remove_partials
from spot_infer.errors import SpotError
from spot_infer.noise import NOISE_VERSION
from spot_infer.requests import DecodeSettings
from spot_infer.table import TOP_K
from spot_infer.targets import load_target
from spot_infer.targets.protocol import Target
from spot_train.collect.batch_size import with_fitting_batch, with_recorded_batch
from spot_train.collect.leases import Forwards, decode_lease, split_leases
from spot_train.collect.methods import DRAFT_FREE, OneMethod, Schedule, method_record
from spot_train.collect.plan import Plan, check_space, make_plan
from spot_train.collect.ranks import Rank, on_device
from spot_train.collect.run import Run, check_recipe
from spot_train.compare.compare import Method
from spot_train.output_lock import Interrupted, OutputLock, PendingSignal, deferred_signals, output_lock
from spot_train.prompts import Prompt, PromptReport, load_prompts
from spot_train.provenance import append_provenance, library_versions, weights_hash
from spot_train.recipe.recipe import COLLECT_SECTIONS, Recipe, recipe_hash, recipe_values
from spot_train.shards.files import StoredTrajectory, shard_bytes

MethodMaker = Callable[[Recipe, Target], Method]
"""Makes the method once the target is loaded; picklable where several processes collect."""
Image = Callable[[OutputLock], AbstractContextManager[None]]
"""What lasts as long as a process holds the folder's lock: entered before anything there is read, left when all is
written."""
ALONE = Rank()


def no_image(lock: OutputLock) -> AbstractContextManager[None]:
    """The folder is all there is."""
    return nullcontext()


@dataclass
class Tally:
    """How far a run is. trajectories, bytes: finished shards included; commits, forwards, seconds: of this process,
    fit_s of them in fits."""

    trajectories: int = 0
    bytes: int = 0
    commits: int = 0
    forwards: Forwards = field(default_factory=Forwards)
    seconds: float = 0.0
    fit_s: float = 0.0

    def count(self, finished: Mapping[str, Mapping[str, Any]]) -> None:
        """Set trajectories and bytes to those of the finished shards, given by their attributes."""
        self.trajectories = sum(attributes["counts"]["trajectories"] for attributes in finished.values())
        self.bytes = sum(map(shard_bytes, finished.values()))


@dataclass(frozen=True)
class Summary:
    """A finished run: its plan, its tally, how many shards were written during it, what the whole set took, forwards of
    earlier runs included, where every shard says it, and a sentence for each worker that did not end well."""

    out: Path
    plan: Plan
    tally: Tally
    written: int
    recorded: Forwards | None = None
    ended: tuple[str, ...] = ()

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


def collect(
    recipe: Recipe,
    out: str | Path,
    target: Target | None = None,
    progress: Progress | None = None,
    before_rename: BeforeRename | None = None,
    method: Method | MethodMaker = DRAFT_FREE,
    bootstrap: bool = False,
    rank: Rank = ALONE,
    take_over: str | None = None,
    image: Image = no_image,
) -> Summary:
    """Decode the recipe's prompts and store their trajectories as shards in `out`, resuming what is there.

    `target` replaces the recipe's own, already loaded. `method` says what is drafted; with `bootstrap` it is only the
    start, until drafters are fitted as the recipe's `bootstrap` says. Shards that another method made are kept: each
    says what made it. `rank` is this process among several that fill `out` together; each returns once no lease is
    missing. `before_rename` runs before every rename (tests delay there). `image` keeps the folder elsewhere too.
    Damaged shards and manifests are made again. Raises SpotError where `out` holds another recipe's or target's shards
    (naming the field), another job writes it (whose lock `take_over` breaks, by name), or the disk is too small;
    Interrupted on SIGINT or SIGTERM.
    """
    with output_lock(Path(out), rank.job, take_over) as lock, full_disk_named(Path(out)), image(lock):
        run, plan, opened, schedule = open_run(
            recipe, lock, rank, target, method, bootstrap, before_rename, None if progress is None else progress.fitting
        )
        lock.share()
        if progress is not None:
            progress.started(plan)
        with deferred_signals() as pending:
            tally = _decode_missing(run, plan, opened, schedule, progress, pending)
        return close_run(run, plan, tally, pending)


def open_run(
    recipe: Recipe,
    lock: OutputLock,
    rank: Rank,
    target: Target | None,
    method: Method | MethodMaker,
    bootstrap: bool,
    before_rename: BeforeRename | None = None,
    fitting: Callable[[int], None] | None = None,
) -> tuple[Run, Plan, Target, Schedule]:
    """Everything that can be refused is refused here, before the first forward; the first process of a job also writes
    the manifest, from which the others take the batch size."""
    folder = lock.folder
    if lock.first:
        remove_partials(folder)
    recipe = with_recorded_batch(recipe, folder)
    repaired = check_recipe(folder, recipe)
    target = load_recipe_target(on_device(recipe, rank)) if target is None else target
    if not isinstance(method, Method):
        method = method(recipe, target)
    prompts, report = load_prompts(recipe, target)
    widest = dataclasses.replace(method, budget=max(method.budget, recipe.decode.budget if bootstrap else 0))
    recipe = with_fitting_batch(recipe, target, widest, decode_settings(recipe), prompts, rank.neighbours)
    leases = split_leases(prompts, recipe.collect.lease_prompts)
    common = shared_attributes(recipe, target, report)
    schedule, fits = make_schedule(recipe, target, leases, folder, common, method, bootstrap, fitting)
    run = Run(lock, rank, recipe, leases, report, common, fits, before_rename)
    repaired += run.adopt()
    plan = make_plan(recipe, target.spec, leases, report, run.finished, repaired, fits)
    check_space(folder, plan, recipe.collect.free_space_margin_bytes)
    if lock.first:
        run.save_manifest()
    return run, plan, target, schedule


def close_run(run: Run, plan: Plan, tally: Tally, pending: PendingSignal, ended: Sequence[str] = ()) -> Summary:
    """Sum up; the last process of a job writes the manifest and tidies up. Raises Interrupted after a signal."""
    run.refresh()
    written = len(run.finished) - plan.kept
    if run.lock.alone():
        run.save_manifest()
        run.tidy()
        figures = {**dataclasses.asdict(tally), "shards_written": written, "interrupted": pending.number}
        append_provenance(run.folder, {"command": "collect", **figures})
    if pending.number is not None:
        raise Interrupted(
            pending.number,
            f"interrupted: {len(run.finished)} of {len(run.leases)} shards are in {run.folder}; run again to resume",
        )
    return Summary(run.folder, plan, tally, written, run.recorded_forwards(), tuple(ended))


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


def make_schedule(
    recipe: Recipe,
    target: Target,
    leases: Sequence[Sequence[Prompt]],
    folder: Path,
    common: Mapping[str, Any],
    method: Method,
    bootstrap: bool,
    fitting: Callable[[int], None] | None = None,
) -> tuple[Schedule, tuple[int, ...]]:
    """Which method decodes which lease, and the leases before which a drafter is fitted."""
    if not bootstrap:
        return OneMethod(method), ()
    from spot_train.collect.bootstrap import Bootstrap, milestones

    fits = milestones(recipe, leases)
    return Bootstrap(folder, recipe, target, common, fits, method, fitting or (lambda lease: None)), fits


def _decode_missing(
    run: Run, plan: Plan, target: Target, schedule: Schedule, progress: Progress | None, pending: PendingSignal
) -> Tally:
    """Decode leases until none is missing or a signal arrived."""
    started = time.perf_counter()
    tally = Tally(plan.kept_trajectories, sum(map(shard_bytes, run.finished.values())))

    def advanced() -> None:
        tally.seconds = time.perf_counter() - started
        if progress is not None:
            progress.advanced(tally)

    def stopped() -> bool:
        return pending.number is not None

    while not stopped() and (index := run.next_lease()) is not None:
        try:
            method = schedule.at(index, stopped)
        except Interrupted as interrupted:
            pending.number = pending.number or interrupted.code - 128
            break
        tally.fit_s = schedule.fit_s
        forwards = Forwards()
        stored = _decode(run, index, target, method, forwards, tally, advanced, stopped)
        if len(stored) == len(run.leases[index]):
            run.store(index, stored, {"method": method_record(method, target.spec), **dataclasses.asdict(forwards)})
            tally.forwards.calls += forwards.calls
        run.refresh()
        tally.count(run.finished)
        if run.rank.number == 0:
            run.save_manifest()
        advanced()
    return tally


def _decode(
    run: Run,
    index: int,
    target: Target,
    method: Method,
    forwards: Forwards,
    tally: Tally,
    advanced: Callable[[], None],
    stopped: Callable[[], bool],
) -> list[StoredTrajectory]:
    """The lease's trajectories in its order; fewer than its prompts once `stopped` says so, or another process has
    finished the lease."""
    settings, seed = decode_settings(run.recipe), run.recipe.collect.seed
    lease = run.leases[index]
    several = run.rank.world > 1
    stored: dict[int, StoredTrajectory] = {}

    def futile() -> bool:
        return stopped() or (several and run.has(index))

    for place, item, result in decode_lease(target, lease, settings, method, seed, forwards, futile):
        stored[place] = item
        tally.trajectories += 1
        tally.commits += len(item.trajectory.commit_token)
        tally.forwards.add(result)
        advanced()
    return [stored[place] for place in sorted(stored)]
