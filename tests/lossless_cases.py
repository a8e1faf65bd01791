"""One lossless case: a target, a handful of prompts, settings and a drafter; and what must be equal afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from hypothesis import strategies as st
from odd_drafters import (
    CrossingDrafter,
    HugeDrafter,
    OrdersDrafter,
    OutlawDrafter,
    SetDrafter,
    ShuffledDrafter,
    SometimesDrafter,
)
from slow_decoder import Decoded, FullLogits

from spot_infer.ahead import LEAST_SURE, MOST_OPEN, WORTH
from spot_infer.allocate import writes_apart
from spot_infer.blocks import Step
from spot_infer.cost import CostCurve, DrafterCost, load_curve
from spot_infer.decode import decode
from spot_infer.drafters import (
    CalibratedGraph,
    CalibratedGraphDrafter,
    ChainDrafter,
    ConfidenceTreeDrafter,
    DraftSettings,
    OddsTreeDrafter,
    OracleDrafter,
    OrderDrafter,
    RandomDrafter,
    TrajectoryTreeDrafter,
)
from spot_infer.features import FeatureKind
from spot_infer.graph import Drafter
from spot_infer.order_model import OrderModel, OrderModelConfig, Scorer
from spot_infer.requests import DecodeSettings, Request, Round, Stats
from spot_infer.responses import RESPONSE
from spot_infer.targets import TargetSpec
from spot_infer.transition import CommitRule, Sampling

RULES = [
    CommitRule(),
    CommitRule(),
    CommitRule(resolution="bfloat16"),
    CommitRule(resolution=0.02),
    CommitRule(selection="threshold", threshold=0.8),
    CommitRule(selection="threshold", threshold=0.5, resolution="bfloat16"),
    CommitRule(selection="quota", quota=2),
    CommitRule("margin"),
    CommitRule("entropy", "bfloat16"),
]
SAMPLINGS = [
    Sampling(),
    Sampling(),
    Sampling(0.3),
    Sampling(1.0),
    Sampling(1.0, 3, 1.0),
    Sampling(1.0, 0, 0.7),
    Sampling(1.5, 5, 0.9),
]
CURVES = [
    None,
    None,
    load_curve("paper-gsm8k"),
    load_curve("cpu-core"),
    CostCurve("dear", (1, 2, 8), (1.0, 1.0, 1.5), "c1", "", 0.05, 0.0, DrafterCost(0.3, 0.1, 0.02)),
]
"""None is a fixed budget."""
DRAFTERS = [
    "order",
    "order tree",
    "one call",
    "one call tree",
    "version 2",
    "one call, version 2",
    "chain",
    "second token chain",
    "confidence tree",
    "confidence tree, drawn",
    "odds tree",
    "odds chain",
    "trajectory tree",
    "whole trajectory tree",
    "calibrated graph",
    "random",
    "wrong",
    "oracle joint",
    "oracle position",
    "oracle token",
    "another row's oracle",
    "huge",
    "huge tree",
    "orders tree",
    "sets",
    "sets tree",
    "outlaw",
    "outlaw tree",
    "shuffled order",
    "shuffled random tree",
    "sometimes",
    "crossing",
    "crossing tree",
    "shuffled crossing",
    "cross-block chain",
    "short cross-block chain",
]


@dataclass(frozen=True)
class Case:
    """What one example decodes; `order` permutes the requests of the drafted run, `at_once`: it reads all states of a
    forward at once, as on a GPU, and not as they are reached; `far`: it looks into the next block whenever it can."""

    target: Any
    full_logits: FullLogits
    requests: tuple[Request, ...]
    settings: DecodeSettings
    drafter: str
    order: tuple[int, ...]
    drafted_batch: int
    at_once: bool = False
    far: bool = False


@st.composite
def cases(draw: st.DrawFn, targets: st.SearchStrategy[tuple[Any, FullLogits]]) -> Case:
    """Prompt lengths around the block grid, with stop ids among the prompt tokens."""
    target, full_logits = draw(targets)
    spec = target.spec
    length = spec.block_length
    near_grid = [1, length - 1, length, length + 1, 2 * length - 1, 2 * length, 2 * length + 1, 3 * length + 2]
    lengths = draw(st.lists(st.sampled_from([n for n in near_grid if n > 0]), min_size=1, max_size=5))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    requests = tuple(
        Request(tuple(random.integers(0, spec.mask_id, size=n).tolist()), int(random.integers(2**63))) for n in lengths
    )
    settings = DecodeSettings(
        max_new_tokens=draw(st.sampled_from([1, 2, length, length + 1, 2 * length + 1, 3 * length - 1, 3 * length])),
        rule=draw(st.sampled_from(RULES)),
        sampling=draw(st.sampled_from(SAMPLINGS)),
        budget=draw(st.sampled_from([1, 4, 16])),
        floor=draw(st.sampled_from([0.0, 0.0, 0.05])),
        pad=draw(st.booleans()),
        layout=draw(st.sampled_from(["concat", "batch"])),
        batch_size=draw(st.integers(1, 4)),
        ignore_stop=draw(st.booleans()),
        stop=draw(st.sampled_from([(), (), ("e", "cd")])),
        boundary=draw(st.sampled_from(["separate", "fused", "seamless", "auto"])),
        verifier=draw(st.sampled_from(["coupled", "coupled", "uncoupled"])),
    )
    if (curve := draw(st.sampled_from(CURVES))) is not None:
        settings = replace(settings, curve=curve, floor=0.0, pad=False)
    drafters = DRAFTERS
    if spec.cache != "exact":  # a finished block is encoded anew, so no draft goes past it
        settings = replace(settings, boundary=draw(st.sampled_from(["separate", "auto"])))
        drafters = [name for name in DRAFTERS if "cross-block" not in name]
    return Case(
        target,
        full_logits,
        requests,
        settings,
        draw(st.sampled_from(drafters)),
        tuple(draw(st.permutations(range(len(requests))))),
        draw(st.integers(1, 4)),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def make_drafter(name: str, case: Case, controls: dict[int, tuple[Step, ...]]) -> Drafter:
    """The drafter called `name`; `controls` are the draft-free steps by request index of the drafted run."""
    rule = case.settings.rule
    others = {index: controls[(index + 1) % len(controls)] for index in controls}
    made: dict[str, Callable[[], Drafter]] = {
        "order": lambda: _order(case, merged=True),
        "order tree": lambda: _order(case, merged=False),
        "one call": lambda: _order(case, merged=True, scorer="one_call"),
        "one call tree": lambda: _order(case, merged=False, scorer="one_call"),
        "version 2": lambda: _order(case, merged=True, features="v2"),
        "one call, version 2": lambda: _order(case, merged=True, scorer="one_call", features="v2"),
        "chain": lambda: ChainDrafter(rule),
        "second token chain": lambda: ChainDrafter(rule, depth=4, rank=2),
        "confidence tree": lambda: ConfidenceTreeDrafter(rule),
        "confidence tree, drawn": lambda: ConfidenceTreeDrafter(rule, merged=False, drawn_confidence=True),
        "odds tree": lambda: OddsTreeDrafter(rule),
        "odds chain": lambda: OddsTreeDrafter(rule, chain=True, merged=False),
        "trajectory tree": lambda: TrajectoryTreeDrafter(rule, width=3, depth=4),
        "whole trajectory tree": lambda: TrajectoryTreeDrafter(rule),
        "calibrated graph": lambda: _calibrated(case),
        "random": lambda: RandomDrafter(3),
        "wrong": lambda: RandomDrafter(4, mode="wrong"),
        "oracle joint": lambda: OracleDrafter("joint", controls, rule),
        "oracle position": lambda: OracleDrafter("position", controls, rule),
        "oracle token": lambda: OracleDrafter("token", controls, rule),
        "another row's oracle": lambda: OracleDrafter("joint", others, rule),
        "huge": lambda: HugeDrafter(merged=True),
        "huge tree": lambda: HugeDrafter(merged=False),
        "orders tree": lambda: OrdersDrafter(merged=False),
        "sets": lambda: SetDrafter(case.target.spec.forbidden_ids, merged=True),
        "sets tree": lambda: SetDrafter(case.target.spec.forbidden_ids, merged=False),
        "outlaw": lambda: OutlawDrafter(case.target.spec.vocab_size, merged=True),
        "outlaw tree": lambda: OutlawDrafter(case.target.spec.vocab_size, merged=False),
        "shuffled order": lambda: ShuffledDrafter(_order(case, merged=True)),
        "shuffled random tree": lambda: ShuffledDrafter(RandomDrafter(5, merged=False)),
        "sometimes": lambda: SometimesDrafter(OracleDrafter("joint", controls, rule)),
        "crossing": lambda: CrossingDrafter(controls, case.target.spec.mask_id, merged=True),
        "crossing tree": lambda: CrossingDrafter(controls, case.target.spec.mask_id, merged=False),
        "shuffled crossing": lambda: ShuffledDrafter(
            CrossingDrafter(controls, case.target.spec.mask_id, merged=True, seed=1)
        ),
        "cross-block chain": lambda: ChainDrafter(rule, cross_block=True),
        "short cross-block chain": lambda: ChainDrafter(rule, depth=3, cross_block=True),
    }
    return made[name]()


@lru_cache
def _random_order_model(block_length: int, rule: CommitRule, scorer: Scorer, features: FeatureKind) -> OrderModel:
    torch.manual_seed(block_length)
    sizes = {"d_model": 16, "heads": 2, "layers": 1, "feed_forward": 16, "head_hidden": 8}
    model = OrderModel(OrderModelConfig(block_length, **sizes, scorer=scorer, features=features, rule=rule))
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.5
    return model


def _order(case: Case, merged: bool, scorer: Scorer = "per_level", features: FeatureKind = "v1") -> Drafter:
    model = _random_order_model(case.target.spec.block_length, case.settings.rule, scorer, features)
    return OrderDrafter(model, DraftSettings(merged=merged, response=RESPONSE if merged else 0.0))


def _calibrated(case: Case) -> Drafter:
    """A graph with branches, later tokens and states of one to three commits."""
    pairs = [[(0, 0)], [(0, 0), (1, 0)], [(1, 0)], [(0, 1)], [(0, 0), (1, 0), (2, 0)], [(1, 0), (2, 1)], [(2, 0)]]
    nodes = tuple(frozenset(node) for node in pairs)
    graph = CalibratedGraph(nodes, (0.4,) * len(nodes), case.target.spec.block_length)
    return CalibratedGraphDrafter(graph, case.settings.rule, prune_below=0.01)


@dataclass(frozen=True)
class Outcome:
    """Everything one request's decoding shows, and its rounds for the accounting."""

    decoded: Decoded
    rounds: tuple[Round, ...]
    nfe: int


