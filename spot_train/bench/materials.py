"""What a bench runs with: targets, drafters, draft graphs and task, loaded from options that travel between processes.

Matches drafters and graphs to a commit rule and block length, and says where none fits. Knows no suite.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from spot_infer.api import rule_mismatch
from spot_infer.checkpoint import load_drafter
from spot_infer.drafters import CalibratedGraph
from spot_infer.errors import SpotError
from spot_infer.noise import request_seed
from spot_infer.requests import DecodeSettings, Request, Verifier, check_settings
from spot_infer.targets.protocol import Target
from spot_infer.transition import CommitRule, named_resolution
from spot_train.bench.plan import Condition
from spot_train.calibrate.calibration import read_calibration
from spot_train.calibrate.graph import load_graph
from spot_train.collect.collect import load_recipe_target, target_attributes
from spot_train.compare.scoring import Scores, score
from spot_train.provenance import provenance, weights_hash
from spot_train.recipe.recipe import Recipe, load_recipe, resolve_path
from spot_train.tasks import load_task

RESOLUTIONS = ("float32", "bfloat16")
TEMPERATURES = (0.5, 1.0, 1.5, 2.0, 2.5)
PAPER_FLOOR = 0.1


@dataclass(frozen=True)
class BenchOptions:
    """Choices of one command, all plain values. Pairs are (name, path); rules: resolutions, empty is the suite's own.

    prompts_replay, prompts_real: prompts of replayed and of decoded cells; full: decode every cell; batch_size: rows
    decoded together in real cells; temperatures: of the temperature suite.
    """

    recipe: str
    out: Path
    overrides: Mapping[str, Any] = field(default_factory=dict)
    drafters: tuple[tuple[str, str], ...] = ()
    graphs: tuple[str, ...] = ()
    targets: tuple[tuple[str, str], ...] = ()
    task: str = "tiny"
    task_path: str | None = None
    rules: tuple[str, ...] = ()
    budgets: tuple[int, ...] = (8, 12, 20)
    seeds: tuple[int, ...] = (0,)
    temperatures: tuple[float, ...] = TEMPERATURES
    prompts_replay: int = 200
    prompts_real: int = 20
    full: bool = False
    batch_size: int = 1
    allow_code_execution: bool = False
    workers: int = 1


class Materials:
    """The loaded options. `notes` collects what was skipped or does not fit, a sentence each."""

    def __init__(self, options: BenchOptions) -> None:
        self.options = options
        self.notes: list[str] = []
        recipe = load_recipe(options.recipe, options.overrides)
        if recipe.decode.bitwise:
            raise SpotError("decode.bitwise is true, which bench does not decode in; use `spot-train check --bitwise`")
        self.recipes = _recipes(options, recipe)
        self.task = load_task(options.task, options.task_path)
        here = Path.cwd()
        _refuse_twins("--drafter", options.drafters)
        self.drafters = {name: load_drafter(resolve_path(path, here)) for name, path in options.drafters}
        paths = [Path(resolve_path(path, here)) for path in options.graphs]
        self.graphs = {path: read_calibration(path, "graph") for path in paths}
        self._known: dict[tuple[str, int | None], dict[str, Any]] = {}
        self._loaded: tuple[tuple[str, int | None], Target] | None = None

    @property
    def recipe(self) -> Recipe:
        """The command's own recipe: its first target, its decoding defaults."""
        return next(iter(self.recipes.values()))

    @property
    def first_target(self) -> str:
        return next(iter(self.recipes))

    def target(self, name: str, block_length: int | None = None) -> Target:
        """A target by name; the last one stays loaded."""
        key = (name, block_length)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None
            recipe = self.recipes[name]
            if block_length is not None:
                section = recipe.target.model_copy(update={"block_length": block_length})
                recipe = recipe.model_copy(update={"target": section})
            target = load_recipe_target(recipe)
            for drafter in self.drafters.values():
                drafter.to(target.device)
            self._loaded = key, target
        return self._loaded[1]

    def rules(self, resolutions: Sequence[str] = ()) -> list[CommitRule]:
        """The commit rules a suite runs under: those of the command, else these resolutions, else the recipe's."""
        own = self.recipe.rule.commit_rule()
        chosen = self.options.rules or resolutions
        return [replace(own, resolution=named_resolution(one)) for one in chosen] or [own]

    def settings(self, condition: Condition) -> DecodeSettings:
        """Decoding of a condition; budget, floor, padding and verifier are a method's."""
        return DecodeSettings(
            max_new_tokens=condition.max_new_tokens,
            rule=condition.rule,
            sampling=condition.sampling,
            layout=self.recipe.decode.layout,
            batch_size=self.options.batch_size,
            ignore_stop=condition.ignore_stop,
            stop=() if condition.ignore_stop else self.task.stop,
        )

    def allows(self, condition: Condition, verifier: Verifier) -> bool:
        """Whether drafts can be verified this way under the condition's rule; notes why not."""
        try:
            check_settings(replace(self.settings(condition), budget=1, verifier=verifier))
        except SpotError as error:
            self.note(f"{verifier} is left out: {error}")
            return False
        return True

    def scores(self, target: Target, outputs: Sequence[Sequence[int]]) -> Scores:
        """How the task scores its first prompts' generated ids, code answers only where they may run."""
        return score(self.task, target, outputs, self.options.allow_code_execution)

    def requests(self, condition: Condition) -> list[Request]:
        """The condition's prompts, encoded for its target, each with its seed."""
        target = self.target(condition.target, condition.block_length)
        encoded = [example.encode(target) for example in self.task.examples[: condition.prompts]]
        return [Request(ids, request_seed(condition.seed, ids)) for ids in encoded]

    def prompts(self, count: int) -> int:
        """At most `count` prompts, as many as the task has."""
        return min(count, len(self.task.examples))

    def orders(self, rule: CommitRule, block_length: int) -> list[str]:
        """Drafters trained under `rule` for this block length; where there is none, under what ties most alike."""
        fitting = [name for name, one in self.drafters.items() if one.model.config.block_length == block_length]
        own = [name for name in fitting if self.drafters[name].rule == rule]
        if self.drafters and not fitting:
            self.note(f"no drafter was trained for block length {block_length}: spot is left out there")
        if own or not fitting:
            return own
        apart = {name: abs(self.drafters[name].rule.tie_width - rule.tie_width) for name in fitting}
        nearest = [name for name in fitting if apart[name] == min(apart.values())]
        self.note(f"no drafter was trained under the {rule.resolution} rule: {', '.join(nearest)} run under it")
        return nearest

    def graph(self, condition: Condition) -> CalibratedGraph | None:
        """The draft graph calibrated under the condition's rule for its block length, or None.

        Raises SpotError where the only such graph was calibrated for another target.
        """
        attributes = self.attributes(condition)
        length = attributes["block_length"]
        for path, record in self.graphs.items():
            if record["rule"] == attributes["rule"] and record["block_length"] == length:
                return load_graph(path, attributes)
        self.note(
            f"no draft graph for the {condition.rule.resolution} rule at block length {length}: calibrated_graph is "
            "left out there (make one with `spot-train calibrate graph`, give --graph)"
        )
        return None

    def block_length(self, condition: Condition) -> int:
        """The condition's block length, the target's own where it names none."""
        return int(self._attributes(condition.target, condition.block_length)["block_length"])

    def fits(self, condition: Condition) -> bool:
        """Whether the target's context holds every prompt with its answer, in whole blocks."""
        spec = self.target(condition.target, condition.block_length).spec
        lengths = [len(one.prompt_ids) for one in self.requests(condition)]
        return all(spec.blocks_end(length, condition.max_new_tokens) <= spec.max_positions for length in lengths)

    def attributes(self, condition: Condition) -> dict[str, Any]:
        """What shards and calibrations record: the condition's target, block length, rule and sampling."""
        own = {"rule": condition.rule.to_dict(), "sampling": asdict(condition.sampling)}
        return {**self._attributes(condition.target, condition.block_length), **own}

    def identity(self) -> dict[str, dict[str, Any]]:
        """What rows of one folder must agree on, by name: weights, dtype and tokens of targets, graphs, prompts, how
        decoding is laid out, and whether code is run where a task needs it."""
        prompts = [(example.id, example.prompt) for example in self.task.examples]
        facts = {name: self._attributes(name, None)["target"] for name in self.recipes}
        runs_code = {"allow_code_execution": self.options.allow_code_execution} if self.task.runs_code else {}
        return {
            "targets": {name: one["weights_hash"] for name, one in facts.items()},
            "target settings": {
                name: {key: one[key] for key in sorted(one.keys() - {"name", "revision", "weights_hash"})}
                for name, one in facts.items()
            },
            "drafters": self.drafter_hashes,
            "graphs": {str(record["rule"]): record["values"] for record in self.graphs.values()},
            "tasks": {self.task.name: hashlib.sha256(repr(prompts).encode()).hexdigest()},
            "settings": {
                "layout": self.recipe.decode.layout,
                "batch_size": self.options.batch_size,
                "pad": self.recipe.decode.pad,
                "boundary": self.recipe.decode.form().boundary,
                "merged": self.recipe.decode.form().merged,
                "response": self.recipe.decode.form().response,
                "ahead": self.recipe.decode.form().ahead,
                **runs_code,
            },
        }

    def native(self, drafter: str, target: str) -> bool:
        """Whether the drafter was trained on these very weights."""
        own = self.drafters[drafter].info.target.get("weights_hash")
        return bool(own) and own == self._attributes(target, None)["target"]["weights_hash"]

    def warning(self, drafter: str, rule: CommitRule) -> str | None:
        """A sentence where the drafter was trained under another rule."""
        return rule_mismatch(self.drafters[drafter], rule)

    def note(self, sentence: str) -> None:
        """Keep a sentence once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def _attributes(self, name: str, block_length: int | None) -> dict[str, Any]:
        key = name, block_length
        if key not in self._known:
            self._known[key] = target_attributes(self.recipes[name], self.target(name, block_length))
        return self._known[key]

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Command line, revision and versions of this process."""
        return provenance()

    @cached_property
    def drafter_hashes(self) -> dict[str, str]:
        return {name: weights_hash(one.model) for name, one in self.drafters.items()}


