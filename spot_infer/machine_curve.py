"""The cost curve that a budget of `auto` works with: the one that was named, or this machine's, measured once.

A measured curve is kept on disk under everything that its figures depend on, so a second run has the same curve and so
the same forwards. Knows nothing about what is done with it.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from spot_infer.cost import CostCurve, load_curve, save_curve
from spot_infer.drafters import OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.graph import Drafter
from spot_infer.packing import resolve_layout
from spot_infer.profile import ProfileSettings, machine_facts, profile
from spot_infer.requests import DecodeSettings
from spot_infer.targets.protocol import Target

MEASURED = ProfileSettings(sizes=(1, 2, 4, 8, 16), cycles=1, drafter_budgets=(2, 8))
"""Rows are decoded one at a time: what a forward over several costs is read off by its replicas."""


def machine_curve(target: Target, drafter: Drafter, settings: DecodeSettings) -> CostCurve:
    """The curve of `target` and `drafter` here: read from disk, or measured now (seconds) and kept."""
    decoding = DecodeSettings(rule=settings.rule, sampling=settings.sampling, layout=settings.layout, batch_size=1)
    facts = _facts(target, drafter, decoding)
    place = curves_folder() / f"{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]}.json"
    if place.is_file():
        return load_curve(place)
    curve = profile(target, MEASURED, decoding, drafter)
    kept = replace(curve, name=place.stem, source="measured at start-up for budget auto")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        save_curve(kept, place, facts=facts)
    except OSError as error:
        raise SpotError(
            f"the measured cost curve can't be kept in {place.parent} ({error.strerror}); name one with cost_curve, or "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return kept


def curves_folder() -> Path:
    """Where measured curves are kept: `spot-dlm/curves` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spot-dlm" / "curves"


def _facts(target: Target, drafter: Drafter, decoding: DecodeSettings) -> dict[str, Any]:
    spec = target.spec
    own: dict[str, Any] = {"kind": type(drafter).__name__}
    if isinstance(drafter, OrderDrafter):
        own = {"kind": "order", **asdict(drafter.model.config), **asdict(drafter.settings)}
        own["rule"] = drafter.model.config.rule.to_dict()
    return {
        **machine_facts(),
        "device": str(target.device),
        "target": [spec.name, spec.revision, spec.config_hash, spec.dtype, spec.block_length, spec.cache],
        "layout": resolve_layout(decoding.layout, target.device),
        "rule": decoding.rule.to_dict(),
        "sampling": asdict(decoding.sampling),
        "drafter": own,
    }