def run(target: Any, requests: Sequence[Request], settings: DecodeSettings, drafter: Drafter | None) -> list[Outcome]:
    """Decode with tables recorded and gather the rounds by request."""
    rounds: dict[int, list[Round]] = {index: [] for index in range(len(requests))}
    for round_ in decode(target, requests, settings, drafter, record=True):
        rounds[round_.request].append(round_)
    return [_outcome(rounds[index], target.spec, len(request.prompt_ids)) for index, request in enumerate(requests)]


def _outcome(rounds: list[Round], spec: TargetSpec, prompt_length: int) -> Outcome:
    results = [round_.result for round_ in rounds if round_.result is not None]
    assert len(results) == 1
    assert rounds[-1].result is results[0]
    result = results[0]
    assert tuple(token for round_ in rounds for token in round_.final_tokens) == result.tokens
    steps = tuple(step for round_ in rounds for step in round_.steps)
    stats = result.stats
    opened = stats.boundary == "seamless" and prompt_length >= spec.block_length
    assert stats.nfe + opened == len(rounds) == stats.rounds + stats.cache_writes
    assert stats.commits == sum(len(step) for step in steps)
    assert stats.accepted == len(steps) - stats.rounds
    origin = prompt_length if spec.cache != "exact" else 0
    blocks = [{(position - origin) // spec.block_length for position, _ in step} for step in steps]
    assert all(len(block) == 1 for block in blocks)
    assert stats.boundaries == (max(blocks[-1]) - min(blocks[0]) if spec.cache == "exact" else 0)
    decoded = Decoded(result.tokens, result.text, result.finish_reason, steps)
    return Outcome(decoded, tuple(rounds), stats.nfe)


def _may_write(case: Case) -> bool:
    """Whether a batch of the drafted run may write a finished block in a forward of its own."""
    curve = case.settings.curve
    return curve is not None and any(writes_apart(curve, rows) for rows in range(1, case.drafted_batch + 1))


def check(case: Case) -> tuple[int, int]:
    """Assert that the drafted run equals draft-free decoding; returns draft-free and drafted forwards over all rows."""
    free = run(case.target, case.requests, replace(case.settings, budget=0, boundary="separate"), None)
    inverse = {old: new for new, old in enumerate(case.order)}
    controls = {inverse[old]: free[old].decoded.steps for old in range(len(free))}
    drafter = make_drafter(case.drafter, case, controls)
    shuffled = [case.requests[old] for old in case.order]
    least_sure, most_open, worth = (0.0, 1e9, 1e9) if case.far else (LEAST_SURE, MOST_OPEN, WORTH)
    with (
        patch("spot_infer.walk.reads_at_once", lambda device: case.at_once),
        patch("spot_infer.ahead.LEAST_SURE", least_sure),
        patch("spot_infer.decode.MOST_OPEN", most_open),
        patch("spot_infer.ahead.WORTH", worth),
    ):
        drafted = run(case.target, shuffled, replace(case.settings, batch_size=case.drafted_batch), drafter)
    for new, old in enumerate(case.order):
        assert drafted[new].decoded == free[old].decoded
        assert drafted[new].nfe <= free[old].nfe == _stats(drafted[new]).draft_free_nfe
        if (boundary := _stats(drafted[new]).boundary) != "separate":
            assert _stats(drafted[new]).cache_writes <= (_stats(drafted[new]).boundaries if _may_write(case) else 0)
        asked = case.settings.boundary
        assert asked == boundary or (
            asked == "auto" and (boundary == "seamless") is (case.target.spec.cache == "exact")
        )
        _same_tables(free[old].rounds, drafted[new].rounds, draws=case.settings.verifier == "coupled")
        assert case.target.spec.mask_id not in free[old].decoded.tokens
        whole_block = case.settings.budget >= case.target.spec.block_length and case.settings.curve is None
        if case.drafter == "oracle joint" and whole_block:
            _assert_oracle_pace(drafted[new])
    return sum(one.nfe for one in free), sum(one.nfe for one in drafted)


def _stats(outcome: Outcome) -> Stats:
    assert outcome.rounds[-1].result is not None
    return outcome.rounds[-1].result.stats


def _same_tables(free: Sequence[Round], drafted: Sequence[Round], draws: bool) -> None:
    """The tables a drafted run records are the draft-free run's, one a step, up to rounding; draws are in them where
    drafters may see them. A mixture weighs its experts in float32 whatever its dtype, so log-odds near 0 agree to 1e-6.
    """
    pairs = [
        [(step, table) for r in rounds for step, table in zip(r.steps, r.tables, strict=True)]
        for rounds in (free, drafted)
    ]
    for (step, table), (other_step, other) in zip(*pairs, strict=True):
        assert step == other_step
        np.testing.assert_array_equal(table.slots, other.slots)
        np.testing.assert_array_equal(table.top_token[:, 0], other.top_token[:, 0])
        np.testing.assert_allclose(table.log_odds, other.log_odds, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(
            table.top_logprob.astype(np.float64), other.top_logprob.astype(np.float64), rtol=1e-3, atol=1e-6
        )
        assert (other.drawn_token is None) is (table.drawn_token is None or not draws)
        if table.drawn_token is not None and other.drawn_token is not None:
            np.testing.assert_array_equal(table.drawn_token, other.drawn_token)


def _assert_oracle_pace(outcome: Outcome) -> None:
    """With the whole trajectory known, a block takes at most an opening, one drafted round and the last commit."""
    per_block: dict[int, int] = {}
    for round_ in outcome.rounds:
        per_block[round_.state.start] = per_block.get(round_.state.start, 0) + bool(round_.steps)
    assert max(per_block.values()) <= 2
