"""Recorded trajectories of the fake target, for tests of what reads trajectories."""

from __future__ import annotations

from functools import lru_cache

from fake_dlm import FakeTarget

from spot_infer.decode import decode
from spot_infer.requests import DecodeSettings, Request
from spot_infer.transition import CommitRule, Sampling
from spot_train.collect.recording import record_trajectories
from spot_train.trajectory import Trajectory


@lru_cache(maxsize=32)
def fake_trajectories(
    count: int = 6,
    block_length: int = 8,
    max_new_tokens: int = 30,
    seed: int = 0,
    temperature: float = 0.0,
    rule: CommitRule | None = None,
) -> tuple[Trajectory, ...]:
    """Draft-free trajectories of a fake target with 40 tokens, prompts of 1, 4, 7, ... tokens."""
    target = FakeTarget(seed=seed, block_length=block_length, vocab_size=40)
    requests = [Request(tuple(2 + (seed + i * k) % 30 for k in range(1 + 3 * i)), seed=i) for i in range(count)]
    settings = DecodeSettings(
        max_new_tokens=max_new_tokens, rule=rule or CommitRule(), sampling=Sampling(temperature), batch_size=4
    )
    rounds = decode(target, requests, settings, record=True)
    recorded = record_trajectories(requests, rounds, max_new_tokens, target.spec.stop_ids)
    return tuple(trajectory for _, trajectory, _ in sorted(recorded, key=lambda one: one[0]))
