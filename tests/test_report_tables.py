"""What a report says, from made-up rows: bold, shares, dashes, spreads, marks and sentences. No picture is drawn."""

from __future__ import annotations

import pytest
from made_up_results import COARSE, cell, curve, made_up_rows, real_cell

from spot_infer.errors import SpotError
from spot_infer.transition import CommitRule
from spot_train.report.document import Section, Table
from spot_train.report.sections import build_report
from spot_train.suites.ladder import DECODED, STEPS


def section(rows, name="main") -> Section:
    (found,) = [one for one in build_report(rows).sections if one.name == name]
    return found


def column(table: Table, name: str, group: str = "") -> list[str]:
    """The texts of one column, under one spanning header."""
    headers, first = [], 0
    for text, span in table.groups or (("", len(table.columns)),):
        headers += [text] * span
        first += span
    (index,) = [i for i, one in enumerate(table.columns) if one == name and group in headers[i]]
    return [row[index].text for row in table.rows]


def bold(table: Table) -> set[str]:
    return {row[0].text for row in table.rows if any(one.best for one in row)}


def test_the_lowest_nfe_is_bold_and_no_oracle_or_unfaithful_method_is():
    rows = [
        cell("draft-free", 0, (40, 40)),
        cell("chain", 8, (20, 20)),
        cell("calibrated_graph", 8, (16, 16)),
        cell("position_oracle", 8, (8, 8)),
        cell("spot", 8, (10, 10)),
        cell("spot", 8, (9, 9), verifier="greedy", temperature=0.0, distribution_preserving=False, reason="drifts"),
    ]
    found = section(rows)
    table = found.tables[1]
    assert bold(table) == {"spot"}
    assert "spot, greedy†" in column(table, "method")
    assert any("† Not distribution-preserving" in note and "drifts." in note for note in found.notes)
    assert any("spot has it in 1 of 1 such cells" in note for note in found.notes)


def test_a_method_that_beats_spot_is_bold_and_the_count_says_so():
    found = section([cell("calibrated_graph", 8, (9, 9)), cell("spot", 8, (10, 10)), cell("spot", 20, (5, 5))])
    assert bold(found.tables[1]) == {"calibrated_graph", "spot"}
    assert any("spot has it in 0 of 1 such cells" in note for note in found.notes)


def test_equal_nfe_is_bold_twice():
    assert bold(section([cell("chain", 8, (9, 9)), cell("spot", 8, (9, 9))]).tables[1]) == {"chain", "spot"}


def test_share_of_the_oracle_is_a_ratio_of_factors_and_the_lead_is_in_forwards():
    rows = [cell("calibrated_graph", 8, (20, 20)), cell("position_oracle", 8, (8, 8)), cell("spot", 8, (16, 16))]
    table = section(rows).tables[0]
    assert column(table, "reduction") == ["2.50x"]
    assert column(table, "of oracle") == ["50%"]
    assert column(table, "below graph") == ["20.0%"]


def test_an_oracle_of_another_rule_budget_or_setting_is_not_compared():
    others = [
        cell("position_oracle", 8, (8, 8), rule=COARSE),
        cell("position_oracle", 12, (8, 8)),
        cell("position_oracle", 8, (8, 8), temperature=1.0),
        cell("position_oracle", 8, (8, 8), ignore_stop=True),
        cell("position_oracle", 8, (8, 8, 8)),
    ]
    table = section([cell("spot", 8, (16, 16)), *others]).tables[0]
    assert "of oracle" not in table.columns


def test_both_rules_stand_side_by_side_and_replay_has_no_throughput():
    rows = [real_cell(), real_cell(rule=COARSE, throughput_ratio=0.55), cell()]
    replayed, real = [one for one in section(rows).tables if one.title.startswith("tiny")]
    assert [text for text, _ in real.groups] == ["", "rule float32", "rule bfloat16"]
    assert column(real, "throughput", "float32") == ["0.40x"]
    assert column(real, "throughput", "bfloat16") == ["0.55x"]
    assert column(real, "reduction (95%)", "float32") == ["2.35x (2.00–2.70)"]
    assert not {"throughput", "identical"} & set(replayed.columns)


def test_identical_outputs_are_a_count_and_differences_name_their_largest_gap():
    gaps = [
        {"prompt": 0, "step": 3, "kind": "order", "gap": 2e-7},
        {"prompt": 2, "step": 1, "kind": "order", "gap": 4e-6},
    ]
    (table,) = [one for one in section([real_cell(identical=2, divergences=gaps)]).tables if "tiny" in one.title]
    assert column(table, "identical") == ["2/4, gap 4e-06"]


