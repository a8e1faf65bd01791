"""Named forms of the decoder: the default, and the paper's. The one place that says what each is made of.

A preset changes speed only, never the output. What is set beside it wins over it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from spot_infer.errors import SpotError
from spot_infer.graph import Drafter
from spot_infer.requests import Boundary

PresetName = Literal["default", "paper"]


@dataclass(frozen=True)
class Preset:
    """boundary: where a finished block is cached; merged: one node for all orders that reach a state; response: how far
    scores follow measured responses; ahead: drafts run on into the next block; None as the drafter says."""

    boundary: Boundary = "auto"
    merged: bool | None = None
    response: float | None = None
    ahead: bool | None = None

    def boundary_beside(self, chosen: Boundary) -> Boundary:
        """The boundary in force where `chosen` was asked for; `auto` leaves it to the preset."""
        return self.boundary if chosen == "auto" else chosen

    def apply(self, drafter: Drafter) -> Drafter:
        """`drafter` as this preset drafts: one that has `as_tree`, `responding` or `looking` takes the form that the
        preset says."""
        as_tree: Callable[[], Drafter] | None = getattr(drafter, "as_tree", None)
        formed = as_tree() if self.merged is False and as_tree is not None else drafter
        responding: Callable[[float], Drafter] | None = getattr(formed, "responding", None)
        formed = responding(self.response) if self.response is not None and responding is not None else formed
        looking: Callable[[bool], Drafter] | None = getattr(formed, "looking", None)
        return looking(self.ahead) if self.ahead is not None and looking is not None else formed


PRESETS: Mapping[str, Preset] = {
    "default": Preset(),
    "paper": Preset(boundary="separate", merged=False, response=0.0, ahead=False),
}
"""`paper`: a forward a boundary, one block copy an order and stale tables alone (arXiv 2610.22543); its gamma is the
mass floor."""


def find_preset(name: str) -> Preset:
    """The preset called `name`. Raises SpotError where there is none."""
    if name not in PRESETS:
        raise SpotError(f"preset is {name!r}; use {', '.join(get_args(PresetName))}")
    return PRESETS[name]
