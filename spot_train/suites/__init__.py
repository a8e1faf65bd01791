"""One small file a suite: what it asks for, and so which question it answers. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from spot_train.suites import (
    ablation,
    block,
    budget,
    calibration,
    coverage,
    ladder,
    length,
    main,
    oracle,
    rule,
    temperature,
    transfer,
)

if TYPE_CHECKING:
    from spot_train.bench.materials import Materials
    from spot_train.bench.plan import Group

SUITES: Mapping[str, Callable[[Materials], list[Group]]] = {
    "main": main.groups,
    "oracle": oracle.groups,
    "coverage": coverage.groups,
    "temperature": temperature.groups,
    "ablation": ablation.groups,
    "budget": budget.groups,
    "length": length.groups,
    "block": block.groups,
    "transfer": transfer.groups,
    "calibration": calibration.groups,
    "ladder": ladder.groups,
    "rule": rule.groups,
}
