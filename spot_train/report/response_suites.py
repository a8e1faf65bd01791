"""The suites that turn one knob: temperature, parts of the drafter, budget, length, block, target. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from spot_train.report import measures
from spot_train.report.cells import (
    ABSENT,
    COUPLED,
    DRAFT_FREE,
    SPOT,
    Pooled,
    grouped,
    lowest,
    pool_seeds,
    rule_name,
    setting,
    variant_namer,
)
from spot_train.report.compare_cells import (
    Content,
    Curves,
    Name,
    Number,
    budget_name,
    in_order,
    plots_by_setting,
    tables_by_setting,
)
from spot_train.report.document import Plot, Table
from spot_train.report.tables import Layout, Measure
from spot_train.results import Cell

REDUCTION_LABEL = "reduction of target forwards (draft-free = 1x)"
THROUGHPUT_LABEL = "tokens a second over draft-free's"
DRAFT_FREE_SPEED = (1.0, "draft-free")


def temperature(cells: Sequence[Cell]) -> Content:
    """Every method under every verifier at every temperature: forwards, and whether the text stays the target's."""
    pools = sorted(in_order(pool_seeds(cells)), key=lambda one: one.first.temperature)
    name = _with_verifier(pools)
    layout = Layout(
        row_names=("method, verifier", "T", "D"),
        row=lambda one: (name(one), f"{one.first.temperature:g}", budget_name(one)),
        group=_rule,
        measures=(
            measures.PLAIN_NFE,
            measures.PLAIN_REDUCTION,
            measures.THROUGHPUT,
            measures.named("argmax share", "argmax_fraction", 3),
            measures.named("committed p", "committed_probability", 3),
            measures.ACCURACY,
        ),
        block=lambda one: one.first.temperature,
    )
    drafted = [one for one in pools if one.first.method != DRAFT_FREE]
    shown = [one for one in pools if one.first.method in (DRAFT_FREE, SPOT)]
    reduction = Curves(
        "sampling temperature T",
        REDUCTION_LABEL,
        _temperature,
        _reduction,
        line=lambda one: f"{name(one)}, D {one.first.budget}",
        apart=lambda one: f"{one.first.method}, {_rule(one)}",
    )
    drift = replace(
        reduction,
        y_label="share of commits that are the target's argmax",
        y=lambda one: one.mean("argmax_fraction"),
        line=lambda one: name(one) if one.first.method == DRAFT_FREE else reduction.line(one),
        apart=_rule,
    )
    beside = ("temperature",)
    plots = plots_by_setting("temperature", drafted, reduction, beside)
    plots += plots_by_setting("temperature-argmax", shown, drift, beside)
    notes = [
        "argmax share: commits whose token is the target's likeliest; committed p: mean probability that the target "
        "gave the committed token before temperature. A verifier that keeps the distribution leaves both at "
        "draft-free's values, up to sampling noise."
    ]
    return Content(_filled(tables_by_setting(pools, layout, beside)), plots, notes)


def ablation(cells: Sequence[Cell]) -> Content:
    """Every variant beside the plain spot of its setting, rule and budget."""
    pools = in_order(pool_seeds(cells))
    name = variant_namer(pools)
    plain = {
        key: min(same, key=lambda one: len(one.first.options))
        for key, same in grouped((one for one in pools if one.first.method == SPOT), _place).items()
    }

    def more_forwards(one: Pooled) -> str:
        reference = plain.get(_place(one))
        if reference is None or one.first.method == DRAFT_FREE:
            return ABSENT
        return "reference" if one is reference else f"{one.nfe - reference.nfe:+.1f}"

    layout = Layout(
        row_names=("variant",),
        row=lambda one: (name(one),),
        group=_rule_and_budget,
        measures=(
            measures.NFE,
            Measure("NFE against spot", more_forwards),
            measures.PLAIN_REDUCTION,
            measures.THROUGHPUT,
        ),
        block=lambda one: "",
        best=lowest,
    )
    drafted = [one for one in pools if one.first.method != DRAFT_FREE]
    notes = ["NFE against spot: forwards a prompt more than spot with nothing changed. Bold: lowest NFE of a budget."]
    return Content(_filled(tables_by_setting(_rules_together(drafted), layout)), notes=notes)


def budget(cells: Sequence[Cell]) -> Content:
    """Forwards and speed by budget; the budget with the highest throughput of each method is bold."""
    pools = in_order(pool_seeds(cells))
    name = variant_namer(pools)
    layout = Layout(
        row_names=("method", "D"),
        row=lambda one: (name(one), budget_name(one)),
        group=_rule,
        measures=(measures.PLAIN_NFE, measures.REDUCTION, measures.ACCEPTED, measures.BEST_THROUGHPUT),
        block=name,
        best=_fastest,
    )
    return Content(
        _filled(tables_by_setting(pools, layout)),
        _responses("budget", pools, "budget D (drafted states a round)", lambda one: one.first.budget, name, (), _rule),
        ["Bold: the budget with a method's highest throughput, where it was measured."],
    )


