"""Reading states as the walk reaches them, or all at once as on a GPU: the same rounds, and only as many logits."""

from __future__ import annotations

import pytest
import torch
from fake_dlm import FakeTarget

import spot_infer.walk
from spot_infer.decode import decode
from spot_infer.drafters import ChainDrafter, RandomDrafter
from spot_infer.graph import Drafter
from spot_infer.requests import DecodeSettings, Request, Round
from spot_infer.transition import CommitRule, Sampling


class CountingTarget(FakeTarget):
    """Counts the hidden states that meet the vocabulary."""

    projected = 0

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.projected += len(hidden)
        return super().logits(hidden)


def decoded(drafter: Drafter | None, settings: DecodeSettings) -> tuple[list[Round], int]:
    target = CountingTarget(seed=3, block_length=6, strength=0.1, stop_ids=())
    requests = [Request((5, 4, 3 + row), seed=row) for row in range(3)]
    return list(decode(target, requests, settings, drafter)), target.projected


@pytest.mark.parametrize("verifier", ["coupled", "greedy"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_states_read_when_reached_commit_what_states_read_at_once_do(
    verifier: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DecodeSettings(24, sampling=Sampling(temperature), budget=6, batch_size=2, verifier=verifier)  # type: ignore[arg-type]
    for drafter in (ChainDrafter(CommitRule()), RandomDrafter(1)):
        monkeypatch.setattr(spot_infer.walk, "reads_at_once", lambda device: False)
        rounds, few = decoded(drafter, settings)
        monkeypatch.setattr(spot_infer.walk, "reads_at_once", lambda device: True)
        again, all_ = decoded(drafter, settings)
        assert [(one.request, one.state, one.steps, one.final_tokens) for one in rounds] == [
            (one.request, one.state, one.steps, one.final_tokens) for one in again
        ]
        assert few < all_


def test_only_masked_slots_of_states_passed_are_read() -> None:
    rounds, projected = decoded(RandomDrafter(1), DecodeSettings(24, budget=6, batch_size=1, boundary="separate"))
    free, alone = decoded(None, DecodeSettings(24, batch_size=1))
    steps = sum(len(one.steps) for one in free)
    assert steps == sum(len(one.steps) for one in rounds)
    tables = sum(len(table.slots) for one in rounds for table in one.tables)
    assert projected == alone + tables
