"""Calibrate a draft graph offline (Spiffy, arXiv 2509.18085; the paper's setting in appendix D.4).

Draft-free trajectories are replayed. At every root the next 1..lookahead steps are written as sets of (position rank,
token rank) against the stale table, a path of growing sets. A graph is selected from the paths greedily, connected to
the root.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spot_infer.drafters.calibrated_graph import CalibratedGraph, CalibratedGraphDrafter, RankSet, leads_to
from spot_infer.drafters.hypotheses import token_candidates
from spot_infer.drafters.oracle import future_steps
from spot_infer.drafters.stale import stale_order
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, DraftGraph
from spot_infer.noise import request_seed
from spot_infer.requests import Request
from spot_infer.table import TOP_K
from spot_infer.targets.protocol import Target
from spot_infer.transition import CommitRule
from spot_train.calibrate.calibration import calibration_prompts, load_calibration, write_calibration
from spot_train.collect.collect import decode_settings, shared_attributes
from spot_train.collect.recording import decoded_trajectories
from spot_train.recipe.recipe import Recipe
from spot_train.recipe.schema import GraphScore
from spot_train.replay.replay import replay, replay_summary, steps_of
from spot_train.shards.store import ShardSet
from spot_train.trajectory import Trajectory

BUDGETS = (8, 12, 20)
RankPath = tuple[RankSet, ...]
"""The growing rank sets of one root's trajectory, the nearest first."""


@dataclass(frozen=True)
class Recorded:
    """Draft-free trajectories to calibrate on and to measure on; attributes and data as the file records them."""

    calibration: list[Trajectory]
    heldout: list[Trajectory]
    attributes: Mapping[str, Any]
    data: Mapping[str, Any]


class PathCounter:
    """A drafter that drafts nothing and counts the paths of rank sets that roots' trajectories take.

    Replaying it visits the roots that decoding would draft from, with the tables that drafters would see there.
    """

    def __init__(self, trajectories: Sequence[Trajectory], rule: CommitRule, lookahead: int) -> None:
        self.steps = [steps_of(one) for one in trajectories]
        self.rule = rule
        self.lookahead = lookahead
        self.paths: Counter[RankPath] = Counter()

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
        self.paths.update(self._path(context) for context in contexts)
        return [DraftGraph() for _ in contexts]

    def _path(self, context: DraftContext) -> RankPath:
        """The next states that could be drafted: up to a token that is no candidate, or the finished block."""
        start, slots = context.state.start, context.tables[0].slots.tolist()
        order = stale_order(context, self.rule)
        candidates = token_candidates(context, TOP_K)
        tokens = {slots[index]: [token for token, _ in candidates[index]] for index in order}
        place = {slots[index]: rank for rank, index in enumerate(order)}
        path: list[RankSet] = []
        reached: RankSet = frozenset()
        for step in future_steps(context, self.steps[context.request])[: self.lookahead]:
            if any(token not in tokens[position - start] for position, token in step):
                break
            reached |= {(place[position - start], tokens[position - start].index(token)) for position, token in step}
            if len(reached) > context.room:
                break
            path.append(reached)
        return tuple(path)


def count_paths(
    trajectories: Sequence[Trajectory], rule: CommitRule, lookahead: int, temperature: float = 0.0
) -> Counter[RankPath]:
    """How many roots take each path; with separate boundaries, so that every block counts from its opening to its last
    choice."""
    counter = PathCounter(trajectories, rule, lookahead)
    replay(counter, trajectories, budget=1, temperature=temperature, boundary="separate")
    return counter.paths


def count_nodes(paths: Mapping[RankPath, int]) -> Counter[RankSet]:
    """How many roots pass through each rank set."""
    counts: Counter[RankSet] = Counter()
    for path, roots in paths.items():
        counts.update(dict.fromkeys(path, roots))
    return counts


def select_nodes(paths: Mapping[RankPath, int], size: int, score: GraphScore, rule: CommitRule) -> list[RankSet]:
    """At most `size` nodes, each the best of those that the root or a chosen node leads to.

    accepted: the best adds most accepted drafts over all roots. parents: it has the largest count(q) + sum of count
    over q's chosen parents. Ties go to the larger count, then to fewer and smaller ranks.
    """
    counts = count_nodes(paths)
    chosen: dict[RankSet, None] = {}
    while len(chosen) < size:
        scores = _added(paths, chosen) if score == "accepted" else _with_parents(counts, chosen, rule)
        if not scores:
            break
        best = min(scores, key=lambda node: (-scores[node], -counts[node], len(node), sorted(node)))
        chosen[best] = None
    return list(chosen)


def _added(paths: Mapping[RankPath, int], chosen: Collection[RankSet]) -> Counter[RankSet]:
    """Accepted drafts that each next node would add: itself, and chosen ones that a root then reaches behind it."""
    added: Counter[RankSet] = Counter()
    for path, roots in paths.items():
        kept = [node in chosen for node in path] + [False]
        first = kept.index(False)
        if first < len(path):
            behind = kept[first + 1 :].index(False)
            added[path[first]] += roots * (1 + behind)
    return added


