"""`spot-train check`: what it finds in sound targets, in faulty ones, and in one that is not batch-invariant."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_dlm import FakeTarget, FakeTokenizer
from hypothesis import given
from hypothesis import strategies as st
from lossless_targets import tiny_full_attention, tiny_moe, tiny_qwen3
from rich.console import Console
from rounded_target import rounded
from small_families import random_model
from small_target import save_small_target
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from spot_infer.api import encode_prompt
from spot_infer.blocks import Commit
from spot_infer.divergence import Divergence
from spot_infer.packaged import packaged
from spot_infer.packing import Packed
from spot_infer.prompts_io import read_prompts
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets import from_model, with_float32_head
from spot_infer.targets.block_causal import BlockCausalTarget
from spot_infer.targets.full_attention import FullAttentionTarget
from spot_infer.transition import CommitRule
from spot_train.check.flips import count_ties
from spot_train.check.probes import choose_probes
from spot_train.check.rounding import allowed_shift, needed_shift
from spot_train.check.run import Check, check
from spot_train.check.structure import Line, audit_structure
from spot_train.check.subject import Subject
from spot_train.check.view import describe, fewest_flips, print_check, verdict
from spot_train.cli import run
from spot_train.collect.recording import decoded_trajectories

REQUESTS = tuple(Request(tuple(range(2, 2 + length)), length) for length in (3, 9, 6))
SETTINGS = DecodeSettings(max_new_tokens=12, batch_size=3, budget=4, ignore_stop=True, boundary="separate")


def structure_of(target: Any) -> dict[str, Line]:
    runs = decoded_trajectories(target, REQUESTS, replace(SETTINGS, budget=0))
    probes = choose_probes(target.spec, REQUESTS, runs, SETTINGS.max_new_tokens, 3)
    assert len(probes) == 3
    return {line.name: line for line in audit_structure(target, probes, SETTINGS.budget)}


def failed(target: Any) -> set[str]:
    return {name for name, line in structure_of(target).items() if not line.holds}


@pytest.mark.parametrize("target", [FakeTarget(vocab_size=40), tiny_qwen3(0, 4, 40)[0]], ids=["fake", "qwen3"])
def test_a_sound_target_holds_and_nothing_out_of_sight_moves_a_bit(target: Any) -> None:
    lines = structure_of(target)
    assert all(line.holds for line in lines.values())
    still = ("another row", "a future token", "a sibling replica", "a pad", "the control's cache")
    assert {lines[name].difference for name in still} == {0.0}
    assert lines["next block"].difference < 1e-9


@pytest.mark.parametrize("cache", ["prefix", "dual", "none"])
def test_full_attention_is_audited_under_its_own_cache(cache: str) -> None:
    lines = structure_of(tiny_full_attention(1, cache, 0, 4)[0])
    assert all(line.holds for line in lines.values())
    assert not {"a future token", "next block"} & set(lines)
    assert {"a sibling replica", "the control's cache", "replica against solo"} <= set(lines)


class FuturePrompt(BlockCausalTarget):
    """A prompt's blocks see those after them."""

    def run(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        prompt = mask.shape[-1] == mask.shape[-2] == positions.shape[1] and mask.shape[-1] > self.spec.block_length
        return super().run(ids, positions, torch.ones_like(mask) if prompt else mask, cache)


def _seeing(packed: Packed, own: bool, prefix: bool) -> Packed:
    mask = packed.attention_mask.clone()
    if own:
        mask[..., packed.prefix_width :] = True
    if prefix:
        mask[..., : packed.prefix_width] = True
    return replace(packed, attention_mask=mask)


class SeesSiblings(BlockCausalTarget):
    """A replica sees all that is in its sequence."""

    def forward(self, packed: Packed, cache: Any) -> Tensor:
        return super().forward(_seeing(packed, True, False), cache)


class SeesPads(BlockCausalTarget):
    """A row sees the keys past its prefix."""

    def forward(self, packed: Packed, cache: Any) -> Tensor:
        return super().forward(_seeing(packed, False, True), cache)


class SeesRows(BlockCausalTarget):
    """The mean of a forward leaks into all of it."""

    def forward(self, packed: Packed, cache: Any) -> Tensor:
        hidden = super().forward(packed, cache)
        return hidden + 0.1 * packed.input_ids.double().mean()


class WritesCache(BlockCausalTarget):
    """A forward leaves something in the prefix."""

    def forward(self, packed: Packed, cache: Any) -> Tensor:
        hidden = super().forward(packed, cache)
        for keys, _ in cache._prefix:
            keys += 1e-9
        return hidden


class Misplaced(BlockCausalTarget):
    """Replicas after the first are one position off."""

    def forward(self, packed: Packed, cache: Any) -> Tensor:
        length = self.spec.block_length
        shift = torch.arange(packed.position_ids.shape[1]) // length
        return super().forward(replace(packed, position_ids=packed.position_ids + shift), cache)


class WindowsSeeSiblings(FullAttentionTarget):
    def run(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        windows = ids.shape[1] > self.spec.block_length and mask.shape[-1] > ids.shape[1]
        return super().run(ids, positions, torch.ones_like(mask) if windows else mask, cache)


@pytest.mark.parametrize(
    ("faulty", "named"),
    [
        (FuturePrompt, {"a future token", "next block"}),
        (SeesSiblings, {"a future token", "a sibling replica", "a pad", "replica against solo"}),
        (SeesPads, {"a pad"}),
        (SeesRows, {"another row"}),
        (WritesCache, {"the control's cache"}),
        (Misplaced, {"replica against solo"}),
    ],
)
def test_a_leak_is_caught_and_named(faulty: type[BlockCausalTarget], named: set[str]) -> None:
    sound = tiny_qwen3(0, 4, 40)[0]
    assert failed(faulty(sound.model, sound.tokenizer, sound.spec)) >= named


def test_a_leak_between_windows_of_a_canvas_is_caught() -> None:
    sound = tiny_full_attention(0, "dual", 0, 4)[0]
    assert "a sibling replica" in failed(WindowsSeeSiblings(sound.model, sound.tokenizer, sound.spec))


PLANTED = 13


@dataclass
class Planted(FakeTarget):
    """Not batch-invariant by 2^-10 on every slot's runner-up; the runner-up at position PLANTED is `gap` behind."""

    gap: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spec = replace(self.spec, dtype="float32")

    def forward(self, packed: Packed, cache: Any) -> Tensor:
        hidden = super().forward(packed, cache)
        batched = torch.full((len(hidden), 1), float(len(packed.input_ids) > 1), dtype=hidden.dtype)
        return torch.cat([hidden, batched], dim=1)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden[:, :3])
        allowed = logits.index_fill(1, torch.tensor(self.spec.forbidden_ids), -torch.inf)
        best, runner_up = allowed.topk(2).indices.T
        rows = torch.arange(len(logits))
        planted = hidden[:, 2] == PLANTED
        logits[rows[planted], runner_up[planted]] = logits[rows[planted], best[planted]] - self.gap
        logits[rows, runner_up] += 2**-10 * hidden[:, 3]
        return logits


def planted(gap: float) -> Check:
    target = Planted(seed=4, block_length=8, vocab_size=40, stop_ids=(), forbidden_rate=0.0, gap=gap)
    return check(Subject("planted", target, REQUESTS, SETTINGS))


def test_a_gap_that_batches_cross_is_caught_with_its_token_named() -> None:
    found = planted(2**-11)
    assert not found.holds
    assert verdict(found).startswith("FAILS: decoding under the float32 rule")
    assert all(line.holds for line in found.lines)
    for audit in found.audits.values():
        assert audit.batches.faults
        for flip in audit.batches.faults:
            one = flip.divergence
            ((control,), (other,)) = one.control, one.other
            assert (one.kind, control.position, other.position) == ("token", PLANTED, PLANTED)
            assert one.gap == pytest.approx(2**-11) and flip.needed == pytest.approx(2**-12)
            sentence = describe(found.subject.target, flip)
            assert f"position {PLANTED} token {control.token} " in sentence
            assert f"position {PLANTED} token {other.token} " in sentence
    bitwise = found.remedies[-1]
    assert bitwise.setting == "bitwise"
    assert all(flips.same_bits for flips in bitwise.drafted.values())
    assert [one.setting for one in found.remedies][:3] == ["as it is", "pad", "layout concat"]


def test_the_same_target_passes_where_the_gap_is_wide() -> None:
    found = planted(1.0)
    assert found.holds and not found.remedies
    assert found.audits["float32"].batches.largest_shift > 0
    assert verdict(found) == "holds: nothing flipped"


@pytest.mark.slow
def test_where_shapes_move_what_bfloat16_rounds_the_coarser_rule_flips_less_and_bitwise_mode_not_at_all() -> None:
    target = rounded("builtin:data/tiny-sdar")
    rows = read_prompts(packaged("data/pools/heldout.jsonl")).rows[:4]
    requests = tuple(Request(encode_prompt(target, row.prompt)) for row in rows)
    settings = DecodeSettings(max_new_tokens=16, batch_size=4, budget=2)
    found = check(Subject("tiny", target, requests, settings))
    fine, coarse = (found.audits[resolution].batches for resolution in ("float32", "bfloat16"))
    assert fine.flips and coarse.rate < fine.rate
    assert found.holds and verdict(found).endswith("all near-ties")
    assert fewest_flips(found.audits).endswith("; fewest under bfloat16.")
    assert all(flips.same_bits for flips in found.remedies[-1].drafted.values())
    print_check(Console(), found)


def _order(low: float, high: float, gap: float = 0.1) -> Divergence:
    steps = frozenset((Commit(3, 1),)), frozenset((Commit(4, 1),))
    return Divergence(5, "order", *steps, gap, (high, low), 20.0)


def test_what_a_flip_needs_is_half_its_gap_under_the_fine_rule_and_the_way_to_a_step_under_the_coarse_one() -> None:
    assert needed_shift(_order(2.0, 2.5), CommitRule()) == pytest.approx(0.25)
    assert needed_shift(replace(_order(2.0, 2.5), kind="token", gap=0.01), CommitRule()) == 0.005
    coarse = CommitRule(resolution="bfloat16")
    assert needed_shift(_order(9.0, 14.0), coarse) == 0.0  # both round to 1
    edge = float(torch.logit(torch.tensor(1 - 2.0**-9, dtype=torch.float64)))  # above it probabilities round to 1
    assert needed_shift(_order(edge - 1e-3, 14.0), coarse) == pytest.approx(1e-3, rel=0.03)
    assert needed_shift(replace(_order(0.0, 0.0), gap=float("inf")), CommitRule()) == float("inf")
    assert allowed_shift(_order(2.0, 2.5), "float32") == 2 * 5e-6 * 20
    assert allowed_shift(replace(_order(2.0, 2.5), kind="token"), "int8") == pytest.approx(0.02 * 20)


@given(st.floats(-5, 15), st.floats(-5, 15))
def test_the_coarse_rule_never_needs_more_than_the_fine_one(one: float, other: float) -> None:
    flip = _order(min(one, other), max(one, other))
    coarse = needed_shift(flip, CommitRule(resolution="bfloat16"))
    assert 0 <= coarse <= needed_shift(flip, CommitRule()) + 1e-12


def test_ties_are_counted_where_the_next_commit_is_one_of_several() -> None:
    target = FakeTarget(vocab_size=40, quantum=2.0)
    runs = decoded_trajectories(target, REQUESTS, replace(SETTINGS, budget=0))
    for resolution in ("float32", "bfloat16"):
        rule = CommitRule(resolution=resolution)
        tied, asked = count_ties(runs, rule)
        tables = [run.table(t) for run in runs for t in range(len(run))]
        assert asked == sum(len(table.slots) > 1 for table in tables)
        best = [np.sort(torch.from_numpy(table.log_odds).sigmoid().bfloat16().float().numpy()) for table in tables]
        if resolution == "bfloat16":
            assert tied == sum(len(one) > 1 and one[-1] == one[-2] for one in best)
    assert 0 < count_ties(runs, CommitRule())[0] <= tied


def test_a_float32_head_reads_the_same_hidden_states_finer() -> None:
    config = Qwen3Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
    )
    model = random_model(Qwen3ForCausalLM, config, 0).to(torch.bfloat16)
    target = from_model(model, FakeTokenizer(), block_length=8, mask_id=39, stop_ids=[0])
    finer = with_float32_head(target)
    assert finer is not None and with_float32_head(finer) is None
    hidden = torch.randn(5, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    coarse, fine = target.logits(hidden), finer.logits(hidden)
    assert torch.equal(fine, torch.nn.functional.linear(hidden.float(), model.lm_head.weight.float()))
    assert fine.dtype == coarse.dtype == torch.float32
    assert torch.equal(fine.bfloat16().float(), coarse) and not torch.equal(fine, coarse)
    assert model.get_input_embeddings().weight.dtype == torch.bfloat16
    assert with_float32_head(FakeTarget()) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_small_target(tmp_path_factory.mktemp("target")))


