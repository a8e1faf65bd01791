"""Collection that speeds itself up: a drafter is fitted to the first leases and drafts the next ones, and again later.

Milestones are lease indices and a drafter is fitted to the leases before its own, so what a run records does not depend
on its speed. Every drafter is kept beside the shards under its lease; a run that was killed goes on with it, or with
the fit that it was killed in. Of several processes one fits, the others wait for its drafter, and one of them goes on
with the fit where it dies.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spot_infer.checkpoint import CONFIG_FILE, PretrainedDrafter, load_drafter
from spot_infer.errors import SpotError
from spot_infer.targets.protocol import Target
from spot_train.collect.drafters import drafter_folder
from spot_train.collect.methods import drafted_method, never
from spot_train.collect.ranks import on_its_own
from spot_train.collect.run import FITTING
from spot_train.compare.compare import Method
from spot_train.fit.export import export
from spot_train.fit.facts import drafter_facts
from spot_train.fit.fit import fit
from spot_train.output_lock import only_one
from spot_train.prompts import Prompt
from spot_train.recipe.recipe import FitSection, Recipe
from spot_train.shards.store import ShardSet, read_shard, shard_name
from spot_train.trajectory import Trajectory

Fitting = Callable[[int], None]
"""Called with a milestone before its drafter is fitted."""


def milestones(recipe: Recipe, leases: Sequence[Sequence[Prompt]]) -> tuple[int, ...]:
    """Lease indices, ascending, before which a drafter is fitted: the recipe's shares of the leases, rounded up.

    The first is late enough that prompts of both kinds, training and held out, lie before it. Raises SpotError where no
    lease would be left to draft.
    """
    kinds: set[bool] = set()
    ready = next((i + 1 for i, lease in enumerate(leases) if len(kinds := kinds | {p.heldout for p in lease}) == 2), 0)
    shares = [math.ceil(share * len(leases)) for share in recipe.bootstrap.milestones]
    chosen = sorted({max(index, ready) for index in shares if max(index, ready) < len(leases)})
    if not ready or not chosen:
        raise SpotError(
            f"--bootstrap fits a drafter to the first of {len(leases)} leases, which leaves no lease to draft or holds "
            "no prompt out; lower collect.lease_prompts or bootstrap.milestones, or raise prompts.heldout_fraction"
        )
    return tuple(chosen)


@dataclass
class Bootstrap:
    """A schedule: `start` before the first milestone, then the drafter of the latest one.

    folder: where the shards lie; attributes: what all of them share; fit_s: seconds in fits.
    """

    folder: Path
    recipe: Recipe
    target: Target
    attributes: Mapping[str, Any]
    milestones: tuple[int, ...]
    start: Method
    fitting: Fitting = lambda milestone: None
    fit_s: float = 0.0
    _current: tuple[int, Method] | None = None

    def at(self, lease: int, stopped: Callable[[], bool] = never) -> Method:
        """Fits the drafter that the lease needs, unless it is kept in the folder or another process fits it."""
        milestone = max((one for one in self.milestones if one <= lease), default=None)
        if milestone is None:
            return self.start
        if self._current is None or self._current[0] != milestone:
            drafter = self._kept(milestone)
            if drafter is None:
                with only_one(self.folder / FITTING, stopped), on_its_own():
                    drafter = self._kept(milestone) or self._fitted(milestone)
            drafter.to(self.target.device)
            self._current = milestone, drafted_method(self.recipe, self.target.spec, "spot", drafter)
        return self._current[1]

    def _place(self, milestone: int) -> Path:
        return self.folder / drafter_folder(milestone)

    def _kept(self, milestone: int) -> PretrainedDrafter | None:
        place = self._place(milestone)
        return load_drafter(place) if (place / CONFIG_FILE).is_file() else None

    def _fitted(self, milestone: int) -> PretrainedDrafter:
        self.fitting(milestone)
        started = time.perf_counter()
        place = self._place(milestone)
        run = place.with_name(place.name + ".fit")
        shards = ShardSet(self.folder, {"attributes": self.attributes})
        train, heldout = (list(self._recorded(milestone, kind)) for kind in (False, True))
        checkpoint = fit(
            self._section(sum(map(len, train))),
            train,
            heldout,
            run,
            rule=shards.rule,
            temperature=shards.sampling.temperature,
            facts=drafter_facts(shards),
        )
        drafter = export(checkpoint, place, draft=self.recipe.decode.draft_settings())
        shutil.rmtree(run)
        self.fit_s += time.perf_counter() - started
        return drafter

    def _recorded(self, milestone: int, heldout: bool) -> Iterator[Trajectory]:
        for lease in range(milestone):
            for stored in read_shard(self.folder / shard_name(lease), heldout):
                yield stored.trajectory

    def _section(self, states: int) -> FitSection:
        """The recipe's `fit`, for at most so many steps, on one device and with nothing replayed on the way."""
        section, steps = self.recipe.fit, self.recipe.bootstrap.steps
        chosen = {
            "max_steps": steps,
            "epochs": max(1, math.ceil(steps * section.batch_size / max(1, states))),
            "warmup_steps": min(section.warmup_steps, steps // 10),
            "replay_trajectories": 0,
            "devices": 1,
            "strategy": "auto",
        }
        return section.model_copy(update=chosen)
