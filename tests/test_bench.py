"""The bench: replay counts what decoding does, a killed bench ends with the same rows, every suite's rows are valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_bench import Quiet, bench_options, cells, run_bench, save_bench_files, untimed

from spot_infer.cost import load_curve
from spot_infer.errors import SpotError
from spot_infer.transition import CommitRule
from spot_train.bench.conditions import counted
from spot_train.bench.materials import Materials
from spot_train.bench.plan import CellGroup, Condition, Wanted, merged, options, runs_of
from spot_train.bench.spread import ratio_spread, speed_spread
from spot_train.results import RESULTS, Cell, Curve, Row
from spot_train.suites import SUITES, rule
from spot_train.suites.ladder import CURVE, DECODED, STEPS


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bench_files(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def short(recipe: Path) -> list[Row]:
    return run_bench(["main", "oracle"], bench_options(recipe, recipe.parent / "short"))


@pytest.fixture(scope="module")
def whole(recipe: Path) -> list[Row]:
    return run_bench(["oracle", "coverage"], bench_options(recipe, recipe.parent / "whole", rules=("float32",)))


def _asked(cell: Cell) -> tuple[object, ...]:
    rule = str(cell.rule["resolution"])
    return cell.suite, cell.method, str(cell.options), cell.drafter, rule, cell.temperature, cell.ignore_stop


WITHOUT = {"decode.response": 0.0, "decode.ahead": False}
"""What replay can't count is left out."""


def test_replayed_cells_equal_decoded_cells_prompt_by_prompt(recipe: Path, short: list[Row]) -> None:
    full = run_bench(["main", "oracle"], bench_options(recipe, recipe.parent / "full", full=True, overrides=WITHOUT))
    replayed = {_asked(cell): cell for cell in cells(short) if cell.mode == "replay"}
    decoded = {_asked(cell): cell for cell in cells(full) if cell.verifier == "coupled"}
    assert replayed.keys() <= decoded.keys()
    assert any(cell.temperature > 0 for cell in replayed.values())
    for key, cell in replayed.items():
        other = decoded[key]
        assert cell.per_prompt.nfe == other.per_prompt.nfe, key
        assert cell.per_prompt.draft_free_nfe == other.per_prompt.draft_free_nfe
        assert (cell.accepted, cell.drafter_calls) == pytest.approx((other.accepted, other.drafter_calls))
        assert other.identical == other.n
    drafted = [cell for cell in replayed.values() if cell.method != "draft-free"]
    assert len({cell.reduction for cell in drafted}) > 4


def test_a_control_is_against_itself_and_oracles_bound_what_they_know(short: list[Row]) -> None:
    by_condition: dict[tuple[object, ...], dict[str, Cell]] = {}
    for cell in cells(short):
        if cell.suite == "oracle":
            by_condition.setdefault((str(cell.rule), cell.ignore_stop), {})[cell.method] = cell
    assert len(by_condition) == 4
    assert_valid(short, "main", "oracle")
    for found in by_condition.values():
        assert found["draft-free"].reduction == 1
        assert found["joint_oracle"].nfe <= min(found["position_oracle"].nfe, found["token_oracle"].nfe)
        share = found["spot"].reduction / found["position_oracle"].reduction
        assert found["spot"].measures["share_of_position_oracle"] == pytest.approx(share)


def test_both_rules_are_there_with_what_their_outputs_share(short: list[Row]) -> None:
    curves = [row for row in short if isinstance(row, Curve)]
    assert [curve.ignore_stop for curve in curves] == [False, True]
    assert all(curve.x[0] == "identical outputs" and 0 <= (curve.y[0] or 0) <= 1 for curve in curves)
    drafters = {str(cell.rule["resolution"]): cell.drafter for cell in cells(short) if cell.method == "spot"}
    assert drafters == {"float32": "float32", "bfloat16": "bfloat16"}


