"""Rows of results files to a report: a section a suite, each with its sentence and its commands. Pure.

A suite without rows has no section. What a section claims is computed from the rows or not said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from spot_infer.errors import SpotError
from spot_train.cost.line import COST_LINE
from spot_train.report.cells import DAGGER, condition, grouped, pool_seeds, setting
from spot_train.report.compare_cells import Content
from spot_train.report.curve_suites import curves
from spot_train.report.document import Report, Section
from spot_train.report.ladder_suite import ladder
from spot_train.report.main_suite import main, oracle, plain
from spot_train.report.response_suites import ablation, block, budget, length, temperature, transfer
from spot_train.report.rule_suite import rule
from spot_train.report.scope import commands, listed, sentence
from spot_train.results import Cell, Curve, Row

TITLE = "Drafters for exact decoding, compared"
OPENING = (
    "All methods share one decoder and one verifier, so a difference is a difference in drafting. NFE is target "
    "forwards a prompt; reduction is draft-free NFE over the method's, with the 95% bootstrap interval over prompts; "
    "accepted is drafts a drafted round; throughput is tokens a second over draft-free's of the same process, measured "
    "on real forwards only; accuracy is over the prompts that were scored; identical counts the outputs that equal "
    "draft-free's under the same rule, with the largest ranking gap of a first divergence where some differ; D is the "
    "budget, the most drafted states a round."
)
SUITES: dict[str, tuple[str, str, Callable[[Sequence[Cell]], Content]]] = {
    "main": ("Main comparison", "How many target forwards a prompt each method needs and how fast it is", main),
    "oracle": ("Oracles", "What a drafter could gain that knew the true positions, the true tokens or both", oracle),
    "coverage": (
        "Stale knowledge",
        "How much of what comes next the last table, one commit old, already holds: which token and which slot",
        plain,
    ),
    "temperature": (
        "Temperature and verifier",
        "What sampling temperature does to forwards under each verifier, and whether the text stays the target's",
        temperature,
    ),
    "ablation": ("Ablations", "What each part of the drafter is worth in forwards", ablation),
    "budget": ("Budget", "How forwards and speed answer to the budget D", budget),
    "length": ("Generation length", "How the gain answers to the length of the generation", length),
    "block": ("Block length", "How the gain answers to the block length", block),
    "transfer": ("Transfer", "What a drafter trained on one target is worth on another", transfer),
    "ladder": (
        "From the paper's decoder to this one",
        "What each step beyond the paper is worth: states merged, boundaries fused, a budget that pays for itself",
        ladder,
    ),
    "rule": (
        "The resolution of the commit rule",
        "How much easier a coarser commit rule is to foresee, and what it does to the answers",
        rule,
    ),
    "calibration": (
        "Calibration",
        "Whether the drafter's masses come true, and what the first rejected draft of a round got wrong",
        plain,
    ),
}


def build_report(rows: Sequence[Row]) -> Report:
    """The report of these rows. Raises SpotError where there are none, a suite is unknown or two rows contradict."""
    rows = _consistent(rows)
    by_suite = grouped(rows, lambda row: row.suite)
    if unknown := [suite for suite in by_suite if suite not in SUITES]:
        raise SpotError(
            f"the results hold suite {unknown[0]!r}, which this version does not know; use a spot-train that has it "
            f"(known: {', '.join(SUITES)})"
        )
    by_suite["main"] = [*by_suite.get("main", ()), *_oracles_of_main(rows)]
    sections = tuple(_section(suite, by_suite[suite]) for suite in SUITES if by_suite.get(suite))
    return Report(TITLE, OPENING, sections, _closing(rows))


def _consistent(rows: Sequence[Row]) -> list[Row]:
    """Every row once."""
    if not rows:
        raise SpotError("the results hold no rows; give a file that bench has written rows to")
    kept: dict[str, Row] = {}
    for row in rows:
        if _figures(kept.setdefault(row.key, row)) != _figures(row):
            name = f"{row.method} D{row.budget}" if isinstance(row, Cell) else row.series
            raise SpotError(
                f"the results hold two different rows of suite {row.suite} for {name} on {row.task} under one "
                "condition; give only one of the files that hold it"
            )
    return list(kept.values())


def _figures(row: Row) -> dict[str, object]:
    """All of a row but where it came from."""
    return row.model_dump(exclude={"provenance"})


def _oracles_of_main(rows: Sequence[Row]) -> list[Cell]:
    """Oracle rows of the `oracle` suite under a setting of `main`: its tables show them beside what they bound."""
    cells = [row for row in rows if isinstance(row, Cell)]
    settings = {setting(cell) for cell in cells if cell.suite == "main"}
    there = {condition(cell) for cell in cells if cell.suite == "main"}
    oracles = [cell for cell in cells if cell.suite == "oracle" and cell.method.endswith("oracle")]
    return [cell for cell in oracles if setting(cell) in settings and condition(cell) not in there]


def _section(suite: str, rows: Sequence[Row]) -> Section:
    title, answers, build = SUITES[suite]
    cells = [row for row in rows if isinstance(row, Cell)]
    content = build(cells) if cells else Content()
    drawn = curves(f"{suite}-curve", [row for row in rows if isinstance(row, Curve)])
    return Section(
        name=suite,
        title=title,
        opening=sentence(answers, rows),
        tables=(*drawn.tables, *content.tables),
        plots=(*content.plots, *drawn.plots),
        notes=(*content.notes, *_seed_notes(cells), *_marked(cells), *_warnings(rows)),
        commands=commands(rows),
    )


def _seed_notes(cells: Iterable[Cell]) -> list[str]:
    """The largest spread over seeds, where there are several."""
    pools = [pool for pool in pool_seeds(cells) if len(pool.rows) > 1]
    if not pools:
        return []
    words = {"nfe": "of NFE", "reduction": "of the reduction", "throughput_ratio": "of throughput"}
    found = {name: [one for pool in pools if (one := pool.deviation(name)) is not None] for name in words}
    parts = [f"at most {max(found[name]):.2g} {word}" for name, word in words.items() if found[name]]
    return [f"Figures are means over seeds; over seeds, the standard deviation is {listed(parts)}."]


def _marked(cells: Iterable[Cell]) -> list[str]:
    """One sentence for each reason why a configuration does not keep the distribution."""
    reasons = dict.fromkeys(cell.reason for cell in cells if not cell.distribution_preserving)
    return [
        f"{DAGGER} Not distribution-preserving, so its NFE is not comparable with the others': "
        f"{reason or 'the run records no reason'}."
        for reason in (one.rstrip(".") for one in reasons)
    ]


def _warnings(rows: Iterable[Row]) -> list[str]:
    """What a run warned of, each once, as a sentence."""
    found = dict.fromkeys(str(row.provenance["warning"]).strip() for row in rows if row.provenance.get("warning"))
    return [f"{one[:1].upper()}{one[1:].rstrip('.')}." for one in found if one]


def _closing(rows: Sequence[Row]) -> tuple[str, ...]:
    """Versions behind the rows and, where wall clock was measured on a CPU, what it means."""
    revisions = dict.fromkeys(str(row.provenance["git"])[:12] for row in rows if row.provenance.get("git"))
    versions = dict.fromkeys(
        f"{name} {version}"
        for row in rows
        for name, version in row.provenance.get("versions", {}).items()
        if name in ("spot-dlm", "torch", "transformers")
    )
    made = f"Made with {listed(versions)}" if versions else ""
    at = f" at revision {listed(revisions)}" if revisions else ""
    timed = (row for row in rows if isinstance(row, Cell) and row.throughput_ratio is not None)
    on_cpu = any(str(row.provenance.get("device", "cpu")).startswith("cpu") for row in timed)
    return tuple(text for text in (f"{made}{at}." if made else "", COST_LINE if on_cpu else "") if text)
