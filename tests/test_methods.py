"""Methods by name: every name makes its drafter, and what is missing or unknown is said."""

from __future__ import annotations

from typing import Any

import pytest
from test_drafters import order_model

from spot_infer.drafters import CalibratedGraph, ChainDrafter, DraftSettings, OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.transition import CommitRule
from spot_train.methods import METHODS, DrafterSources, make_drafter, parse_method

BFLOAT16 = CommitRule(resolution="bfloat16")
FULL = DrafterSources(
    BFLOAT16, OrderDrafter(order_model()), CalibratedGraph((frozenset({(0, 0)}),), (0.5,), 8), {0: ()}, seed=7
)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_made_and_follows_the_rule(name: str) -> None:
    drafter: Any = make_drafter(name, FULL)
    assert (drafter is None) is (name == "draft-free")
    if name not in ("draft-free", "spot", "random"):
        assert drafter.rule == BFLOAT16


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("calibrated_graph", "--graph"),
        ("spot", "--drafter"),
        ("joint_oracle", "draft-free"),
        ("spiffy", "use one of draft-free, chain"),
    ],
)
def test_what_is_missing_is_named(name: str, said: str) -> None:
    with pytest.raises(SpotError, match=said):
        make_drafter(name, DrafterSources(CommitRule()))


def test_options_reach_the_drafter() -> None:
    chain: Any = make_drafter("chain", FULL, {"depth": 4, "rank": 2})
    assert isinstance(chain, ChainDrafter) and (chain.depth, chain.rank) == (4, 2)
    spot: Any = make_drafter("spot", FULL, {"merged": False, "tau": 2})
    assert spot.settings == DraftSettings(tau=2, merged=False)
    assert make_drafter("spot", FULL) is FULL.order
    tree: Any = make_drafter("trajectory_tree", FULL, {"width": 3, "depth": 5})
    assert (tree.width, tree.depth) == (3, 5)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("chain", {"width": 2}, "no option 'width'; it takes depth, rank"),
        ("chain", {"depth": "four"}, "chain.depth is 'four'; expected int or none"),
        ("trajectory_tree", {"width": True}, "expected int"),
        ("position_oracle", {"depth": 1}, "it takes none"),
        ("spot", {"tau": 0}, "tau"),
        ("random", {"mode": "x"}, "mode"),
    ],
)
def test_unknown_options_and_values_are_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpotError, match=said):
        make_drafter(name, FULL, options)


def test_methods_from_the_command_line() -> None:
    assert parse_method("chain") == ("chain", {})
    assert parse_method("chain:depth=4,drawn_confidence=true") == ("chain", {"depth": 4, "drawn_confidence": True})
    assert parse_method("random:mode=wrong") == ("random", {"mode": "wrong"})
    with pytest.raises(SpotError, match="option=value"):
        parse_method("chain:depth")