SMALL = ["--prompts", "2", "--max-new-tokens", "6", "--batch-size", "2", "--budget", "2"]


def test_the_command_passes_a_sound_target_and_records_everything(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", folder, *SMALL, "--dtype", "bfloat16", "--json", str(tmp_path / "a.json")]) == 0
    shown = capsys.readouterr().out
    assert "distribution_preserving: yes, a draft is kept only where" in shown
    assert "a sibling replica" in shown and shown.splitlines()[-1].startswith("holds: ")
    record = json.loads((tmp_path / "a.json").read_text())
    assert (record["dtype"], record["prompts"], record["budget"], record["holds"]) == ("bfloat16", 2, 2, True)
    assert set(record["decoding"]) == {"float32", "bfloat16"}
    assert {line["name"] for line in record["structure"]} >= {"a future token", "a pad", "next block"}
    assert run(["check", folder, *SMALL, "--bitwise", "--json", str(tmp_path / "b.json")]) == 0
    assert "identical to the bit" in capsys.readouterr().out
    bitwise = json.loads((tmp_path / "b.json").read_text())["bitwise"]
    assert all(one["holds"] and one["identical"] == 2 for one in bitwise.values())


def test_a_recipe_names_the_target_and_flags_win(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    overrides = ["--set", f"target.path_or_id={folder}", "--set", "decode.budget=3"]
    assert run(["check", "builtin:recipes/tiny.yaml", *overrides, *SMALL[:-2]]) == 0
    assert (
        "float32 on cpu, block length 8, 2 prompts of at most 6 new tokens, batches of 2, drafter chain at budget 3"
        in (capsys.readouterr().out)
    )


@pytest.mark.parametrize(
    "asked", [["decode.bitwise=true"], ["decode.bitwise=true", "decode.boundary=fused", "decode.pad=true"]]
)
def test_a_recipe_that_decodes_bitwise_is_audited_in_that_mode(
    asked: list[str], capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    flags = [part for one in [f"target.path_or_id={folder}", *asked] for part in ("--set", one)]
    assert run(["check", "builtin:recipes/tiny.yaml", *flags, *SMALL]) == 0
    assert "identical to the bit" in capsys.readouterr().out


def test_experts_may_move_rounding_and_dense_layers_may_not() -> None:
    """Whatever company the first line happened to measure: rounding may show in any of those that change company."""
    still = ("a future token", "a sibling replica", "a pad", "the control's cache")
    for target, tolerated in ((tiny_moe("llada2_moe", 0, 4)[0], True), (tiny_qwen3(0, 4, 40)[0], False)):
        lines = structure_of(target)
        assert all(line.holds for line in lines.values())
        assert all((lines[name].tolerance > 0) is tolerated for name in still)


def test_what_does_not_hold_exits_with_one(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockCausalTarget, "forward", _leaking(BlockCausalTarget.forward))
    assert run(["check", folder, *SMALL, "--bitwise"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("FAILS: a future token, a sibling replica")


def _leaking(forward: Any) -> Any:
    return lambda self, packed, cache: forward(self, _seeing(packed, True, True), cache)


def test_a_mode_that_this_machine_rules_out_is_a_failure_with_its_reason(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = BlockCausalTarget.forward

    def by_row(self: Any, packed: Packed, cache: Any) -> Tensor:
        place = packed.read_index // packed.input_ids.shape[1]
        return sound(self, packed, cache) + 1e-6 * (place[:, None] % 3)

    monkeypatch.setattr(BlockCausalTarget, "forward", by_row)
    assert run(["check", folder, *SMALL, "--bitwise"]) == 1
    shown = capsys.readouterr().out
    assert "permuting the rows of a forward moves hidden states" in shown
    assert shown.splitlines()[-1] == "FAILS: bitwise mode"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--prompts", "5000"], "--prompts is 5000, but builtin:data/pools/heldout.jsonl holds 600; ask for fewer"),
        (["--set", "decode.budget=2"], "--set goes with a recipe"),
        (["--max-new-tokens", "5000"], "prompt 0 has"),
        (["--input", "nowhere.jsonl"], "nowhere.jsonl can't be read"),
    ],
)
def test_bad_input_is_one_sentence(
    folder: str, flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", folder, *flags]) == 2
    assert sentence in capsys.readouterr().err


def test_a_prompt_file_is_at_fault_by_its_line(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    for row, said in (({"prompt": ""}, "line 2: a prompt is empty"), ({"tokens": [99999]}, "line 2 holds token id")):
        file.write_text(json.dumps({"prompt": "a"}) + "\n" + json.dumps(row) + "\n")
        assert run(["check", folder, "--input", str(file), "--prompts", "2"]) == 2
        assert said in capsys.readouterr().err