@pytest.mark.parametrize("cut", [0.7, None])
def test_a_killed_bench_continues_and_ends_with_the_same_rows(
    recipe: Path, whole: list[Row], tmp_path: Path, cut: float | None
) -> None:
    chosen = bench_options(recipe, tmp_path / "out", rules=("float32",))
    with pytest.raises(KeyboardInterrupt):
        run_bench(["oracle", "coverage"], chosen, Quiet(stop_after=3))
    file = chosen.out / RESULTS
    if cut is not None:
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * cut)])
    assert_valid(whole, "oracle", "coverage")
    again = Quiet()
    assert untimed(run_bench(["oracle", "coverage"], chosen, again)) == untimed(whole)
    assert again.kept + again.done == 4 and (again.kept == 3) == (cut is None)
    last = Quiet()
    assert untimed(run_bench(["oracle", "coverage"], chosen, last)) == untimed(whole)
    assert last.done == 0


def test_a_damaged_recording_is_decoded_again(recipe: Path, short: list[Row], tmp_path: Path) -> None:
    chosen = bench_options(recipe, tmp_path / "out", rules=("float32",))
    first = run_bench(["oracle"], chosen)
    (file,) = [one for one in chosen.out.glob("recorded/*/*/commit_token/c/*") if "commit_token" in str(one)][:1]
    file.write_bytes(bytes(len(file.read_bytes())))
    (chosen.out / RESULTS).unlink()
    assert untimed(run_bench(["oracle"], chosen)) == untimed(first)


def test_other_weights_under_the_same_name_are_refused(recipe: Path, tmp_path: Path) -> None:
    chosen = bench_options(recipe, tmp_path / "out")
    run_bench(["transfer"], chosen)
    swapped = tuple(zip(("float32", "bfloat16"), [path for _, path in reversed(chosen.drafters)], strict=True))
    with pytest.raises(SpotError, match="another drafter 'float32'"):
        run_bench(["transfer"], bench_options(recipe, tmp_path / "out", drafters=swapped))


