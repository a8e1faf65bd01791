"""Methods side by side: accounting against the draft-free run, divergences counted."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import get_args

import pytest
import torch
from fake_dlm import FakeTarget
from rich.console import Console

from spot_infer.cost import load_curve
from spot_infer.drafters import ChainDrafter
from spot_infer.packing import Packed
from spot_infer.requests import DecodeSettings, Request, Verifier
from spot_infer.transition import Sampling
from spot_train.compare.compare import Method, divergences, run_methods, summarise
from spot_train.compare.side_by_side import Comparison, print_rows, side_by_side
from spot_train.tasks import Example, Task

REQUESTS = [Request((2 + i, 3, 4 + i), seed=i) for i in range(5)]
METHODS = [Method("draft-free"), Method("chain", 3, ChainDrafter())]
SETTINGS = DecodeSettings(max_new_tokens=10, batch_size=2)


class NudgedTarget(FakeTarget):
    """Adds `nudge` to one token's logit in drafted forwards only, as another packing would by rounding."""

    nudge: float = 0.0

    def forward(self, packed: Packed, cache) -> torch.Tensor:  # type: ignore[no-untyped-def]
        hidden = super().forward(packed, cache)
        self.drafted = len(packed.sequence_of) > len(packed.row_sequences)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = super().logits(hidden).clone()
        if self.drafted:
            logits[:, 5] += self.nudge
        return logits


def test_ratios_are_against_the_draft_free_run():
    target = FakeTarget(strength=0.2)
    control, chain = run_methods(target, REQUESTS, METHODS, SETTINGS)
    differing = divergences(target, REQUESTS, control, chain, SETTINGS)
    row = summarise(chain, control, SETTINGS, {0: True, 1: False}, differing)
    nfe = [sum(run.results[i].stats.nfe for i in range(5)) for run in (control, chain)]
    assert row["reduction"] == pytest.approx(nfe[0] / nfe[1]) and row["reduction"] > 1
    assert row["nfe"] == nfe[1] / 5
    assert (row["identical"], row["n"], row["accuracy"]) == (5, 5, 0.5)
    assert summarise(control, control, SETTINGS, {}, {})["reduction"] == 1


def test_boundaries_are_a_methods_own_and_the_control_writes_its_cache_apart():
    apart = Method("chain", 3, ChainDrafter(), boundary="separate")
    settings = replace(SETTINGS, boundary="fused")
    target = FakeTarget(strength=0.2)
    control, ahead, chain = run_methods(target, REQUESTS, [*METHODS, apart], settings)
    assert control.total("cache_writes") == control.total("boundaries") == ahead.total("boundaries") > 0
    assert ahead.total("cache_writes") == 0
    assert ahead.total("nfe") < chain.total("nfe")
    assert not divergences(target, REQUESTS, control, ahead, settings)
    assert [summarise(run, control, settings, {}, {})["boundary"] for run in (chain, ahead)] == ["separate", "seamless"]


class IdsExample(Example):
    """Its prompt is token ids, since the fake tokenizer has no encoder."""

    def encode(self, target: object) -> tuple[int, ...]:
        return tuple(map(int, self.reference["ids"]))


@pytest.mark.parametrize("pad", [False, True])
def test_padding_holds_for_every_drafted_method_of_a_number(pad: bool) -> None:
    examples = [IdsExample(str(i), "", "all", {"ids": one.prompt_ids}) for i, one in enumerate(REQUESTS[:2])]
    task = Task("letters", examples, (), 10, lambda reference, text, allowed: True)
    plan = Comparison(
        task, replace(SETTINGS, pad=pad), (3,), curve=load_curve("cpu-core"), predicted_on=load_curve("paper-mbpp")
    )
    rows = side_by_side(FakeTarget(strength=0.2), ChainDrafter(), plan, Console(file=io.StringIO()))
    padded = [(row["method"], row["pad"]) for row in rows]
    assert padded == [("draft-free", False), ("chain", pad), ("odds_tree", pad), ("spot", pad), ("spot", False)]
    assert len({row["identical"] for row in rows}) == 1
    assert rows[0]["predicted"] == 1 and {row["predicted_on"] for row in rows} == {"paper-mbpp"}
    assert all(row["predicted"] for row in rows[:-1]) and rows[-1]["predicted"] is None  # auto, in batches
    console = Console(record=True, width=80, file=io.StringIO())
    print_rows(console, rows)
    text = console.export_text()
    assert "predicted" in text and "on the cost curve paper-mbpp" in text and "\u2026" not in text


@pytest.mark.parametrize("ignore_stop", [False, True])
def test_an_answer_is_scored_up_to_its_stop_token_and_a_fused_table_says_so(ignore_stop: bool) -> None:
    seen: list[str] = []
    examples = [IdsExample(str(i), "", "all", {"ids": one.prompt_ids}) for i, one in enumerate(REQUESTS)]
    task = Task("letters", examples, (), 10, lambda reference, text, allowed: bool(seen.append(text)) or True)
    target = FakeTarget(strength=0.2, stop_rate=0.3)
    settings = replace(SETTINGS, ignore_stop=ignore_stop, boundary="fused")
    console = Console(record=True, width=300, file=io.StringIO())
    rows = side_by_side(target, ChainDrafter(), Comparison(task, settings, (3,)), console)
    control = run_methods(target, [Request(one.prompt_ids) for one in REQUESTS], METHODS[:1], SETTINGS)[0]
    expected = [control.results[i].text for i in range(5)]
    assert any(len(text) < 9 for text in expected)
    assert seen == expected * len(rows)
    print_rows(console, rows)
    text = console.export_text()
    assert "boundaries fused (draft-free writes blocks apart)" in text and "answers are code" not in text


def test_outputs_that_differ_are_counted_and_named():
    target = NudgedTarget(strength=0.2)
    target.nudge = 3.0
    control, chain = run_methods(target, REQUESTS, METHODS, SETTINGS)
    differing = divergences(target, REQUESTS, control, chain, SETTINGS)
    unequal = {i for i in range(5) if control.results[i].tokens != chain.results[i].tokens}
    assert unequal and set(differing) == unequal
    row = summarise(chain, control, SETTINGS, {}, differing)
    assert row["identical"] == 5 - len(unequal)
    assert {one["prompt"] for one in row["divergences"]} == unequal
    assert all(one.control != one.other for one in differing.values())


@pytest.mark.parametrize("verifier", get_args(Verifier))
def test_what_a_verifier_promises_shows_in_the_row_and_in_the_table(verifier: Verifier) -> None:
    target = FakeTarget(strength=0.2)
    hot = replace(SETTINGS, sampling=Sampling(1.5))
    methods = [Method("draft-free"), Method("chain", 3, ChainDrafter(), verifier=verifier)]
    control, chain = run_methods(target, REQUESTS, methods, hot)
    rows = [
        summarise(run, control, hot, {}, divergences(target, REQUESTS, control, run, hot)) for run in (control, chain)
    ]
    assert rows[1]["verifier"] == verifier and rows[1]["reason"]
    assert rows[1]["identical"] == (5 if verifier in ("coupled", "uncoupled") else None)
    assert rows[1]["distribution_preserving"] is (verifier != "greedy")
    console = Console(record=True, width=140, file=io.StringIO())
    print_rows(console, rows)
    text = console.export_text()
    assert ("chain\u2020" in text and "distribution_preserving: no, greedy" in text) is (verifier == "greedy")
    assert ("outputs differ from draft-free" in text) is (verifier in ("greedy", "rejection"))
    assert "draft-free\u2020" not in text
