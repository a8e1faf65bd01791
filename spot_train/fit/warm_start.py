"""Training that starts from an exported drafter's weights. Knows nothing about data or how training goes on."""

from __future__ import annotations

from spot_infer.drafters import OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_train.provenance import weights_hash
from spot_train.recipe.recipe import FitSection

_DERIVED = ("head_hidden",)
"""What follows from another field: the scorer's difference is the one to name."""


def check_start(drafter: OrderDrafter, config: OrderModelConfig) -> str:
    """The hash of the weights that training starts from. Raises SpotError, naming the first field, where the drafter is
    another network than the one to be trained, or reads other inputs."""
    theirs = drafter.model.config.to_dict()
    for name, value in sorted(config.to_dict().items(), key=lambda field: field[0] in _DERIVED):
        if theirs[name] != value:
            known = name in FitSection.model_fields
            remedy = f"add --set fit.{name}={theirs[name]}" if known else f"train on shards of that {name}"
            raise SpotError(
                f"--warm-start has a drafter whose {name} is {theirs[name]!r}, but this run trains {value!r}; take a "
                f"drafter of the same {name}, or {remedy}"
            )
    return weights_hash(drafter.model)


def start_from(model: OrderModel, drafter: OrderDrafter) -> None:
    """Copy the drafter's weights, and the scales of its inputs, into `model` of the same config."""
    model.load_state_dict(drafter.model.state_dict())
