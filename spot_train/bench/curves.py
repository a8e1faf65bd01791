"""Curves with a condition's own fields filled in, for the suites that measure recorded trajectories."""

from __future__ import annotations

from collections.abc import Sequence

from spot_train.bench.materials import Materials
from spot_train.bench.plan import Condition
from spot_train.results import Curve


def curve(
    materials: Materials,
    condition: Condition,
    suite: str,
    series: str,
    labels: tuple[str, str],
    x: Sequence[float | str],
    y: Sequence[float | None],
    drafter: str | None = None,
) -> Curve:
    """A series of the condition; labels: of x and of y."""
    return Curve(
        suite=suite,
        task=materials.task.name,
        target=condition.target,
        drafter=drafter,
        rule=condition.rule.to_dict(),
        temperature=condition.sampling.temperature,
        ignore_stop=condition.ignore_stop,
        series=series,
        x_label=labels[0],
        y_label=labels[1],
        x=list(x),
        y=list(y),
        n=condition.prompts,
        provenance=materials.provenance,
    )
