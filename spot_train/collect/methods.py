"""Which method decodes which lease, and what a lease's shard records of it.

Drafted decoding visits draft-free decoding's states, so any method records the same trajectories (up to rounding below
float64). Knows nothing about files.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spot_infer.decode import boundary_in_force
from spot_infer.drafters import CalibratedGraphDrafter, OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.graph import Drafter
from spot_infer.requests import DecodeSettings
from spot_infer.targets.protocol import Target, TargetSpec
from spot_train.compare.compare import Method
from spot_train.methods import DrafterSources, make_drafter, parse_method
from spot_train.provenance import weights_hash
from spot_train.recipe.recipe import Recipe, resolve_path

DRAFT_FREE = Method("draft-free", boundary="separate")
_NEED_THE_ANSWER = ("position_oracle", "token_oracle", "joint_oracle")


def never() -> bool:
    """Nothing ever stops it."""
    return False


class Schedule(Protocol):
    """Chooses a method for every lease, by the lease's index alone. fit_s: seconds it has spent on fits."""

    fit_s: float

    def at(self, lease: int, stopped: Callable[[], bool] = never) -> Method:
        """The method that decodes lease `lease`; asked once all leases before the last milestone up to it are stored.

        Raises Interrupted where a fit, or waiting for another process's, is cut short by a signal or `stopped`.
        """
        ...


@dataclass
class OneMethod:
    """A schedule of one method for all leases."""

    method: Method
    fit_s: float = 0.0

    def at(self, lease: int, stopped: Callable[[], bool] = never) -> Method:
        return self.method


def collection_method(recipe: Recipe, spec: TargetSpec, text: str, sources: DrafterSources) -> Method:
    """The method that `text` names (`chain:depth=4`), under the recipe's `decode` budget, floor, padding and boundary.

    Raises SpotError for an unknown method, one that needs what is being collected, and a budget of 0.
    """
    name, options = parse_method(text)
    if name in _NEED_THE_ANSWER:
        raise SpotError(f"method is {name!r}, which looks up the trajectories being collected; use another method")
    drafter = make_drafter(name, sources, options)
    return DRAFT_FREE if drafter is None else drafted_method(recipe, spec, text, drafter)


def named_method(recipe: Recipe, target: Target, drafter: str | None, method: str | None, graph: str | None) -> Method:
    """The method that a command's --drafter, --method and --graph name; spot with a drafter, where nothing else is
    said. Raises SpotError where one of them is not read by the method, or can't be loaded."""
    from spot_infer.checkpoint import load_drafter
    from spot_train.calibrate.graph import load_graph
    from spot_train.collect.collect import target_attributes

    uses = None if method is None else parse_method(method)[0]
    for given, option, needs in ((drafter, "--drafter", "spot"), (graph, "--graph", "calibrated_graph")):
        if given and uses not in (None, needs):
            raise SpotError(f"{option} is given, but --method {uses} does not read it; leave one of them out")
    order = None if drafter is None else load_drafter(resolve_path(drafter, Path.cwd()), device=target.device)
    calibrated = None if graph is None else load_graph(graph, target_attributes(recipe, target))
    named = "spot" if drafter else "calibrated_graph" if graph else "draft-free"
    sources = DrafterSources(recipe.rule.commit_rule(), order, calibrated, seed=recipe.collect.seed)
    return collection_method(recipe, target.spec, method or named, sources)


def drafted_method(recipe: Recipe, spec: TargetSpec, name: str, drafter: Drafter) -> Method:
    """`drafter` as the recipe's `decode` section runs it; always verified by coupled match, which changes no token."""
    decode = recipe.decode
    if decode.budget == 0:
        raise SpotError("decode.budget is 0, which drafts nothing; give --budget or leave the drafter out")
    if isinstance(drafter, OrderDrafter):
        drafter.check_block_length(spec.block_length)
    form = decode.form()
    boundary = form.boundary if spec.cache == "exact" else "separate"
    return Method(name, decode.budget, form.apply(drafter), decode.floor, decode.pad, boundary=boundary)


def method_record(method: Method, spec: TargetSpec) -> dict[str, Any]:
    """What a shard records of the method that decoded it, as JSON values; `drafter` tells two drafters apart."""
    if method.drafter is None:
        return {"name": method.name, "boundary": "separate"}
    settings = DecodeSettings(budget=method.budget, boundary=method.boundary)
    record = {"name": method.name, "boundary": boundary_in_force(spec, settings, method.drafter)}
    drafted = {"budget": method.budget, "floor": method.floor, "pad": method.pad}
    return record | drafted | {"drafter": _drafter_record(method.drafter)}


def method_label(record: Mapping[str, Any]) -> str:
    """A lease's method in a few characters: `draft-free`, `chain D8`, `spot D20 1f3a90c2`."""
    if "budget" not in record:
        return str(record["name"])
    digest = (record.get("drafter") or {}).get("weights_hash", "")
    return f"{record['name']} D{record['budget']} {digest[:8]}".rstrip()


def _drafter_record(drafter: Drafter) -> dict[str, Any]:
    if isinstance(drafter, OrderDrafter):
        return {"weights_hash": weights_hash(drafter.model), **dataclasses.asdict(drafter.settings)}
    if isinstance(drafter, CalibratedGraphDrafter):
        nodes = [sorted(node) for node in drafter.graph.nodes]
        return {"graph_hash": hashlib.sha256(repr(nodes).encode()).hexdigest()}
    return {}
