"""Calibrating a draft graph: counting against a slow count, selecting against brute force, and the file it writes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from collecting import fake_target, small_recipe, write_prompts
from fake_trajectories import fake_trajectories
from hypothesis import given
from hypothesis import strategies as st

from spot_infer.drafters import CalibratedGraphDrafter
from spot_infer.drafters.calibrated_graph import RankSet
from spot_infer.errors import SpotError
from spot_infer.transition import CommitRule
from spot_train.calibrate.graph import (
    RankPath,
    calibrate_graph,
    count_nodes,
    count_paths,
    load_graph,
    record_pool,
    recorded_shards,
    select_nodes,
)
from spot_train.collect.collect import collect, load_recipe_target, target_attributes
from spot_train.recipe.recipe import Recipe, load_recipe
from spot_train.replay.replay import replay, replay_summary
from spot_train.shards.store import open_shards

RULE = CommitRule()


def slow_counts(trajectories: object, lookahead: int) -> Counter[RankSet]:
    """Rank sets of the next steps at every root, straight from the recorded arrays."""
    counts: Counter[RankSet] = Counter()
    for one in trajectories:  # type: ignore[attr-defined]
        for step in range(1, len(one)):
            table, start = one.table(step - 1), int(one.block_start[step])
            masked = one.table(step).slots.tolist()
            if one.block_start[step - 1] != start or len(masked) < 2:
                continue
            rows = [row for row, slot in enumerate(table.slots.tolist()) if slot in masked]
            ranked = sorted(rows, key=lambda row: (-float(table.log_odds[row]), row))
            found: set[tuple[int, int]] = set()
            for later in range(step, min(step + lookahead, len(one))):
                if one.block_start[later] != start or len(found) + 1 == len(masked):
                    break
                ((position, token),) = one.step(later)
                row = next(row for row in rows if table.slots[row] == position - start)
                tokens = table.top_token[row].tolist()
                if token not in tokens:
                    break
                found.add((ranked.index(row), tokens.index(token)))
                counts[frozenset(found)] += 1
    return counts


@pytest.mark.parametrize("lookahead", [1, 3, 6])
def test_paths_are_counted_against_the_stale_table(lookahead: int) -> None:
    trajectories = fake_trajectories(count=6, max_new_tokens=40)
    paths = count_paths(trajectories, RULE, lookahead)
    assert count_nodes(paths) == slow_counts(trajectories, lookahead)
    assert max(map(len, paths)) == lookahead
    assert len(count_nodes(paths)) > lookahead + 3


@st.composite
def random_paths(draw: st.DrawFn) -> dict[RankPath, int]:
    """Paths over few ranks, so that they share states."""
    paths: dict[RankPath, int] = {}
    for _ in range(draw(st.integers(1, 12))):
        order = draw(st.permutations([(0, 0), (1, 0), (2, 0), (0, 1)]))
        commits = [pair for index, pair in enumerate(order) if pair[0] not in [i for i, _ in order[:index]]]
        length = draw(st.integers(0, len(commits)))
        path = tuple(frozenset(commits[: depth + 1]) for depth in range(length))
        paths[path] = paths.get(path, 0) + draw(st.integers(1, 5))
    return paths


def accepted(paths: dict[RankPath, int], graph: list[RankSet]) -> int:
    """Drafts that a run over these roots accepts."""
    total = 0
    for path, roots in paths.items():
        depth = 0
        while depth < len(path) and path[depth] in graph:
            depth += 1
        total += roots * depth
    return total


@given(random_paths(), st.integers(1, 8))
def test_every_selected_state_adds_most_accepted_drafts(paths: dict[RankPath, int], size: int) -> None:
    counts = count_nodes(paths)
    chosen = select_nodes(paths, size, "accepted", RULE)
    for index, node in enumerate(chosen):
        gains = {
            other: accepted(paths, [*chosen[:index], other]) - accepted(paths, chosen[:index])
            for other in counts
            if other not in chosen[:index]
        }
        assert gains[node] == max(gains.values()) > 0
    assert len(chosen) == size or accepted(paths, chosen) == accepted(paths, list(counts))


def test_a_second_way_into_a_chosen_state_counts_for_what_lies_behind_it() -> None:
    """{(1, 0)} takes fewer roots than {(2, 0)}, but they go on into a state that is drafted already."""
    first, second, third = ((rank, 0) for rank in range(3))
    both = frozenset((first, second))
    paths: dict[RankPath, int] = {
        (frozenset((first,)), both): 9,
        (frozenset((second,)), both): 4,
        (frozenset((third,)),): 6,
    }
    chosen = select_nodes(paths, 3, "accepted", RULE)
    assert chosen == [frozenset((first,)), both, frozenset((second,))]


@given(random_paths(), st.integers(1, 8))
def test_selection_by_parents_is_brute_force_greedy(paths: dict[RankPath, int], size: int) -> None:
    counts = count_nodes(paths)
    chosen: list[RankSet] = []
    while len(chosen) < size:
        scored = []
        for node, count in counts.items():
            parents = [node - {pair} for pair in node if node - {pair} in chosen]
            if node not in chosen and (parents or len(node) == 1):
                scored.append((count + sum(counts[one] for one in parents), count, -len(node), node))
        if not scored:
            break
        best = max(one[:3] for one in scored)
        chosen.append(min((one[3] for one in scored if one[:3] == best), key=sorted))
    assert select_nodes(paths, size, "parents", RULE) == chosen


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    pool = write_prompts(tmp_path_factory.mktemp("pool") / "pool.jsonl", 12)
    held_out = {"sources": [{"path_or_id": str(pool)}], "prompts": 8, "heldout": 4, "lookahead": 4, "graph_size": 9}
    return small_recipe(pool, calibrate=held_out)


def test_the_file_says_what_it_was_made_of_and_comes_back(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "graph.json"
    target = fake_target()
    recorded = record_pool(recipe, target)
    made = calibrate_graph(recipe, recorded, out)
    record = json.loads(out.read_text())
    assert record["data"]["calibration_trajectories"] == 8
    assert record["command"].startswith("spot-train")
    assert record["versions"]["python"]
    graph = load_graph(out, target_attributes(recipe, target))
    assert [sorted(map(list, node)) for node in graph.nodes] == made["nodes"]
    assert graph.masses[0] == made["counts"][0] / made["roots"]
    again = replay_summary(replay(CalibratedGraphDrafter(graph), recorded.heldout, 8))
    assert made["measured"]["D8"] == again
    assert again["accepted_per_round"] > 0.2
    assert calibrate_graph(recipe, record_pool(recipe, target), tmp_path / "again.json") == made


def test_shards_give_the_graph_that_their_own_prompts_give(recipe: Recipe, tmp_path: Path) -> None:
    collect(recipe.model_copy(update={"prompts": recipe.prompts.model_copy(update={"heldout_fraction": 0.999})}),
            tmp_path / "shards", target=fake_target())  # fmt: skip
    shards = open_shards(tmp_path / "shards")
    recorded = recorded_shards(recipe, shards)
    made = calibrate_graph(recipe, recorded, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json", shards.attributes).nodes
    assert 4 < len(made["nodes"]) <= 9
    other = small_recipe(tmp_path, rule={"resolution": "bfloat16"})
    with pytest.raises(SpotError, match="another"):
        recorded_shards(other, shards)
    few = recipe.model_copy(update={"calibrate": recipe.calibrate.model_copy(update={"prompts": 99})})
    with pytest.raises(SpotError, match="103 held-out"):
        recorded_shards(few, shards)
    with pytest.raises(SpotError, match="103 held-out"):
        record_pool(few, fake_target())


def test_another_target_or_block_length_is_refused_and_another_rule_warns(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "graph.json"
    calibrate_graph(recipe, record_pool(recipe, fake_target()), out)
    own = target_attributes(recipe, fake_target())
    for key in ("config_hash", "weights_hash"):
        with pytest.raises(SpotError, match=key):
            load_graph(out, {**own, "target": {**own["target"], key: "another"}})
    with pytest.raises(SpotError, match="block length 8"):
        load_graph(out, {**own, "block_length": 16})
    with pytest.warns(UserWarning, match="resolution float32, not bfloat16"):
        load_graph(out, {**own, "rule": CommitRule(resolution="bfloat16").to_dict()})
    record = json.loads(out.read_text())
    for change, said in (
        ({"format_version": 9}, "version 9"),
        ({"kind": "floor"}, "no graph calibration"),
        ({"values": []}, "values"),
        ({"values": {**record["values"], "nodes": [[[0]]]}}, "no draft graph"),
        ({"values": {**record["values"], "roots": 0}}, "no draft graph"),
    ):
        out.write_text(json.dumps({**record, **change}))
        with pytest.raises(SpotError, match=said):
            load_graph(out, own)
    out.write_text("{")
    with pytest.raises(SpotError, match="no readable JSON"):
        load_graph(out, own)


@pytest.mark.parametrize("resolution", ["float32", "bfloat16"])
def test_the_tiny_targets_graphs_ship(resolution: str) -> None:
    file = f"builtin:data/tiny-sdar-graphs/{resolution}.json"
    recipe = load_recipe("builtin:recipes/tiny.yaml", {"rule.resolution": resolution})
    graph = load_graph(file, target_attributes(recipe, load_recipe_target(recipe)))
    assert (len(graph.nodes), graph.block_length, graph.rule.resolution) == (24, 32, resolution)
    assert graph.facts["data"]["sources"] == ["builtin:data/pools/heldout.jsonl"]
    assert max(map(len, graph.nodes)) == 6