def test_seeds_are_pooled_and_their_spread_is_told():
    rows = [
        real_cell(nfe=(16, 16), seed=0, throughput_ratio=0.5),
        real_cell(nfe=(20, 20), seed=1, throughput_ratio=0.7),
    ]
    found = section(rows)
    (table,) = [one for one in found.tables if one.title.startswith("tiny")]
    assert column(table, "NFE") == ["18.0"]
    assert column(table, "reduction (95%)") == ["2.22x (2.22–2.22)"]
    assert column(table, "throughput") == ["0.60x"]
    assert column(table, "identical") == ["4/4"]
    (note,) = [note for note in found.notes if "seeds" in note]
    assert "at most 2.8 of NFE" in note and "at most 0.14 of throughput" in note
    assert "2 prompts of tiny (target tiny-sdar, 2 seeds)" in found.opening


def test_options_name_a_variant_only_where_they_differ():
    rows = [cell(options={"floor": 0.1, "tau": 0.9}), cell(options={"floor": 0.2, "tau": 0.9})]
    table = section(rows).tables[-1]
    assert column(table, "method") == ["spot, floor=0.1", "spot, floor=0.2"]


def test_two_rows_in_one_place_are_both_printed():
    rows = [cell(drafter="a", budget=8), cell(drafter="b", budget=8, nfe=(10, 10, 10, 10))]
    rows = [one.model_copy(update={"suite": "transfer", "task": "tiny", "native": False}) for one in rows]
    table = section([*rows, rows[0].model_copy(update={"options": {"tau": 1}})], "transfer").tables[0]
    assert "17.0 / 17.0" in column(table, "NFE")


def test_ablation_counts_forwards_against_the_plain_spot():
    rows = [cell(nfe=(10, 10)), cell(nfe=(13, 13), options={"merged": False}), cell("chain", 8, (15, 15))]
    found = section([one.model_copy(update={"suite": "ablation"}) for one in rows], "ablation")
    against = dict(zip(column(found.tables[0], "variant"), column(found.tables[0], "NFE against spot"), strict=True))
    assert against == {"chain": "+5.0", "spot": "reference", "spot, merged=False": "+3.0"}


def test_the_ladder_counts_from_the_papers_form_and_names_its_steps():
    replayed = [own for name, own in STEPS.items() if name not in DECODED]
    drafted = zip((20, 16, 10, 8), replayed, strict=True)
    rows = [cell(nfe=(nfe, nfe), options=options) for nfe, options in drafted]
    rows += [cell("draft-free", 0, (40, 40), mode="real")]
    rows += [cell(nfe=(nfe, nfe), mode="real", options=STEPS[name]) for name, nfe in zip(DECODED, (8, 5), strict=True)]
    rows += [cell("draft-free", 0, (40, 40)), cell(nfe=(12, 12), budget=32, options={"curve": "paper-gsm8k"})]
    rows += [cell("joint_oracle", 8, (5, 5), options=options) for options in ({"boundary": "separate"}, {})]
    table = section([one.model_copy(update={"suite": "ladder"}) for one in rows], "ladder").tables[0]
    names = ["draft-free", *STEPS, "auto", "joint oracle, separate", "joint oracle, seamless"]
    assert column(table, "step") == names
    assert column(table, "D") == ["", *(["8"] * 6), "auto", "8", "8"]
    fewer = ["–", "1.00x", "1.25x", "2.00x", "2.50x", "2.50x", "4.00x", "–", "–", "–"]
    assert column(table, "fewer than paper") == fewer
    assert column(table, "of joint oracle") == ["–", "25%", "31%", "–", "62%", "62%", "100%", "–", "–", "–"]


def test_a_row_a_resolution_from_fine_to_coarse_with_what_it_solves_and_foreign_drafters_marked():
    rows = []
    for resolution, nfe in ((0.05, 10), ("bfloat16", 16), ("float32", 20)):
        own = {"suite": "rule", "rule": CommitRule(resolution=resolution).to_dict()}
        warned = {} if resolution == "bfloat16" else {"warning": "drafter a was trained under another rule"}
        rows += [
            cell("draft-free", 0, (40, 40), **own, accuracy=0.5, accuracy_by_family={"list": 1.0, "math": 0.0}),
            cell("spot", 8, (nfe, nfe), **own, provenance=warned),
            cell("spot", 20, (nfe - 2, nfe - 2), **own, provenance=warned),
        ]
    found = section(rows, "rule")
    forwards, solved = found.tables
    assert column(forwards, "resolution") == column(solved, "resolution") == ["float32", "bfloat16", "0.05"]
    assert column(forwards, "NFE", "spot, D 8") == ["20.00*", "16.00", "10.00*"]
    assert column(forwards, "reduction", "spot, D 20") == ["2.22x", "2.86x", "5.00x"]
    assert column(solved, "list") == ["1.000"] * 3 and column(solved, "all") == ["0.500"] * 3
    assert [plot.title.rsplit(", ")[-1] for plot in found.plots] == ["D 8", "D 20"]
    assert found.plots[0].categories == tuple(f"{one}, solves 50.0%" for one in ("float32", "bfloat16", "0.05"))
    assert {one.label: one.y for one in found.plots[0].series}["spot"] == (20.0, 16.0, 10.0)
    assert any("a was trained under another rule" in note for note in found.notes)


