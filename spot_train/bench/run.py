"""The loop of a bench: plan, record, run what is missing, append. Resumes at the grain of a group.

A group's rows are appended together and each says how many they are, so a group that a kill cut short is seen, dropped
and run again. With several workers whole groups go to processes; a control and its methods always share one.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from spot_infer.atomic import write_json
from spot_infer.errors import SpotError
from spot_train.bench.cells import identity, run_cells
from spot_train.bench.materials import BenchOptions, Materials
from spot_train.bench.plan import CellGroup, Condition, CurveGroup, Group, merged
from spot_train.bench.recorded import recorded
from spot_train.output_lock import output_lock
from spot_train.results import RESULTS, Row, append_rows, cell_key, drop_rows, read_rows
from spot_train.suites import SUITES

FACTS = "bench.json"


class Progress(Protocol):
    """What a bench reports while it runs."""

    def planned(self, groups: int, kept: int, notes: Sequence[str]) -> None:
        """Before the first group: how many there are, how many are already there, and what does not fit."""
        ...

    def finished(self, sentence: str, rows: int, seconds: float) -> None:
        """A group is done: what it was, its rows, and the processor time it took."""
        ...


@dataclass(frozen=True)
class Done:
    """A group's rows and the processor time they took."""

    rows: Sequence[Row]
    cpu_s: float


def bench(suites: Sequence[str], options: BenchOptions, progress: Progress) -> Path:
    """Run the suites and return the results file. Raises SpotError where the folder holds another bench's results."""
    for name in suites:
        if name not in SUITES:
            raise SpotError(f"there is no suite {name!r}; use {', '.join(SUITES)}")
    results = options.out / RESULTS
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpotError(f"--out {options.out} can't be a folder ({error.strerror}); choose another place") from error
    with output_lock(options.out):
        materials = Materials(options)
        planned = merged(group for name in suites for group in SUITES[name](materials))
        _check_identity(materials)
        waiting = _waiting(results, planned, materials)
        progress.planned(len(planned), len(planned) - len(waiting), materials.notes)
        recordings = [Recording(one) for one in _recorded_first(waiting)]
        for job, done in _run(options, materials, [*recordings], waiting):
            if done.rows:
                append_rows(results, _numbered(job, done.rows))
            progress.finished(_sentence(job), len(done.rows), done.cpu_s)
    return results


@dataclass(frozen=True)
class Recording:
    """A control to be recorded before the groups that read it."""

    condition: Condition


Job = Recording | Group


def run_job(materials: Materials, job: Job) -> Done:
    """Do one piece of the bench in this process."""
    started = time.process_time()
    rows: Sequence[Row] = ()
    if isinstance(job, CellGroup):
        rows = run_cells(materials, job)
    elif isinstance(job, CurveGroup):
        rows = job.compute(materials, job.condition)
    else:
        recorded(materials, job.condition)
    return Done(rows, time.process_time() - started)


def _run(
    options: BenchOptions, materials: Materials, recordings: Sequence[Job], groups: Sequence[Job]
) -> Iterator[tuple[Job, Done]]:
    """Every job with its outcome, as it finishes; recordings all before the first group."""
    if options.workers == 1:
        for job in [*recordings, *groups]:
            yield job, run_job(materials, job)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, context, _load, (options, materials.provenance)) as pool:
        for jobs in (recordings, groups):
            waiting = {pool.submit(_run_in_worker, job): job for job in jobs}
            for future in as_completed(waiting):
                yield waiting[future], _outcome(future)


def _outcome(future: Future[Done]) -> Done:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise SpotError(
            "a worker process was killed, perhaps for want of memory; run the same command again, which keeps what is "
            "finished, with fewer --workers if it happens twice"
        ) from error


_materials: list[Materials] = []


def _load(options: BenchOptions, provenance: dict[str, Any]) -> None:
    """Load a worker's materials; its rows carry the command's own provenance."""
    _materials[:] = [Materials(options)]
    _materials[0].provenance = provenance


def _run_in_worker(job: Job) -> Done:
    return run_job(_materials[0], job)


def _recorded_first(groups: Iterable[Group]) -> list[Condition]:
    """The distinct controls that replayed cells and curves read, the longest list of prompts of each."""
    longest: dict[Condition, int] = {}
    for group in groups:
        condition = group.condition
        if isinstance(group, CurveGroup) or condition.mode == "replay":
            key = replace(condition, mode="replay", prompts=0)
            longest[key] = max(longest.get(key, 0), condition.prompts)
    return [replace(condition, prompts=prompts) for condition, prompts in longest.items()]


def _waiting(results: Path, planned: Sequence[Group], materials: Materials) -> list[Group]:
    """What is not in the file yet, after rows of groups that were cut short are dropped from it."""
    rows = read_rows(results) if results.exists() else []
    stamps = [_group_of(row, results) for row in rows]
    counts = Counter(one["id"] for one in stamps)
    torn = {row.key for row, one in zip(rows, stamps, strict=True) if counts[one["id"]] != one["rows"]}
    if torn:
        drop_rows(results, torn)
    cells = {row.key for row in rows} - torn
    groups = {one["id"] for row, one in zip(rows, stamps, strict=True) if row.key not in torn}
    waiting: list[Group] = []
    for group in planned:
        if isinstance(group, CurveGroup):
            waiting += [] if _identity(group) in groups else [group]
            continue
        missing = tuple(one for one in group.wanted if cell_key(identity(materials, group.condition, one)) not in cells)
        waiting += [replace(group, wanted=missing)] if missing else []
    return waiting


def _group_of(row: Row, results: Path) -> dict[str, Any]:
    """The id and size of the group that a row was appended with."""
    stamp = row.provenance.get("group")
    if not isinstance(stamp, dict) or not {"id", "rows"} <= stamp.keys():
        raise SpotError(f"{results} holds rows that no bench wrote, so it can't be resumed; give another --out")
    return stamp


def _identity(job: Job) -> str:
    if isinstance(job, CurveGroup):
        return job.key[:16]
    return hashlib.sha256(repr(job).encode()).hexdigest()[:16]


def _numbered(job: Job, rows: Sequence[Row]) -> list[Row]:
    stamp = {"id": _identity(job), "rows": len(rows)}
    return [row.model_copy(update={"provenance": {**row.provenance, "group": stamp}}) for row in rows]


def _sentence(job: Job) -> str:
    if isinstance(job, Recording):
        return f"recorded: {job.condition.sentence()}"
    suites = [job.suite] if isinstance(job, CurveGroup) else sorted({one.suite for one in job.wanted})
    return f"{', '.join(suites)}: {job.condition.sentence()}"


def _check_identity(materials: Materials) -> None:
    """Refuse a folder whose rows came from other weights, prompts or settings under the same names."""
    path = materials.options.out / FACTS
    here = json.loads(json.dumps(materials.identity()))
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        there = {}
    for section, values in here.items():
        for name, value in values.items():
            if there.get(section, {}).get(name, value) != value:
                raise SpotError(
                    f"{path} holds results of another {section.rstrip('s')} {name!r}; give another --out, or what "
                    "it was made with"
                )
    write_json(path, {key: {**there.get(key, {}), **values} for key, values in here.items()})
