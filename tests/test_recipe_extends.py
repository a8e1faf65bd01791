"""Recipes on top of recipes, the shipped ones among them; what `spot-train recipe` says of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from spot_infer.errors import SpotError
from spot_train.cli import run
from spot_train.recipe.recipe import file_schema, load_recipe, parse_recipe, recipe_hash

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
SHIPPED = sorted(RECIPES.glob("*.yaml"))
BASE = {
    "target": {"path_or_id": "owner/base", "block_length": 32},
    "prompts": {"sources": [{"path_or_id": "a/b"}, {"path_or_id": "c/d"}], "limit": 5},
    "fit": {"epochs": 4, "seed": 1},
}


def write(folder: Path, name: str, tree: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree))
    return folder / name


def test_sections_merge_and_lists_are_replaced(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", BASE)
    write(tmp_path, "middle.yaml", {"extends": "base.yaml", "fit": {"seed": 2}, "collect": {"seed": 3}})
    own = {"extends": "middle.yaml", "target": {"block_length": 16}, "prompts": {"sources": [{"path_or_id": "e/f"}]}}
    recipe = load_recipe(write(tmp_path, "own.yaml", own), {"fit.epochs": 9})
    assert (recipe.target.path_or_id, recipe.target.block_length) == ("owner/base", 16)
    assert [source.path_or_id for source in recipe.prompts.sources] == ["e/f"]
    assert (recipe.prompts.limit, recipe.fit.seed, recipe.fit.epochs, recipe.collect.seed) == (5, 2, 9, 3)
    written_out = parse_recipe(recipe.model_dump(mode="json"))
    assert recipe_hash(recipe) == recipe_hash(written_out)


trees = st.fixed_dictionaries(
    {},
    optional={
        "fit": st.fixed_dictionaries({}, optional={"epochs": st.integers(1, 9), "seed": st.integers(0, 9)}),
        "collect": st.fixed_dictionaries({}, optional={"seed": st.integers(0, 9)}),
    },
)


@given(trees, trees)
def test_what_is_on_top_wins_and_what_it_leaves_out_stays(
    tmp_path_factory: pytest.TempPathFactory, under: dict[str, Any], over: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("recipe")
    write(folder, "base.yaml", {"target": BASE["target"], "prompts": BASE["prompts"], **under})
    recipe = load_recipe(write(folder, "own.yaml", {"extends": "base.yaml", **over})).model_dump()
    for section in ("fit", "collect"):
        for key, value in {**under.get(section, {}), **over.get(section, {})}.items():
            assert recipe[section][key] == value


def test_paths_stay_relative_to_the_file_that_they_stand_in(tmp_path: Path) -> None:
    base = {**BASE, "prompts": {"sources": [{"path_or_id": "pool.jsonl"}], "evaluation": [{"path_or_id": "g/h"}]}}
    base["target"] = {"path_or_id": "./model", "chat_template": "own.jinja"}
    write(tmp_path / "under", "base.yaml", base)
    recipe = load_recipe(write(tmp_path / "over", "own.yaml", {"extends": "../under/base.yaml"}))
    assert recipe.resolve(recipe.target.path_or_id) == str(tmp_path / "under" / "model")
    assert recipe.chat_template() == str(tmp_path / "under" / "own.jinja")
    assert recipe.resolve(recipe.prompts.sources[0].path_or_id) == str(tmp_path / "under" / "pool.jsonl")
    assert recipe.prompts.evaluation[0].path_or_id == "g/h"
    same = load_recipe(write(tmp_path / "under", "own.yaml", {"extends": "base.yaml"}))
    assert same.prompts.sources[0].path_or_id == "pool.jsonl"
    shipped = load_recipe(write(tmp_path / "over", "tiny.yaml", {"extends": "builtin:recipes/tiny.yaml"}))
    assert recipe_hash(shipped) == recipe_hash(load_recipe("builtin:recipes/tiny.yaml"))
    assert recipe_hash(same) != recipe_hash(recipe)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"own.yaml": {"extends": "own.yaml"}}, "own.yaml, which is this recipe or extends it"),
        ({"own.yaml": {"extends": "b.yaml"}, "b.yaml": {"extends": "own.yaml"}}, "break the circle"),
        ({"own.yaml": {"extends": "none.yaml"}}, r"none.yaml \(which .*own.yaml extends\) does not exist"),
        ({"own.yaml": {"extends": 3}}, "extends is 3; name one recipe file"),
        ({"own.yaml": {"extends": ["a.yaml"]}}, "name one recipe file"),
        ({"own.yaml": {"extends": "b.yaml"}, "b.yaml": "[1]"}, "b.yaml, which holds a list"),
        ({"own.yaml": {"extends": "b.yaml"}, "b.yaml": "a: ["}, r"b.yaml \(which .* extends\) line 1"),
        ({"own.yaml": {"extends": "b.yaml"}, "b.yaml": {**BASE, "fits": {}}}, "did you mean fit"),
        ({"own.yaml": {"extend": "b.yaml", **BASE}}, "did you mean extends"),
    ],
)
def test_an_extension_that_is_none_is_one_sentence(files: dict[str, Any], message: str, tmp_path: Path) -> None:
    for name, tree in files.items():
        write(tmp_path, name, tree)
    with pytest.raises(SpotError, match=message):
        load_recipe(tmp_path / "own.yaml")
    with pytest.raises(SpotError, match="load it as a file"):
        parse_recipe({"extends": "b.yaml", **BASE})


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_a_shipped_recipe_says_what_it_needs_and_what_is_unchecked(file: Path) -> None:
    recipe = load_recipe(file)
    assert recipe_hash(recipe) == recipe_hash(load_recipe(f"builtin:recipes/{file.name}"))
    if file.stem.startswith("tiny"):
        return
    head = file.read_text().split("\ntarget:")[0]
    for promised in ("Disk", "(arithmetic)", "GPU", "Not checked", "paper"):
        assert promised in head, f"{file.name} says nothing of {promised}"
    assert (recipe.collect.max_new_tokens, recipe.fit.learning_rate, recipe.fit.epochs) == (256, 3e-4, 10)
    assert recipe.fit.d_max == 15 and len(recipe.prompts.evaluation) == 4
    assert recipe.target.block_length == (16 if file.stem.endswith("b16") else 32)
    expected = {"sdar_8b_b32": 0.1, "sdar_8b_b16": 0.1, "sdar_4b_b32": 0.02}
    assert recipe.decode.floor == expected.get(file.stem, 0.0)


def test_the_mixture_is_the_papers_size() -> None:
    sources = load_recipe(RECIPES / "sdar_4b_b32.yaml").prompts.sources
    assert len(sources) == 4 and sum(source.limit or 0 for source in sources) == 15_027


def test_several_recipes_are_validated_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipe", "validate", *map(str, SHIPPED)]) == 0
    assert capsys.readouterr().out.count(": valid, ") == len(SHIPPED)
    bad = write(tmp_path, "bad.yaml", {**BASE, "fit": {"epochs": 0}})
    lost = write(tmp_path, "lost.yaml", {**BASE, "target": {"path_or_id": "./nowhere"}})
    pool = write(tmp_path, "pool.yaml", {**BASE, "prompts": {"sources": [{"path_or_id": "missing.jsonl"}]}})
    talk = write(tmp_path, "talk.yaml", {**BASE, "target": {"path_or_id": "a/b", "chat_template": "no.jinja"}})
    assert run(["recipe", "validate", str(bad), str(SHIPPED[0]), str(lost), str(pool), str(talk)]) == 2
    printed = capsys.readouterr()
    assert printed.out.count(": valid, ") == 1
    faults = printed.err.strip().splitlines()
    assert [line.startswith("error: ") for line in faults] == [True] * 4
    for file, said in ((bad, "fit.epochs is 0"), (lost, "config.json"), (pool, "missing.jsonl"), (talk, "no.jinja")):
        assert any(str(file) in line and said in line for line in faults)


def test_show_prints_a_recipe_that_loads_as_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = RECIPES / "llada2_mini_b16.yaml"
    assert run(["recipe", "show", str(file), "--set", "fit.seed=9"]) == 0
    printed = capsys.readouterr().out
    assert "extends" not in printed
    again = load_recipe(write(tmp_path, "again.yaml", printed))
    assert again.model_dump() == load_recipe(file, {"fit.seed": 9}).model_dump()


def test_the_schema_asks_an_extending_file_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipe", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == json.loads(json.dumps(file_schema()))
    assert "required" not in schema and "required" not in schema["$defs"]["TargetSection"]
    assert schema["else"]["required"] == ["target", "prompts"]
    assert schema["else"]["properties"]["prompts"]["required"] == ["sources"]
    assert schema["$defs"]["PromptSource"]["required"] == ["path_or_id"]
    for section in schema["$defs"].values():
        assert section["additionalProperties"] is False
        for name, key in section["properties"].items():
            assert key.get("description") or "$ref" in key or "items" in key, name
