"""NFE of many methods from one set of shards, with no target: what `spot-train replay` prints.

Exact at temperature 0 for every method that reads only what shards record: the counts are those of decoding the same
prompts (`replay.py` mimics that loop). Times are not replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from spot_infer.allocate import MOST_STATES
from spot_infer.api import rule_mismatch
from spot_infer.cost import CostCurve
from spot_infer.presets import PRESETS, Preset
from spot_infer.requests import Boundary, DecodeSettings
from spot_infer.targets.protocol import TargetSpec
from spot_infer.verify import distribution_preserving
from spot_train.methods import DrafterSources, beside_preset, make_drafter
from spot_train.provenance import provenance
from spot_train.replay.replay import ReplayResult, draft_free, replay, replay_summary, steps_of
from spot_train.results import Cell, PerPrompt
from spot_train.shards.store import ShardSet
from spot_train.trajectory import Trajectory

Chosen = tuple[str, Mapping[str, Any]]
"""A method's name and its options."""


def default_methods(order: bool, graph: bool) -> list[Chosen]:
    """Every method that shards and the given sources allow, the oracles last."""
    names = ["draft-free", "chain", "trajectory_tree", "confidence_tree", "odds_tree"]
    names += ["calibrated_graph"] * graph + ["spot"] * order
    return [(name, {}) for name in (*names, "token_oracle", "position_oracle", "joint_oracle")]


def replay_cells(
    shards: ShardSet,
    trajectories: Sequence[Trajectory],
    methods: Sequence[Chosen],
    budgets: Sequence[int],
    sources: DrafterSources,
    floor: float = 0.0,
    boundary: Boundary = "auto",
    preset: Preset = PRESETS["default"],
    drafter_name: str | None = None,
    curve: CostCurve | None = None,
) -> list[Cell]:
    """One cell a method and budget (draft-free has one). The order model may come from any target of this block length;
    where it was trained under another rule, its cells' provenance holds a `warning`. Raises SpotError where a method
    lacks its source, or reads what shards do not record."""
    if sources.order is not None:
        sources.order.check_block_length(shards.block_length)
    control = {index: steps_of(one) for index, one in enumerate(trajectories)}
    own = DrafterSources(sources.rule, sources.order, sources.graph, control, sources.seed)
    boundary = preset.boundary_beside(boundary)
    chosen = [(name, beside_preset(name, options, preset)) for name, options in methods]
    made = [(name, options, make_drafter(name, own, options)) for name, options in chosen]
    stamp = provenance()
    cells = []
    for name, options, drafter in made:
        asked: list[tuple[int, CostCurve | None]] = [(budget, None) for budget in budgets]
        asked += [(MOST_STATES, curve)] if curve is not None else []
        for budget, pays in [(0, None)] if drafter is None else asked:
            if drafter is None:
                results = [draft_free(one) for one in trajectories]
            else:
                results = replay(
                    drafter,
                    trajectories,
                    budget,
                    floor if pays is None else 0.0,
                    shards.sampling.temperature,
                    boundary=boundary,
                    curve=pays,
                )
            kept = dict(options)
            if drafter is not None:
                kept |= {"floor": floor} if floor and pays is None else {}
                kept |= {"budget": "auto", "curve": pays.name} if pays is not None else {}
                kept |= {"boundary": boundary} if boundary != "auto" else {}
            warning = rule_mismatch(drafter, shards.rule)
            own_stamp = stamp | {"warning": warning} if warning else stamp
            drafter_of = drafter_name if name == "spot" else None
            cells.append(_cell(shards, name, kept, budget, results, drafter_of, own_stamp))
    return cells


def print_cells(console: Console, cells: Sequence[Cell], split: str) -> None:
    """The cells as one table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("method", "D", "NFE", "reduction", "accepted", "drafter calls", "states scored"):
        table.add_column(title, justify="left" if title == "method" else "right")
    for cell in cells:
        options = ", ".join(f"{key} {value}" for key, value in cell.options.items() if key != "budget")
        figures = (f"{cell.nfe:.2f}", f"{cell.reduction:.2f}x", f"{cell.accepted:.2f}")
        work = (f"{cell.drafter_calls:.1f}", f"{cell.states_scored:.1f}") if cell.drafter_calls else ("-", "-")
        name = f"{cell.method} ({options})" if options else cell.method
        table.add_row(name, str(cell.options.get("budget", cell.budget or "-")), *figures, *work)
    console.print(table)
    first = cells[0]
    stops = "stop tokens ignored" if first.ignore_stop else "stop tokens honoured"
    console.print(
        f"{first.n} trajectories ({split}), temperature {first.temperature:g}, commit rule {first.rule['resolution']}, "
        f"{stops}. Replayed: NFE is target forwards a prompt, accepted is drafts a drafted round; nothing was timed.",
        soft_wrap=True,
        highlight=False,
    )
    for warning in sorted({cell.provenance["warning"] for cell in cells if "warning" in cell.provenance}):
        console.print(warning, soft_wrap=True, highlight=False)


def replay_figures(results: Sequence[ReplayResult], block_length: int) -> dict[str, Any]:
    """The fields of a cell that replay counts."""
    summary = replay_summary(results)
    names = ("nfe", "draft_free_nfe", "reduction", "drafter_calls", "states_scored")
    nfe, control = [one.nfe for one in results], [one.draft_free_nfe for one in results]
    return {
        **{name: summary[name] for name in names},
        "accepted": summary["accepted_per_round"],
        "positions": block_length * sum(sum(one.sizes) + one.opened for one in results) / max(len(results), 1),
        "per_prompt": PerPrompt(nfe=nfe, draft_free_nfe=control),
    }


def _cell(
    shards: ShardSet,
    name: str,
    options: Mapping[str, Any],
    budget: int,
    results: Sequence[ReplayResult],
    drafter: str | None,
    stamp: Mapping[str, Any],
) -> Cell:
    attributes, sampling = shards.attributes, shards.sampling
    decoding = attributes["decoding"]
    settings = DecodeSettings(rule=shards.rule, sampling=sampling, budget=budget)
    preserving, reason = distribution_preserving(_spec(attributes), settings)
    sources = attributes.get("prompts", {}).get("sources", ())
    return Cell(
        suite="replay",
        task="+".join(Path(str(source.get("path_or_id"))).stem for source in sources) or "shards",
        target=str(attributes["target"]["name"]),
        drafter=drafter,
        rule=shards.rule.to_dict(),
        method=name,
        budget=budget,
        options=dict(options),
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        verifier=settings.verifier,
        seed=int(decoding["seed"]),
        ignore_stop=bool(decoding["ignore_stop"]),
        max_new_tokens=int(decoding["max_new_tokens"]),
        block_length=shards.block_length,
        mode="replay",
        n=len(results),
        distribution_preserving=preserving,
        reason=reason,
        provenance=dict(stamp),
        **replay_figures(results, shards.block_length),
    )


def _spec(attributes: Mapping[str, Any]) -> TargetSpec:
    """What shards say of their target."""
    facts = {key: value for key, value in attributes["target"].items() if key in TargetSpec.__dataclass_fields__}
    lists = {key: tuple(value) for key, value in facts.items() if isinstance(value, list)}
    return TargetSpec(**{**facts, **lists, "block_length": int(attributes["block_length"])})
