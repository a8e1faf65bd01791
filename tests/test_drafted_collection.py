"""Drafted collection records what draft-free collection records, says how it was made, and fills its batches."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collecting import LEASE, PROMPTS, collect_fake, fake_target, folder_bytes, small_recipe
from hypothesis import given, settings
from hypothesis import strategies as st
from lossless_cases import Case, cases, make_drafter
from lossless_targets import fake_targets, qwen3_targets

from spot_infer.decode import decode
from spot_infer.drafters import ChainDrafter, RandomDrafter
from spot_infer.errors import SpotError
from spot_infer.graph import Drafter
from spot_infer.requests import DecodeSettings, Request
from spot_train.agreement import agreement
from spot_train.collect.collect import Summary, collect, decode_settings, shared_attributes
from spot_train.collect.drafted_check import check_drafted
from spot_train.collect.leases import Forwards, decode_lease, split_leases
from spot_train.collect.methods import OneMethod, collection_method, drafted_method, method_record
from spot_train.collect.recording import decoded_trajectories
from spot_train.compare.compare import Method
from spot_train.methods import DrafterSources
from spot_train.prompts import load_prompts
from spot_train.recipe.recipe import Recipe
from spot_train.shards.store import open_shards, shard_name
from spot_train.trajectory import Trajectory


def chain(boundary: str = "separate", budget: int = 8) -> Method:
    return Method("chain", budget, ChainDrafter(small_recipe(Path("x")).rule.commit_rule()), boundary=boundary)  # type: ignore[arg-type]


def records(case: Case, drafted: bool) -> list[Trajectory]:
    """What the case's requests record, draft-free or as the case drafts, in the order of the drafted run."""
    requests = [case.requests[old] for old in case.order]
    base = replace(case.settings, verifier="coupled")
    control = decoded_trajectories(case.target, requests, replace(base, budget=0, boundary="separate"))
    if not drafted:
        return control
    steps = {index: tuple(one.step(t) for t in range(len(one))) for index, one in enumerate(control)}
    drafter: Drafter = make_drafter(case.drafter, case, steps)
    return decoded_trajectories(case.target, requests, replace(base, batch_size=case.drafted_batch), drafter)


def assert_same(one: Trajectory, other: Trajectory, exact: bool) -> None:
    for field in dataclasses.fields(Trajectory):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if exact or not isinstance(left, np.ndarray) or field.name not in ("top_logprob", "log_odds", "drawn_logprob"):
            np.testing.assert_array_equal(left, right, err_msg=field.name)
            assert getattr(left, "dtype", None) == getattr(right, "dtype", None)
        else:
            tolerance = 1e-6 if field.name == "log_odds" else 1e-3
            np.testing.assert_allclose(left.astype(float), right.astype(float), rtol=tolerance, atol=1e-6)


@settings(max_examples=30)
@given(cases(fake_targets()))
def test_any_drafter_records_the_draft_free_trajectories_to_the_bit(case: Case) -> None:
    for one, other in zip(records(case, False), records(case, True), strict=True):
        assert_same(one, other, exact=True)


@settings(max_examples=8)
@given(cases(qwen3_targets()))
def test_a_float64_network_records_the_same_to_the_shards_precision(case: Case) -> None:
    for one, other in zip(records(case, False), records(case, True), strict=True):
        assert_same(one, other, exact=False)


@pytest.fixture(scope="module", params=[0.0, 0.7])
def draft_free(
    request: pytest.FixtureRequest, prompts: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Recipe, Path, Summary]:
    """A recipe of two leases at a temperature, and what it collects draft-free."""
    recipe = small_recipe(prompts, sampling={"temperature": request.param}, prompts={"limit": 2 * LEASE})
    out = tmp_path_factory.mktemp("free")
    return recipe, out, collect(recipe, out, fake_target())


