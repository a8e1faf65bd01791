"""The order model, either head: size, probabilities over open slots only, padding and table order without effect."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spot_infer.errors import SpotError
from spot_infer.features import LOG_ODDS_COLUMN, RANK_COLUMN, TABLE_FEATURES
from spot_infer.order_model import HEAD_HIDDEN, OrderModel, OrderModelConfig, Residual, Scorer
from spot_infer.set_scores import HeadArrays, SetScores, as_array
from spot_infer.transition import CommitRule

L = 8
SMALL = OrderModelConfig(L, d_model=32, heads=4, layers=2, feed_forward=64, head_hidden=16)
NAMES = ("table", "slot", "valid", "root", "of", "taken", "depth")
Inputs = tuple[Tensor, ...]

both = pytest.mark.parametrize("scorer", ["per_level", "one_call"])


def make_model(scorer: Scorer, config: OrderModelConfig = SMALL) -> OrderModel:
    torch.manual_seed(0)
    model = OrderModel(replace(config, scorer=scorer)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def make_inputs(m: int = 6) -> Inputs:
    """Two tables, three states: of the first, the second and the first again."""
    torch.manual_seed(1)
    table = torch.rand(2, m, TABLE_FEATURES)
    slot = torch.arange(m).expand(2, m)
    root = torch.zeros(2, m, dtype=torch.bool)
    root[0, 2] = root[1, 4] = True
    of = torch.tensor([0, 1, 0])
    taken = (torch.rand(3, m) < 0.3) | root[of]
    taken[:, 0] = False
    return table, slot, torch.ones(2, m, dtype=torch.bool), root, of, taken, torch.arange(3)


@pytest.mark.parametrize("scorer", ["per_level", "one_call"])
def test_the_default_network_has_the_papers_size(scorer: Scorer) -> None:
    model = OrderModel(OrderModelConfig(32, scorer=scorer, head_hidden=HEAD_HIDDEN[scorer]))
    assert abs(sum(parameter.numel() for parameter in model.parameters()) / 0.62e6 - 1) < 0.02


@both
def test_a_table_without_slots_leaves_the_others_gradients_alone(scorer: Scorer) -> None:
    table, slot, valid, root, of, taken, depth = make_inputs()
    empty = [torch.cat([one, torch.zeros_like(one[:1])]) for one in (table, slot, valid, root)]
    gradients = []
    for tables in ((table, slot, valid, root), empty):
        model = make_model(scorer)
        model(*tables, of, taken, depth).softmax(-1)[:, 0].sum().backward()
        gradients.append([one.grad for one in model.parameters()])
    for alone, beside in zip(*gradients, strict=True):
        torch.testing.assert_close(alone, beside)


@both
def test_taken_slots_have_no_probability(scorer: Scorer) -> None:
    inputs = make_inputs()
    taken = inputs[5]
    q = make_model(scorer)(*inputs).softmax(-1)
    assert (q[taken] == 0).all()
    torch.testing.assert_close(q.sum(-1), torch.ones(3, dtype=torch.float64))
    assert (q[~taken] > 0).all()


@both
def test_padding_changes_nothing(scorer: Scorer) -> None:
    table, slot, valid, root, of, taken, depth = make_inputs()
    alone = make_model(scorer)(table, slot, valid, root, of, taken, depth)
    wide = torch.nn.functional.pad
    padded = make_model(scorer)(
        wide(table, (0, 0, 0, 3), value=7.0),
        *(wide(x, (0, 3)) for x in (slot, valid, root)),
        of,
        wide(taken, (0, 3)),
        depth,
    )
    torch.testing.assert_close(padded[:, :6], alone)
    assert padded[:, 6:].isneginf().all()


@both
def test_the_order_of_rows_changes_nothing(scorer: Scorer) -> None:
    table, slot, valid, root, of, taken, depth = make_inputs()
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    shuffled = make_model(scorer)(table[:, order], slot[:, order], valid, root[:, order], of, taken[:, order], depth)
    torch.testing.assert_close(shuffled, make_model(scorer)(table, slot, valid, root, of, taken, depth)[:, order])


@both
def test_every_input_is_read(scorer: Scorer) -> None:
    inputs = list(make_inputs())
    before = make_model(scorer)(*inputs)
    changes = {
        "table": lambda x: x + 0.5 * torch.rand_like(x),
        "slot": lambda x: (x * 3 + 1) % L,
        "root": lambda x: x ^ (torch.arange(6) == 1),
        "of": lambda x: 1 - x,
        "taken": lambda x: x ^ (torch.arange(6) == 1),
        "depth": lambda x: x + 3,
    }
    for name, change in changes.items():
        if name == "root" and scorer == "per_level":
            continue
        changed = list(inputs)
        changed[NAMES.index(name)] = change(inputs[NAMES.index(name)])
        after = make_model(scorer)(*changed)
        kept = ~before.isneginf() & ~after.isneginf()
        assert not torch.allclose(before[kept], after[kept]), name


@both
@pytest.mark.parametrize("residual", ["rank", "confidence"])
@pytest.mark.parametrize("resolution", ["float32", "bfloat16"])
def test_training_starts_from_the_untrained_order(scorer: Scorer, residual: Residual, resolution: str) -> None:
    table, slot, valid, root, of, taken, depth = make_inputs()
    ranks = torch.stack([torch.randperm(6) for _ in range(2)])
    table[..., RANK_COLUMN] = ranks / L
    if resolution == "float32":  # a rule that ties log-odds ranks them otherwise than they are
        table[..., LOG_ODDS_COLUMN] = -ranks / 16
    config = replace(SMALL, scorer=scorer, residual=residual, rule=CommitRule(resolution=resolution))
    scores = OrderModel(config).eval()(table, slot, valid, root, of, taken, depth)
    assert scores.argmax(-1).tolist() == ranks[of].masked_fill(taken, 99).argmin(-1).tolist()
    plain = OrderModel(replace(SMALL, scorer=scorer, residual="none"))
    assert not hasattr(plain, "rank_weight")
    others = plain.eval()(table, slot, valid, root, of, taken, depth)
    assert others.argmax(-1).tolist() != scores.argmax(-1).tolist()


def test_one_call_answers_for_states_as_a_slow_sum_over_their_slots() -> None:
    """The head, and its arrays for the search, against its formula, slot by slot."""
    model = make_model("one_call")
    table, slot, valid, root, of, taken, depth = make_inputs()
    scores = model(table, slot, valid, root, of, taken, depth)
    head = model.set_head
    codes = model.encode(table, slot, valid, root)
    base, gate, message, prior = codes.split((16, 16, 16, 1), dim=-1)
    for query, one in enumerate(of.tolist()):
        arrays = SetScores(HeadArrays(head), as_array(codes[one]), slot[one].numpy())
        (searched,) = arrays(taken[[query]].numpy(), depth[[query]].tolist())
        filled = taken[query].nonzero().flatten().tolist()
        for i in set(range(6)) - set(filled):
            inner = base[one, i].clone()
            for j in filled:
                inner += gate[one, i] * message[one, j]
                inner += head.offset[int(slot[one, j] - slot[one, i]) + L - 1]
            score = prior[one, i, 0] + head.out.weight[0] @ inner.relu()
            expected = score * head.sharpness[depth[query]].exp()
            torch.testing.assert_close(scores[query, i], expected)
            assert searched[i] == pytest.approx(float(expected.detach()), rel=1e-5, abs=1e-6)


@both
@pytest.mark.parametrize("padded", [False, True])
def test_training_scores_as_serving_does(scorer: Scorer, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention in products or fused; tables laid out together or one by one; no state at all."""
    model = make_model(scorer)
    inputs = make_inputs()
    inputs[NAMES.index("valid")][1, -1] = not padded
    with torch.no_grad():
        served = model(*inputs)
    torch.testing.assert_close(model(*inputs).detach(), served)
    monkeypatch.setattr("spot_infer.set_head.MOST_LAID_OUT", 1)
    torch.testing.assert_close(model(*inputs).detach(), served)
    none = [one[:0] if name in ("of", "taken", "depth") else one for name, one in zip(NAMES, inputs, strict=True)]
    assert model(*none).shape == (0, 6)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"heads": 5}, "heads"),
        ({"layers": 0}, "layers"),
        ({"d_model": "128"}, "d_model"),
        ({"d_max": -1}, "d_max"),
        ({"features": "v9"}, "features"),
        ({"scorer": "two_calls"}, "scorer"),
        ({"residual": 1}, "residual"),
        ({"residual": "log_odds"}, "residual"),
        ({"block_length": 1024}, "block_length"),
        ({"colour": 1}, "colour"),
        ({"rule": "float32"}, "rule"),
        ({"rule": {"ranking": "best"}}, "ranking"),
    ],
)
def test_a_bad_config_is_named(change: dict[str, object], field: str) -> None:
    with pytest.raises(SpotError, match=field):
        OrderModelConfig.from_dict({**SMALL.to_dict(), **change})


@both
def test_a_config_survives_json(scorer: Scorer) -> None:
    config = replace(SMALL, scorer=scorer)
    assert OrderModelConfig.from_dict(config.to_dict()) == config


def test_a_config_from_before_there_were_scorers_is_per_level() -> None:
    fields = SMALL.to_dict()
    del fields["scorer"]
    assert OrderModelConfig.from_dict(fields) == SMALL


@pytest.mark.parametrize(("older", "residual"), [(True, "rank"), (False, "none")])
def test_a_config_from_before_there_were_kinds_of_residual_is_read(older: bool, residual: Residual) -> None:
    assert OrderModelConfig.from_dict({**SMALL.to_dict(), "residual": older}) == replace(SMALL, residual=residual)