def _with_parents(counts: Mapping[RankSet, int], chosen: Collection[RankSet], rule: CommitRule) -> dict[RankSet, int]:
    scores: dict[RankSet, int] = {}
    for node, count in counts.items():
        parents = [parent for parent in chosen if leads_to(parent, node, rule)]
        if node not in chosen and (parents or leads_to(frozenset(), node, rule)):
            scores[node] = count + sum(counts[parent] for parent in parents)
    return scores


def record_pool(recipe: Recipe, target: Target) -> Recorded:
    """Decode the recipe's calibration prompts draft-free."""
    prompts, report = calibration_prompts(recipe, target)
    seed = recipe.collect.seed
    requests = [Request(one.prompt_ids, request_seed(seed, one.prompt_ids)) for one in prompts]
    trajectories = decoded_trajectories(target, requests, decode_settings(recipe))
    sources = recipe.calibrate.sources or recipe.prompts.sources
    data = {"sources": [one.path_or_id for one in sources], "max_new_tokens": recipe.collect.max_new_tokens}
    return _split(recipe, trajectories, shared_attributes(recipe, target, report), data)


def recorded_shards(recipe: Recipe, shards: ShardSet) -> Recorded:
    """The held-out trajectories of a set of shards, by prompt hash. Raises SpotError where there are too few, or the
    recipe has another rule."""
    if shards.rule != recipe.rule.commit_rule():
        raise SpotError(
            f"{shards.path} was collected under rule {shards.rule.to_dict()}, the recipe has another; use the recipe "
            "that the shards were collected with"
        )
    trajectories = sorted(shards.trajectories("heldout"), key=lambda one: one.prompt_hash)
    decoding = shards.attributes["decoding"]
    data = {"sources": [shards.path.name], "max_new_tokens": decoding["max_new_tokens"]}
    return _split(recipe, trajectories, shards.attributes, data)


def calibrate_graph(recipe: Recipe, recorded: Recorded, out: Path) -> dict[str, Any]:
    """Count, select, measure on the held-out half, and write the file; returns its values and measures."""
    section = recipe.calibrate
    rule = CommitRule.from_dict(dict(recorded.attributes["rule"]))
    temperature = float(recorded.attributes["sampling"]["temperature"])
    paths = count_paths(recorded.calibration, rule, section.lookahead, temperature)
    nodes = select_nodes(paths, section.graph_size, section.score, rule)
    counts = count_nodes(paths)
    if not nodes:
        raise SpotError("no drafted state was ever right on the calibration prompts; calibrate on more of them")
    values = {
        "nodes": [sorted(map(list, node)) for node in nodes],
        "counts": [counts[node] for node in nodes],
        "roots": paths.total(),
        "lookahead": section.lookahead,
        "graph_size": section.graph_size,
        "score": section.score,
    }
    graph = _graph(values, recorded.attributes, {})
    drafter = CalibratedGraphDrafter(graph)
    measured = {
        f"D{budget}": replay_summary(replay(drafter, recorded.heldout, budget, temperature=temperature))
        for budget in BUDGETS
        if recorded.heldout
    }
    write_calibration(out, "graph", recorded.attributes, recorded.data, values, measured)
    return {**values, "measured": measured}


def load_graph(path: str | Path, attributes: Mapping[str, Any]) -> CalibratedGraph:
    """The calibrated graph in a file or `builtin:` name, checked against a target's or a set of shards' attributes.

    Raises SpotError where the file is damaged or was calibrated for another target or block length; another commit
    rule warns.
    """
    record = load_calibration(path, "graph", attributes)
    try:
        return _graph(record["values"], attributes, record)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise SpotError(f"{path}: values hold no draft graph ({error}); calibrate again") from None


def _graph(values: Mapping[str, Any], attributes: Mapping[str, Any], record: Mapping[str, Any]) -> CalibratedGraph:
    nodes = tuple(frozenset((int(i), int(j)) for i, j in node) for node in values["nodes"])
    masses = tuple(int(count) / int(values["roots"]) for count in values["counts"])
    if len(nodes) != len(masses) or any(i < 0 or j < 0 for node in nodes for i, j in node):
        raise ValueError("nodes and counts do not fit together")
    rule = CommitRule.from_dict(dict(record.get("rule", attributes["rule"])))
    return CalibratedGraph(nodes, masses, int(attributes["block_length"]), rule, record)


def _split(
    recipe: Recipe, trajectories: Sequence[Trajectory], attributes: Mapping[str, Any], data: Mapping[str, Any]
) -> Recorded:
    first, more = recipe.calibrate.prompts, recipe.calibrate.heldout
    if len(trajectories) < first + more:
        raise SpotError(
            f"calibration needs {first + more} held-out trajectories, there are {len(trajectories)}; collect more or "
            "lower calibrate.prompts and calibrate.heldout"
        )
    sizes = {"calibration_trajectories": first, "heldout_trajectories": more}
    return Recorded(list(trajectories[:first]), list(trajectories[first : first + more]), attributes, {**data, **sizes})