@pytest.mark.parametrize("method", [chain(), chain("fused"), chain(budget=1), Method("random", 4, RandomDrafter(1))])
def test_a_drafted_set_holds_the_draft_free_arrays(
    draft_free: tuple[Recipe, Path, Summary], tmp_path: Path, method: Method
) -> None:
    recipe, folder, free = draft_free
    drafted = collect(recipe, tmp_path / "drafted", fake_target(), method=method)
    arrays = [
        {name: data for name, data in folder_bytes(out).items() if "zarr/" in name and "/c/" in name}
        for out in (folder, tmp_path / "drafted")
    ]
    assert arrays[0] == arrays[1] and arrays[0]
    assert free.recorded is not None and drafted.recorded is not None
    assert free.recorded.nfe == free.recorded.draft_free_nfe == drafted.recorded.draft_free_nfe
    assert method.name == "random" or drafted.recorded.nfe < free.recorded.nfe
    leases = open_shards(tmp_path / "drafted").manifest["shards"]
    for shard in leases.values():
        assert shard["lease"]["method"]["name"] == method.name
        assert shard["lease"]["method"]["boundary"] == ("seamless" if method.boundary == "auto" else method.boundary)
        assert shard["lease"]["method"]["budget"] == method.budget
    assert sum(shard["lease"]["nfe"] for shard in leases.values()) == drafted.recorded.nfe