def test_transfer_stars_the_native_drafter():
    rows = [cell(native=True), cell(native=False, drafter="other")]
    found = section([one.model_copy(update={"suite": "transfer"}) for one in rows], "transfer")
    assert column(found.tables[0], "drafter") == ["tiny-sdar-drafter*", "other"]


def test_the_budget_with_the_highest_throughput_is_bold():
    rows = [real_cell("spot", d, suite="budget", throughput_ratio=r) for d, r in ((4, 0.9), (8, 1.4), (20, 1.1))]
    table = section(rows, "budget").tables[0]
    assert [row[1].text for row in table.rows if any(one.best for one in row)] == ["8"]


def test_a_guide_line_is_inside_its_plot():
    rows = [real_cell("spot", budget, suite="budget", throughput_ratio=0.3) for budget in (4, 8)]
    (speed,) = [plot for plot in section(rows, "budget").plots if plot.reference]
    assert speed.y_range[1] > speed.reference[0] == 1.0


def test_length_and_block_stand_side_by_side_and_make_curves():
    for suite, field, sizes in (("length", "max_new_tokens", (64, 128)), ("block", "block_length", (16, 32))):
        found = section([cell(suite=suite, **{field: size}) for size in sizes], suite)
        assert len(found.tables) == 1
        assert [text.split()[0] for text, _ in found.tables[0].groups[1:]] == [str(size) for size in sizes]
        assert found.plots[0].series[0].x == sizes


def test_attribution_is_stacked_and_mass_makes_a_reliability_diagram():
    shares = [
        curve(one, suite="calibration", y_label="share of first rejections", y=[0.5, 0.3, 0.2, None])
        for one in ("position", "token", "budget")
    ]
    masses = curve(
        "spot",
        suite="calibration",
        x_label="mass of a drafted state (mean of its bin)",
        y_label="share of drafted states accepted",
        x=[0.1, 0.3, 0.6, 0.9],
        y=[0.1, 0.25, 0.6, 0.95],
    )
    found = section([*shares, masses], "calibration")
    assert [plot.kind for plot in found.plots] == ["stacked", "reliability"]
    assert column(found.tables[0], "curve") == ["position", "token", "budget"]


def test_every_section_says_what_it_answers_of_what_and_how_it_was_made():
    report = build_report(made_up_rows())
    assert [one.name for one in report.sections] == ["main", "oracle", "coverage", "temperature", "transfer"]
    for one in report.sections:
        assert one.opening.endswith(".") and "4 prompts of tiny" in one.opening
        assert "commit rule" in one.opening and "stop tokens" in one.opening
        assert one.commands == ("spot-train bench main",)
    assert "replayed" in report.sections[0].opening and "real forwards" in report.sections[0].opening
    names = [plot.name for plot in report.plots]
    assert len(set(names)) == len(names)


def test_a_cpu_run_says_what_its_wall_clock_means_and_a_replay_does_not():
    assert any("On a CPU" in text for text in build_report([real_cell()]).closing)
    assert not any("On a CPU" in text for text in build_report([cell()]).closing)
    on_gpu = real_cell(provenance={"argv": ["spot-train"], "device": "cuda:0"})
    assert not any("On a CPU" in text for text in build_report([on_gpu]).closing)


def test_what_a_run_warned_of_is_told_once():
    warned = {"argv": ["spot-train"], "warning": "the drafter was trained under another rule"}
    notes = section([cell(provenance=warned), cell(budget=12, provenance=warned)]).notes
    assert notes.count("The drafter was trained under another rule.") == 1


def test_rows_that_contradict_each_other_are_refused_and_equal_ones_count_once():
    assert build_report([cell(), cell()]) == build_report([cell()])
    with pytest.raises(SpotError, match="two different rows of suite main for spot D8"):
        build_report([cell(), cell(nfe=(1, 2, 3, 4))])


def test_a_suite_of_another_version_is_refused():
    with pytest.raises(SpotError, match="suite 'speed'"):
        build_report([cell(suite="speed")])
