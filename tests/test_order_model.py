"""The order model: size, probabilities over open slots only, padding and table order without effect."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spot_infer.errors import SpotError
from spot_infer.features import RANK_COLUMN, TABLE_FEATURES
from spot_infer.order_model import OrderModel, OrderModelConfig

L = 8
SMALL = OrderModelConfig(L, d_model=32, heads=4, layers=2, feed_forward=64, head_hidden=16)
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def make_model(config: OrderModelConfig = SMALL) -> OrderModel:
    torch.manual_seed(0)
    model = OrderModel(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def make_inputs(m: int = 6, queries: int = 3) -> Inputs:
    torch.manual_seed(1)
    table = torch.rand(queries, m, TABLE_FEATURES)
    slot = torch.arange(m).expand(queries, m)
    taken = torch.rand(queries, m) < 0.3
    taken[:, 0] = False
    return table, slot, torch.ones(queries, m, dtype=torch.bool), taken, torch.arange(queries)


def test_the_default_network_has_the_papers_size() -> None:
    count = sum(parameter.numel() for parameter in OrderModel(OrderModelConfig(32)).parameters())
    assert abs(count / 0.62e6 - 1) < 0.02


def test_taken_slots_have_no_probability() -> None:
    table, slot, valid, taken, depth = make_inputs()
    q = make_model()(table, slot, valid, taken, depth).softmax(-1)
    assert (q[taken] == 0).all()
    torch.testing.assert_close(q.sum(-1), torch.ones(3, dtype=torch.float64))
    assert (q[~taken] > 0).all()


def test_padding_changes_nothing() -> None:
    table, slot, valid, taken, depth = make_inputs()
    alone = make_model()(table, slot, valid, taken, depth)
    wide = torch.nn.functional.pad
    padded = make_model()(
        wide(table, (0, 0, 0, 3), value=7.0), wide(slot, (0, 3)), wide(valid, (0, 3)), wide(taken, (0, 3)), depth
    )
    torch.testing.assert_close(padded[:, :6], alone)
    assert padded[:, 6:].isneginf().all()


def test_the_order_of_rows_changes_nothing() -> None:
    table, slot, valid, taken, depth = make_inputs()
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    shuffled = make_model()(table[:, order], slot[:, order], valid, taken[:, order], depth)
    torch.testing.assert_close(shuffled, make_model()(table, slot, valid, taken, depth)[:, order])


@pytest.mark.parametrize("name", ["table", "slot", "taken", "depth"])
def test_every_input_is_read(name: str) -> None:
    names = ("table", "slot", "valid", "taken", "depth")
    inputs = list(make_inputs())
    before = make_model()(*inputs)
    at = names.index(name)
    changes = {
        "table": lambda x: x + 0.5 * torch.rand_like(x),
        "slot": lambda x: (x + 1) % L,
        "taken": lambda x: x ^ (torch.arange(6) == 1),
        "depth": lambda x: x + 3,
    }
    inputs[at] = changes[name](inputs[at])
    after = make_model()(*inputs)
    kept = ~before.isneginf() & ~after.isneginf()
    assert not torch.allclose(before[kept], after[kept])


def test_training_starts_from_the_untrained_order() -> None:
    table, slot, valid, taken, depth = make_inputs()
    ranks = torch.stack([torch.randperm(6) for _ in range(3)])
    table[..., RANK_COLUMN] = ranks / L
    scores = OrderModel(SMALL).eval()(table, slot, valid, taken, depth)
    assert scores.argmax(-1).tolist() == ranks.masked_fill(taken, 99).argmin(-1).tolist()
    plain = OrderModel(replace(SMALL, residual=False))
    assert not hasattr(plain, "rank_weight")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"heads": 5}, "heads"),
        ({"layers": 0}, "layers"),
        ({"d_model": "128"}, "d_model"),
        ({"d_max": -1}, "d_max"),
        ({"features": "v9"}, "features"),
        ({"residual": 1}, "residual"),
        ({"block_length": 1024}, "block_length"),
        ({"colour": 1}, "colour"),
        ({"rule": "float32"}, "rule"),
        ({"rule": {"ranking": "best"}}, "ranking"),
    ],
)
def test_a_bad_config_is_named(change: dict[str, object], field: str) -> None:
    with pytest.raises(SpotError, match=field):
        OrderModelConfig.from_dict({**SMALL.to_dict(), **change})


def test_a_config_survives_json() -> None:
    assert OrderModelConfig.from_dict(SMALL.to_dict()) == SMALL
