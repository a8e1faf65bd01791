"""Verifiers: what each promises and records, what it lets a drafter know, and what its runs depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
from fake_dlm import FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st
from lossless_cases import Case, cases, run
from lossless_targets import fake_targets
from odd_drafters import HugeDrafter, ShuffledDrafter
from slow_decoder import Decoded

from spot_infer.blocks import Commit
from spot_infer.cost import load_curve
from spot_infer.decode import decode
from spot_infer.drafters import ChainDrafter
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, Drafter, DraftGraph
from spot_infer.requests import DecodeSettings, Request, Verifier, check_settings
from spot_infer.transition import CommitRule, Sampling
from spot_infer.verify import distribution_preserving, same_tokens

DRAFTED = DecodeSettings(max_new_tokens=6, budget=4, sampling=Sampling(1.0))
VERIFIERS = get_args(Verifier)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_the_verdict_of_a_configuration(verifier: Verifier) -> None:
    spec = FakeTarget().spec
    hot = replace(DRAFTED, verifier=verifier)
    assert distribution_preserving(spec, hot)[0] is (verifier != "greedy")
    assert same_tokens(hot) is (verifier in ("coupled", "uncoupled"))
    for at_zero in (replace(hot, budget=0), replace(hot, sampling=Sampling())):
        assert distribution_preserving(spec, at_zero)[0] and same_tokens(at_zero)
    inexact = replace(spec, exact_prefix_cache=False)
    verdict, reason = distribution_preserving(inexact, hot)
    assert not verdict and "prefix cache" in reason
    assert "likeliest" in distribution_preserving(spec, replace(DRAFTED, verifier="greedy"))[1]


@pytest.mark.parametrize("drafter", [None, ChainDrafter()])
def test_every_result_carries_the_verdict_and_its_reason(drafter: ChainDrafter | None) -> None:
    target = FakeTarget()
    expected = distribution_preserving(target.spec, DRAFTED if drafter else replace(DRAFTED, budget=0))
    for round_ in decode(target, [Request((3, 4), 5)], DRAFTED, drafter):
        if round_.result is not None:
            assert (round_.result.stats.distribution_preserving, round_.result.stats.reason) == expected


def test_an_unknown_verifier_is_refused() -> None:
    with pytest.raises(SpotError, match="verifier is 'typical'; use coupled, uncoupled"):
        check_settings(replace(DRAFTED, verifier="typical"))  # type: ignore[arg-type]


def test_auto_budgets_are_refused_under_rejection_whose_tokens_follow_the_depths() -> None:
    auto = replace(DRAFTED, curve=load_curve("cpu-core"))
    check_settings(auto)
    check_settings(replace(auto, verifier="rejection", sampling=Sampling()))
    with pytest.raises(SpotError, match=r"budget is auto, .* verifier is rejection"):
        check_settings(replace(auto, verifier="rejection"))


def _decoded(case: Case, settings: DecodeSettings, drafter: Drafter) -> dict[int, tuple[Decoded, int]]:
    """What each request decodes to, with its forwards, by the request's seed; `case.order` permutes the requests."""
    requests = [case.requests[index] for index in case.order]
    outcomes = run(case.target, requests, settings, drafter)
    return {request.seed: (one.decoded, one.nfe) for request, one in zip(requests, outcomes, strict=True)}


@settings(max_examples=40)
@given(cases(fake_targets()), st.sampled_from(["uncoupled", "greedy", "rejection"]))
def test_a_run_depends_on_the_seed_and_the_drafter_only(case: Case, verifier: Verifier) -> None:
    """Not on the layout, the batch, padding or the order of requests and drafted states."""
    chosen = replace(case.settings, verifier=verifier, floor=0.0, curve=None)
    drafter: Drafter = ChainDrafter(chosen.rule)
    if verifier == "rejection":
        chosen = replace(chosen, rule=replace(chosen.rule, selection="one"))
        drafter = ChainDrafter(chosen.rule)
    first = _decoded(replace(case, order=tuple(range(len(case.requests)))), chosen, drafter)
    other_layout = "batch" if chosen.layout == "concat" else "concat"
    again = replace(chosen, layout=other_layout, batch_size=case.drafted_batch, pad=not chosen.pad)
    assert _decoded(case, again, ShuffledDrafter(drafter) if verifier == "uncoupled" else drafter) == first


@settings(max_examples=15)
@given(cases(fake_targets()), st.sampled_from(VERIFIERS))
def test_at_temperature_zero_every_verifier_is_the_same(case: Case, verifier: Verifier) -> None:
    cold = replace(case.settings, sampling=Sampling())
    drafter = HugeDrafter(merged=True)
    assert _decoded(case, replace(cold, verifier=verifier), drafter) == _decoded(case, cold, drafter)


def test_what_a_drafter_may_know_of_the_draw() -> None:
    seen: list[DraftContext] = []

    class Watching(ChainDrafter):
        def propose(self, contexts: Sequence[DraftContext]) -> list[DraftGraph]:
            seen.extend(contexts)
            return super().propose(contexts)

    for verifier in VERIFIERS:
        seen.clear()
        list(decode(FakeTarget(), [Request((3, 4), 5)], replace(DRAFTED, verifier=verifier), Watching()))
        assert seen
        for context in seen:
            shares = [context.noise is not None, context.temperature > 0, context.tables[0].drawn_token is not None]
            assert shares == [verifier == "coupled"] * 3


@pytest.mark.parametrize("rule", [CommitRule(), CommitRule(selection="threshold", threshold=0.6)])
def test_greedy_match_keeps_the_argmax_and_ends_with_a_draw(rule: CommitRule) -> None:
    target = FakeTarget(seed=4, block_length=6, vocab_size=8, strength=0.4)
    requests = [Request((3, 4, 5), seed) for seed in range(40)]
    chosen = DecodeSettings(max_new_tokens=12, budget=20, sampling=Sampling(1.5), rule=rule, verifier="greedy")
    accepted = drawn = 0
    for outcome in run(target, requests, chosen, HugeDrafter(merged=True)):
        for round_ in outcome.rounds:
            graph = round_.graph or DraftGraph()
            node = 0
            for number, (step, table) in enumerate(zip(round_.steps, round_.tables, strict=True)):
                best = dict(zip(table.slots.tolist(), table.top_token[:, 0].tolist(), strict=True))
                likeliest = frozenset(Commit(p, best[p - round_.state.start]) for p, _ in step)
                if number + 1 < len(round_.steps):
                    assert step == likeliest
                    node = graph.child(node, step)  # type: ignore[assignment]
                    accepted += 1
                elif round_.result is None:
                    assert graph.child(node, likeliest) is None
                    drawn += step != likeliest
    assert accepted > 50 and drawn > 50


def test_uncoupled_match_draws_what_draft_free_decoding_draws_and_accepts_less() -> None:
    target = FakeTarget(seed=4, block_length=8, vocab_size=12, strength=0.3, stop_ids=())
    requests = [Request((3, 4, 5), seed) for seed in range(20)]
    hot = DecodeSettings(max_new_tokens=20, budget=6, sampling=Sampling(2.0))
    free = run(target, requests, replace(hot, budget=0), None)
    nfe = {}
    for verifier in ("coupled", "uncoupled"):
        drafted = run(target, requests, replace(hot, verifier=verifier), ChainDrafter())
        assert [one.decoded for one in drafted] == [one.decoded for one in free]
        nfe[verifier] = sum(one.nfe for one in drafted)
    assert nfe["coupled"] < nfe["uncoupled"] < sum(one.nfe for one in free)
