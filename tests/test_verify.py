"""What a configuration promises: the verdict on its distribution, its reason, and where both are recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from fake_dlm import FakeTarget

from spot_infer.decode import decode
from spot_infer.drafters import ChainDrafter
from spot_infer.errors import SpotError
from spot_infer.requests import DecodeSettings, Request, Verifier, check_settings
from spot_infer.transition import Sampling
from spot_infer.verify import distribution_preserving, same_tokens

DRAFTED = DecodeSettings(max_new_tokens=6, budget=4, sampling=Sampling(1.0))
VERIFIERS = get_args(Verifier)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_the_verdict_of_a_configuration(verifier: Verifier) -> None:
    spec = FakeTarget().spec
    settings = replace(DRAFTED, verifier=verifier)
    assert distribution_preserving(spec, settings)[0] is (verifier != "greedy")
    assert same_tokens(settings) is (verifier in ("coupled", "uncoupled"))
    for at_zero in (replace(settings, budget=0), replace(settings, sampling=Sampling())):
        assert distribution_preserving(spec, at_zero)[0] and same_tokens(at_zero)
    inexact = replace(spec, exact_prefix_cache=False)
    verdict, reason = distribution_preserving(inexact, settings)
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
    with pytest.raises(SpotError, match="verifier is 'typical'; use coupled"):
        check_settings(replace(DRAFTED, verifier="typical"))  # type: ignore[arg-type]
