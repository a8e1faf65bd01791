"""The methods under comparison by name: one place that turns a name and its options into a drafter.

Knows which sources a method needs and which options it takes; knows nothing about targets, tasks or budgets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spot_infer.blocks import Step
from spot_infer.drafters import (
    CalibratedGraph,
    CalibratedGraphDrafter,
    ChainDrafter,
    ConfidenceTreeDrafter,
    OddsTreeDrafter,
    OracleDrafter,
    OrderDrafter,
    RandomDrafter,
    TrajectoryTreeDrafter,
)
from spot_infer.errors import SpotError
from spot_infer.graph import Drafter
from spot_infer.presets import Preset
from spot_infer.transition import CommitRule

METHODS = (
    "draft-free",
    "chain",
    "confidence_tree",
    "odds_tree",
    "trajectory_tree",
    "calibrated_graph",
    "spot",
    "position_oracle",
    "token_oracle",
    "joint_oracle",
    "random",
)


@dataclass(frozen=True)
class DrafterSources:
    """What drafters are made from. order: a trained order model; graph: a calibrated draft graph; trajectories: the
    draft-free control's steps by request index, for oracles; seed: of the random drafter."""

    rule: CommitRule
    order: OrderDrafter | None = None
    graph: CalibratedGraph | None = None
    trajectories: Mapping[int, Sequence[Step]] | None = None
    seed: int = 0


_OPTIONS: dict[str, dict[str, tuple[type, ...]]] = {
    "draft-free": {},
    "chain": {
        "depth": (int, type(None)),
        "rank": (int,),
        "drawn_confidence": (bool,),
        "cross_block": (bool,),
    },
    "confidence_tree": {"merged": (bool,), "runner_up_below": (int, float), "drawn_confidence": (bool,)},
    "odds_tree": {
        "merged": (bool,),
        "runner_up_below": (int, float),
        "response": (int, float),
        "chain": (bool,),
        "ahead": (bool,),
    },
    "trajectory_tree": {"width": (int,), "depth": (int, type(None)), "drawn_confidence": (bool,)},
    "calibrated_graph": {"prune_below": (int, float), "drawn_confidence": (bool,)},
    "spot": {
        "merged": (bool,),
        "tau": (int, float),
        "runner_up_below": (int, float),
        "chain": (bool,),
        "response": (int, float),
        "ahead": (bool,),
    },
    "position_oracle": {},
    "token_oracle": {},
    "joint_oracle": {},
    "random": {"merged": (bool,), "mode": (str,)},
}


def beside_preset(name: str, options: Mapping[str, Any], preset: Preset) -> dict[str, Any]:
    """The options of method `name` with what the preset says of its form, where `options` do not."""
    form = {"merged": preset.merged, "response": preset.response, "ahead": preset.ahead}
    said = {option: value for option, value in form.items() if value is not None and option in _OPTIONS.get(name, {})}
    return {**said, **options}


def make_drafter(name: str, sources: DrafterSources, options: Mapping[str, Any] | None = None) -> Drafter | None:
    """The drafter of method `name`, None for draft-free decoding.

    `options` are the drafter's own parameters. Raises SpotError where the method, an option or a value is unknown, or
    a source is missing.
    """
    if name not in METHODS:
        raise SpotError(f"method is {name!r}; use one of {', '.join(METHODS)}")
    chosen = _checked(name, options or {})
    rule = sources.rule
    makers: dict[str, Callable[[], Drafter | None]] = {
        "draft-free": lambda: None,
        "chain": lambda: ChainDrafter(rule, **chosen),
        "confidence_tree": lambda: ConfidenceTreeDrafter(rule, **chosen),
        "odds_tree": lambda: OddsTreeDrafter(rule, **chosen),
        "trajectory_tree": lambda: TrajectoryTreeDrafter(rule, **chosen),
        "calibrated_graph": lambda: CalibratedGraphDrafter(_graph(sources), rule, **chosen),
        "spot": lambda: _spot(sources, chosen),
        "position_oracle": lambda: OracleDrafter("position", _trajectories(name, sources), rule),
        "token_oracle": lambda: OracleDrafter("token", _trajectories(name, sources), rule),
        "joint_oracle": lambda: OracleDrafter("joint", _trajectories(name, sources), rule),
        "random": lambda: RandomDrafter(sources.seed, **chosen),
    }
    return makers[name]()


def _checked(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    known = _OPTIONS[name]
    for key, value in options.items():
        if key not in known:
            raise SpotError(f"{name} has no option {key!r}; it takes {', '.join(known) or 'none'}")
        if not isinstance(value, known[key]) or (isinstance(value, bool) and bool not in known[key]):
            kinds = " or ".join("none" if kind is type(None) else kind.__name__ for kind in known[key])
            raise SpotError(f"{name}.{key} is {value!r}; expected {kinds}")
    return dict(options)


def _graph(sources: DrafterSources) -> CalibratedGraph:
    if sources.graph is None:
        raise SpotError(
            "calibrated_graph needs a draft graph; make one with `spot-train calibrate graph`, give --graph"
        )
    return sources.graph


def _spot(sources: DrafterSources, options: Mapping[str, Any]) -> OrderDrafter:
    if sources.order is None:
        raise SpotError("spot needs a trained drafter; give --drafter")
    order = sources.order
    if not options:
        return order
    draft = {name: value for name, value in options.items() if name != "chain"}
    chain = bool(options.get("chain", order.chain))
    return OrderDrafter(order.model, replace(order.settings, **draft), chain, order.chunk_states)


def _trajectories(name: str, sources: DrafterSources) -> Mapping[int, Sequence[Step]]:
    if sources.trajectories is None:
        raise SpotError(f"{name} looks up the draft-free control's trajectories; decode draft-free first")
    return sources.trajectories


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
    """A method and its options from the command line: `chain`, or `chain:depth=4,rank=2`; values as in JSON."""
    name, colon, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise SpotError(f"method {text!r} has {part!r}, which is not option=value; write for example chain:depth=4")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return name, options