def length(cells: Sequence[Cell]) -> Content:
    """Forwards and speed by the most tokens generated, each length against its own draft-free control."""
    return _by_size("length", cells, "max_new_tokens", "tokens", "most tokens generated")


def block(cells: Sequence[Cell]) -> Content:
    """Forwards and speed by block length."""
    return _by_size("block", cells, "block_length", "slots", "block length L (slots)")


def _by_size(suite: str, cells: Sequence[Cell], size: str, unit: str, label: str) -> Content:
    pools = sorted(in_order(pool_seeds(cells)), key=lambda one: (getattr(one.first, size), one.first.budget))
    name = variant_namer(pools)
    several = len({one.first.target for one in pools}) > 1

    def sized(one: Pooled) -> str:
        on = f" on {one.first.target}" if several else ""
        return f"{getattr(one.first, size)} {unit}{on}, {_rule(one)}"

    layout = Layout(
        row_names=("method", "D"),
        row=lambda one: (name(one), budget_name(one)),
        group=sized,
        measures=(measures.NFE, measures.PLAIN_REDUCTION, measures.THROUGHPUT),
        block=lambda one: one.first.budget,
        best=lowest,
    )
    beside = (size, "target") if size == "block_length" else (size,)
    return Content(
        _filled(tables_by_setting(_rules_together(pools), layout, beside)),
        _responses(suite, pools, label, lambda one: getattr(one.first, size), name, beside, _rule_and_budget),
        ["Bold: lowest NFE at one budget and size among the methods that see no future."],
    )


def transfer(cells: Sequence[Cell]) -> Content:
    """Every drafter on every target; a target's own drafter is starred."""
    pools = in_order(pool_seeds(cells))

    def drafter(one: Pooled) -> str:
        cell = one.first
        mark = "*" if cell.native else ""
        dagger = "" if cell.distribution_preserving else "†"
        return f"{cell.drafter or cell.method}{mark}{dagger}"

    layout = Layout(
        row_names=("drafter", "target", "D"),
        row=lambda one: (drafter(one), one.first.target, budget_name(one)),
        group=lambda one: f"{one.first.task}, {_rule(one)}",
        measures=(measures.NFE, measures.PLAIN_REDUCTION, measures.THROUGHPUT),
        block=lambda one: (one.first.target, one.first.budget),
        best=lowest,
    )
    targets = list(dict.fromkeys(one.first.target for one in pools))
    ordered = sorted(pools, key=lambda one: (targets.index(one.first.target), one.first.budget, not one.first.native))
    beside = ("target", "task", "n", "max_new_tokens", "block_length")
    notes = ["* the drafter that was trained on this target. Bold: lowest NFE on a target at one budget."]
    return Content(_filled(tables_by_setting(ordered, layout, beside)), notes=notes)


def _responses(
    suite: str, pools: Sequence[Pooled], x_label: str, x: Number, line: Name, beside: Iterable[str], apart: Name
) -> list[Plot]:
    """Reduction over x and, where it was measured, throughput over x; a plot each `apart`."""
    drafted = [one for one in pools if one.first.method != DRAFT_FREE]
    beside = tuple(beside)
    forwards = Curves(x_label, REDUCTION_LABEL, x, _reduction, line, apart, intervals=True)
    speed = replace(
        forwards,
        y_label=THROUGHPUT_LABEL,
        y=lambda one: one.mean("throughput_ratio"),
        intervals=False,
        reference=DRAFT_FREE_SPEED,
    )
    plots = plots_by_setting(suite, drafted, forwards, beside)
    return plots + plots_by_setting(f"{suite}-throughput", drafted, speed, beside)


def _with_verifier(pools: Sequence[Pooled]) -> Name:
    """Names that state the verifier of every drafted run."""
    name = variant_namer(pools)
    return lambda one: (
        f"{name(one)}, {COUPLED}" if one.first.verifier == COUPLED and one.first.method != DRAFT_FREE else name(one)
    )


def _fastest(pools: Sequence[Pooled]) -> list[Pooled]:
    measured = [one for one in pools if one.mean("throughput_ratio") is not None and one.first.method != DRAFT_FREE]
    return sorted(measured, key=lambda one: -(one.mean("throughput_ratio") or 0.0))[:1] if len(measured) > 1 else []


def _filled(tables: Iterable[Table]) -> list[Table]:
    return [table.without_empty_columns(ABSENT) for table in tables]


def _rules_together(pools: Iterable[Pooled]) -> list[Pooled]:
    """Pools with the groups of one rule side by side, float32's first."""
    return sorted(pools, key=lambda one: (_rule(one) != "rule float32", _rule(one)))


def _place(pool: Pooled) -> tuple[str, str, int]:
    return setting(pool.first), rule_name(pool.first.rule), pool.first.budget


def _rule(pool: Pooled) -> str:
    return f"rule {rule_name(pool.first.rule)}"


def _rule_and_budget(pool: Pooled) -> str:
    return f"rule {rule_name(pool.first.rule)}, D {pool.first.budget}"


def _temperature(pool: Pooled) -> float:
    return pool.first.temperature


def _reduction(pool: Pooled) -> float:
    return pool.reduction