def _recipes(options: BenchOptions, recipe: Recipe) -> dict[str, Recipe]:
    """One recipe a target: the command's own with another target, or another recipe's own file.

    The command's overrides hold in every recipe, but for the target itself, which `--target` names.
    """
    if not options.targets:
        return {_name(recipe.target.path_or_id): recipe}
    recipes = {}
    _refuse_twins("--target", options.targets)
    overrides = {key: value for key, value in options.overrides.items() if key != "target.path_or_id"}
    for name, path in options.targets:
        if path.endswith(".yaml"):
            recipes[name] = load_recipe(path, overrides)
        else:
            place = resolve_path(path, Path.cwd())
            recipes[name] = load_recipe(options.recipe, {**overrides, "target.path_or_id": place})
    return recipes


def _refuse_twins(option: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Raise SpotError where two paths have one name, under which only one of them would run."""
    paths: dict[str, str] = {}
    for name, path in pairs:
        if paths.setdefault(name, path) != path:
            raise SpotError(f"{option} {path} and {paths[name]} are both called {name!r}; write NAME=PATH for one")


def _name(path_or_id: str) -> str:
    return path_or_id.rstrip("/").rsplit("/", 1)[-1]


def named(text: str) -> tuple[str, str]:
    """NAME=PATH, or PATH, whose last part is then its name."""
    name, found, path = text.partition("=")
    if found and not (name and path):
        raise SpotError(f"{text!r} has an empty side; give NAME=PATH or PATH")
    return (name, path) if found else (_name(text), text)