@pytest.mark.parametrize(
    "changes",
    [
        {"overrides": {"target.dtype": "float32"}},
        {"overrides": {"decode.pad": True}},
        {"allow_code_execution": True},
    ],
    ids=["dtype", "padding", "scoring"],
)
def test_what_changes_rows_and_is_not_in_them_needs_another_folder(
    recipe: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    task = {"task_path": None}
    run_bench(["transfer"], bench_options(recipe, tmp_path / "out", prompts_replay=1, **task))
    with pytest.raises(SpotError, match=r"holds results of another .*setting"):
        run_bench(["transfer"], bench_options(recipe, tmp_path / "out", prompts_replay=1, **task, **changes))


def test_another_drafter_and_budget_add_their_curves(recipe: Path, tmp_path: Path) -> None:
    few = {"rules": ("float32",), "prompts_replay": 1, "prompts_real": 1}
    whole = bench_options(recipe, tmp_path / "out", **few)
    alone = bench_options(recipe, tmp_path / "out", **few, drafters=())
    wider = bench_options(recipe, tmp_path / "out", **few, budgets=(4, 6))
    names = [
        {row.series for row in run_bench(["calibration"], one) if isinstance(row, Curve)} for one in (alone, whole)
    ]
    assert "float32" not in names[0] and "float32" in names[1]
    labels = {row.y_label for row in run_bench(["calibration"], wider) if isinstance(row, Curve)}
    assert {"accepted drafts a drafted round, D 4", "accepted drafts a drafted round, D 6"} <= labels
    last = Quiet()
    run_bench(["calibration"], wider, last)
    assert last.done == 0


def test_two_paths_of_one_name_are_refused(recipe: Path, tmp_path: Path) -> None:
    paths = [str(recipe.parent / f"drafter-{name}") for name in ("float32", "bfloat16")]
    with pytest.raises(SpotError, match="are both called 'one'"):
        run_bench(["oracle"], bench_options(recipe, tmp_path / "out", drafters=tuple(("one", path) for path in paths)))
    with pytest.raises(SpotError, match=r"--target .* are both called 'one'"):
        run_bench(["oracle"], bench_options(recipe, tmp_path / "out", targets=tuple(("one", path) for path in paths)))


def test_rows_that_no_bench_wrote_are_not_resumed(recipe: Path, tmp_path: Path) -> None:
    chosen = bench_options(recipe, tmp_path / "out", rules=("float32",), prompts_replay=1)
    (row, *_) = run_bench(["transfer"], chosen)
    file = chosen.out / RESULTS
    file.write_text(row.model_copy(update={"provenance": {}}).model_dump_json() + "\n")
    before = file.read_bytes()
    with pytest.raises(SpotError, match="rows that no bench wrote"):
        run_bench(["transfer"], chosen)
    assert file.read_bytes() == before


def assert_valid(rows: list[Row], *suites: str) -> None:
    assert {row.suite for row in rows} == set(suites)
    assert len({row.key for row in rows}) == len(rows)
    for cell in cells(rows):
        assert cell.nfe == pytest.approx(np.mean(cell.per_prompt.nfe))
        assert cell.reduction == pytest.approx(sum(cell.per_prompt.draft_free_nfe) / sum(cell.per_prompt.nfe))
        assert (cell.wall_s is None) == (cell.mode == "replay")
        assert cell.distribution_preserving == (cell.verifier != "greedy"), cell.reason


@pytest.mark.parametrize("suite", sorted(SUITES.keys() - {"main", "oracle", "coverage", "ladder", "rule", "transfer"}))
def test_every_suite_gives_valid_rows(recipe: Path, tmp_path: Path, suite: str) -> None:
    assert_valid(run_bench([suite], bench_options(recipe, tmp_path / "out", prompts_replay=1, prompts_real=1)), suite)


def test_a_step_of_the_ladder_is_held_against_the_oracle_of_its_boundaries(recipe: Path, tmp_path: Path) -> None:
    rows = run_bench(["ladder"], bench_options(recipe, tmp_path / "out", rules=("float32",)))
    assert_valid(rows, "ladder")
    counted = [one for one in cells(rows) if one.mode == "replay" and not one.temperature and not one.ignore_stop]
    ceilings = {one.options.get("boundary"): one.reduction for one in counted if one.method == "position_oracle"}
    assert ceilings.keys() == {"separate", "fused", None}
    assert ceilings[None] > ceilings["fused"] > ceilings["separate"]
    steps = [one for one in counted if one.method == "spot"]
    assert [one.options for one in steps] == [own for name, own in STEPS.items() if name not in DECODED]
    control = next(one for one in counted if one.method == "draft-free")
    for own in [*(STEPS[name] for name in DECODED), {"curve": CURVE}]:
        decoded = [one for one in cells(rows) if one.mode == "real" and one.n == steps[0].n and one.options == own]
        places = {(one.temperature, one.ignore_stop): one for one in decoded if one.method == "spot"}
        assert places.keys() >= {(0.0, False), (0.0, True), (1.0, False)}
        assert places[0.0, False].nfe < control.nfe and places[0.0, False].measures[f"throughput_{CURVE}"]
    for one in steps:
        share = one.reduction / ceilings[one.options.get("boundary")]
        assert one.measures["share_of_position_oracle"] == pytest.approx(share)
    assert control.measures[f"throughput_{CURVE}"] == 1
    full, copies = steps[-1], load_curve(CURVE).cost(1 + steps[-1].budget)
    assert full.draft_free_nfe / (full.nfe + 1) / copies <= (full.measures[f"throughput_{CURVE}"] or 0) < full.reduction


def test_a_resolution_is_held_against_its_own_control_and_its_answers_against_the_float32_rules(
    recipe: Path, tmp_path: Path
) -> None:
    progress = Quiet()
    chosen = bench_options(recipe, tmp_path / "out", rules=("float32", "0.3"))
    rows = run_bench(["rule"], chosen, progress)
    by_rule = {rule: [one for one in cells(rows) if one.rule["resolution"] == rule] for rule in ("float32", 0.3)}
    for found in by_rule.values():
        control, chain, spot = found
        assert (control.method, chain.method, spot.method) == ("draft-free", "chain", "spot")
        assert {tuple(one.per_prompt.draft_free_nfe) for one in found} == {tuple(control.per_prompt.nfe)}
        assert control.accuracy_by_family
    assert [found[-1].drafter for found in by_rule.values()] == ["float32", "bfloat16"]
    assert ["warning" in found[-1].provenance for found in by_rule.values()] == [False, True]
    assert "no drafter was trained under the 0.3 rule: bfloat16 run under it" in progress.notes
    (shared,) = [row for row in rows if isinstance(row, Curve)]
    assert shared.rule["resolution"] == 0.3 and set(shared.y) == {1.0}


def test_answers_that_another_resolution_changes_are_counted_by_family(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    materials = Materials(bench_options(recipe, tmp_path / "out", rules=("float32", "0.3"), prompts_replay=4))
    fine = counted(materials, materials.first_target, CommitRule())
    answers = {"float32": [(1,), (2,), (3,), (4,)], 0.3: [(1,), (2, 5), (3,), (5,)]}
    monkeypatch.setattr(rule, "outputs", lambda _, condition: answers[condition.rule.resolution])
    (shared,) = rule.unchanged(materials, fine)
    assert [example.family for example in materials.task.examples] == ["math", "list", "json", "math"]
    assert dict(zip(shared.x, shared.y, strict=True)) == {"all": 0.5, "json": 1.0, "list": 0.0, "math": 0.5}


def test_what_bench_leaves_out_or_does_not_do_is_said(recipe: Path, tmp_path: Path) -> None:
    few: dict[str, Any] = {"rules": ("float32",), "prompts_replay": 1, "prompts_real": 1}
    longer = bench_options(recipe, tmp_path / "out", **few, overrides={"target.block_length": 16})
    progress = Quiet()
    assert not any(cell.method == "spot" for cell in cells(run_bench(["oracle"], longer, progress)))
    assert "no drafter was trained for block length 16: spot is left out there" in progress.notes
    with pytest.raises(SpotError, match=r"decode\.bitwise is true, which bench does not decode in"):
        run_bench(["oracle"], bench_options(recipe, tmp_path / "b", overrides={"decode.bitwise": True}))


def test_an_unknown_suite_is_named(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(SpotError, match="there is no suite 'mane'"):
        run_bench(["mane"], bench_options(recipe, tmp_path / "out"))


def test_one_condition_runs_each_method_once() -> None:
    condition = Condition("target", None, "replay", 3, 12)  # type: ignore[arg-type]
    one, other = (Wanted(suite, "chain", 8, options(depth=4, floor=None)) for suite in ("main", "budget"))
    (group,) = merged([CellGroup(condition, (one,)), CellGroup(condition, (other, one))])
    assert isinstance(group, CellGroup) and group.wanted == (one, other)
    assert [each.method for each in runs_of(group.wanted)] == ["draft-free", "chain"]


def test_spread_holds_the_ratio_and_shrinks_with_more_units() -> None:
    random = np.random.default_rng(0)
    below = random.integers(5, 20, size=400)
    above = below * 2 + random.integers(0, 10, size=400)
    few, many = (ratio_spread(above[:count].tolist(), below[:count].tolist()) for count in (20, 400))
    assert few is not None and many is not None
    assert many[0] < above.sum() / below.sum() < many[1]
    assert many[1] - many[0] < few[1] - few[0]
    assert ratio_spread([3.0], [1.0]) is None
    assert ratio_spread([2.0, 4.0], [1.0, 2.0]) == (2.0, 2.0)
    assert speed_spread([10, 10], [1.0, 2.0], [10, 10], [0.5, 1.0]) == (2.0, 2.0)


def test_a_rule_may_be_a_number_that_ties_probabilities(recipe: Path, tmp_path: Path) -> None:
    rows = run_bench(["coverage"], bench_options(recipe, tmp_path / "out", rules=("0.02",), prompts_replay=1))
    assert {row.rule["resolution"] for row in rows} == {0.02}