def test_draft_free_and_drafted_leases_lie_in_one_set_and_say_so(prompts: Path, whole: Path, tmp_path: Path) -> None:
    collect_fake(prompts, tmp_path)
    for index in (1, 3):
        (tmp_path / shard_name(index) / "zarr.json").unlink()
    summary = collect(small_recipe(prompts), tmp_path, fake_target(), method=chain("fused"))
    assert summary.written == 2
    assert summary.plan.methods == {"draft-free": -(-PROMPTS // LEASE) - 2}
    names = {name: shard["lease"]["method"]["name"] for name, shard in open_shards(tmp_path).manifest["shards"].items()}
    assert Counter(names.values()) == {"draft-free": len(names) - 2, "chain": 2}
    assert names[shard_name(1)] == names[shard_name(3)] == "chain"
    pairs = zip(open_shards(tmp_path).trajectories(), open_shards(whole).trajectories(), strict=True)
    for one, other in pairs:
        assert_same(one, other, exact=True)
    assert collect(small_recipe(prompts), tmp_path, fake_target()).plan.methods == {"draft-free": 3, "chain D8": 2}


@pytest.mark.parametrize("method", [Method("draft-free"), chain(), chain("fused")])
@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_the_next_prompt_takes_a_finished_rows_place(prompts: Path, method: Method, batch_size: int) -> None:
    recipe = small_recipe(prompts, collect={"batch_size": batch_size})
    target = fake_target()
    rows, _ = load_prompts(recipe, target)
    requests = [Request(prompt.prompt_ids) for prompt in rows]
    chosen = replace(decode_settings(recipe), budget=method.budget, boundary=method.boundary)
    left = len(requests)
    forward: list[Any] = []
    sizes = []

    def finish() -> None:
        nonlocal left
        sizes.append(len(forward))
        assert len({round_.request for round_ in forward}) == len(forward) == min(batch_size, left)
        left -= sum(round_.result is not None for round_ in forward)
        forward.clear()

    for round_ in decode(target, requests, chosen, method.drafter, record=True):
        if forward and round_.forward != forward[0].forward:
            assert round_.forward == forward[0].forward + 1
            finish()
        forward.append(round_)
    finish()
    assert (left, len(sizes)) == (0, target.forwards)
    forwards = Forwards()
    assert len(list(decode_lease(fake_target(), rows, decode_settings(recipe), method, 0, forwards))) == len(rows)
    assert forwards.calls == len(sizes)
    assert forwards.nfe == sum(sizes)


def test_rows_of_one_forward_stand_at_different_blocks(prompts: Path) -> None:
    recipe = small_recipe(prompts, collect={"batch_size": 4, "max_new_tokens": 40})
    target = fake_target()
    rows, _ = load_prompts(recipe, target)
    starts: dict[int, set[tuple[int, int]]] = {}
    requests = [Request(prompt.prompt_ids) for prompt in rows]
    for round_ in decode(target, requests, decode_settings(recipe)):
        phase = len(round_.state.masked_slots)
        starts.setdefault(round_.forward, set()).add((round_.state.start, phase))
    assert max(len({start for start, _ in one}) for one in starts.values()) >= 3


def test_the_check_reports_what_collection_would_do(prompts: Path, tmp_path: Path) -> None:
    recipe, target = small_recipe(prompts), fake_target()
    rows, report = load_prompts(recipe, target)
    leases = split_leases(rows, LEASE)
    common = shared_attributes(recipe, target, report)
    result = check_drafted(target, leases, decode_settings(recipe), 0, OneMethod(chain("fused")), common, tmp_path)
    free = collect_fake(prompts, tmp_path / "set").recorded
    assert free is not None
    assert result.sound and result.agreement.identical == PROMPTS and result.agreement.table_shift == 0
    assert result.draft_free.forwards == free
    assert result.drafted.forwards == result.unrecorded.forwards
    assert result.reduction == free.nfe / result.drafted.forwards.nfe > 1
    assert json.loads(json.dumps(result.to_dict()))["methods"] == {"chain D8": len(leases)}


def test_a_target_that_answers_drafts_differently_is_caught(prompts: Path, tmp_path: Path) -> None:
    class Wobbly(type(fake_target())):  # type: ignore[misc]
        def forward(self, packed, cache):  # type: ignore[no-untyped-def]
            hidden = super().forward(packed, cache)
            return hidden + (packed.input_ids.shape[0] > 1) * hidden.new_tensor([1.0, 0.0, 0.0])

    recipe = small_recipe(prompts, collect={"batch_size": 1})
    target = Wobbly(seed=3, block_length=8, vocab_size=40, stop_rate=0.01)
    rows, report = load_prompts(recipe, target)
    common = shared_attributes(recipe, target, report)
    schedule = OneMethod(chain())
    result = check_drafted(target, split_leases(rows, 6), decode_settings(recipe), 0, schedule, common, tmp_path)
    assert not result.sound
    assert 0 < result.agreement.identical < PROMPTS or result.agreement.table_shift > result.tolerance
    assert all(np.isfinite(flip.gap) for _, flip in result.agreement.flips)


def test_agreement_measures_tables_up_to_the_divergence(prompts: Path) -> None:
    target = fake_target()
    settings_ = DecodeSettings(max_new_tokens=12)
    requests = [Request((2, 3, 4)), Request((5, 6))]
    control = decoded_trajectories(target, requests, settings_)
    moved = replace(control[0], log_odds=control[0].log_odds + np.float32(0.25))
    found = agreement(target, requests, control, [moved, control[1]], settings_)
    assert (found.identical, found.flips, found.steps) == (2, (), len(control[0]) + len(control[1]))
    assert found.log_odds_shift == pytest.approx(0.25)
    assert found.logprob_shift == 0
    top = control[1].top_logprob.copy()
    top[-1, 3] -= np.float16(0.5)
    tokens = control[1].commit_token.copy()
    tokens[1] = 7 if tokens[1] != 7 else 8
    other = replace(control[1], top_logprob=top, commit_token=tokens)
    found = agreement(target, requests, control, [control[0], other], settings_)
    assert [(index, flip.step) for index, flip in found.flips] == [(1, 1)]
    assert found.steps == len(control[0]) + 2
    assert found.logprob_shift == 0, "a table behind the divergence was compared"
    found = agreement(target, requests, control, [control[0], replace(control[1], top_logprob=top)], settings_)
    assert 0.4 < found.logprob_shift < 0.5


@given(st.sampled_from(["position_oracle", "token_oracle", "joint_oracle"]))
def test_a_method_that_needs_the_answer_is_refused(name: str) -> None:
    recipe, target = small_recipe(Path("x")), fake_target()
    with pytest.raises(SpotError, match="being collected"):
        collection_method(recipe, target.spec, name, DrafterSources(recipe.rule.commit_rule()))


def test_the_recipe_says_how_drafters_run(prompts: Path) -> None:
    decode_section = {"budget": 5, "floor": 0.1, "pad": True, "boundary": "fused", "verifier": "greedy"}
    recipe, target = small_recipe(prompts, decode=decode_section), fake_target()
    sources = DrafterSources(recipe.rule.commit_rule())
    method = collection_method(recipe, target.spec, "chain:depth=3", sources)
    assert (method.name, method.budget, method.floor, method.pad) == ("chain:depth=3", 5, 0.1, True)
    assert (method.boundary, method.verifier) == ("fused", "coupled")
    usual = collection_method(small_recipe(prompts), target.spec, "chain", sources)
    assert method_record(usual, target.spec)["boundary"] == "seamless"
    full_attention = replace(target.spec, cache="prefix")
    assert collection_method(recipe, full_attention, "chain", sources).boundary == "separate"
    with pytest.raises(SpotError, match=r"decode\.budget is 0"):
        drafted_method(small_recipe(prompts, decode={"budget": 0}), target.spec, "chain", ChainDrafter(sources.rule))
