"""Recipes: the shipped ones are complete, precedence is flag > YAML > default, and mistakes are one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from spot_infer.errors import SpotError
from spot_infer.transition import CommitRule
from spot_train.recipe.recipe import (
    COLLECT_SECTIONS,
    FitSection,
    Recipe,
    RuleSection,
    load_recipe,
    parse_override,
    parse_recipe,
    recipe_hash,
    recipe_values,
)

REPO = Path(__file__).resolve().parent.parent
SHIPPED = sorted((REPO / "recipes").glob("*.yaml"))
WHOLE = [file for file in SHIPPED if "extends" not in yaml.safe_load(file.read_text())]
MINIMAL = {"target": {"path_or_id": "a/b"}, "prompts": {"sources": [{"path_or_id": "c/d"}]}}
KEY = re.compile(r"^(?P<indent> *)(?:- )?(?P<key>\w+):(?P<value>[^#]*)(?P<comment>#.*)?$")


def sections() -> dict[str, type[BaseModel]]:
    fields = {name: field.annotation for name, field in Recipe.model_fields.items() if name != "extends"}
    return fields  # type: ignore[return-value]


def write(folder: Path, tree: Any) -> Path:
    file = folder / "recipe.yaml"
    file.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree))
    return file


@pytest.mark.parametrize("file", WHOLE, ids=lambda file: file.stem)
def test_a_shipped_recipe_names_and_explains_every_key(file: Path) -> None:
    load_recipe(file)
    lines = [match for line in file.read_text().splitlines() if (match := KEY.match(line)) and "{" not in line]
    written = yaml.safe_load(file.read_text())
    for name, model in sections().items():
        assert set(written[name]) == set(model.model_fields), name
    assert set(written["prompts"]["sources"][0]) == set(load_recipe(file).prompts.sources[0].model_fields)
    for match in lines:
        assert match["comment"], f"{file.name}: {match['key']} has no comment"
        if match["indent"]:
            stated = re.search(r"; (default [^#]+|required)$", match["comment"])
            assert stated or match["key"] in ("sources", "evaluation"), f"{file.name}: {match['key']} states no default"


@pytest.mark.parametrize("file", WHOLE, ids=lambda file: file.stem)
def test_a_shipped_recipe_states_the_real_defaults(file: Path) -> None:
    section = None
    for line in file.read_text().splitlines():
        match = KEY.match(line)
        if match is None or "{" in line:
            continue
        if not match["indent"]:
            section = sections()[match["key"]]
        elif len(match["indent"]) == 2 and section is not None and (match["comment"] or "").find("; default ") > 0:
            stated = match["comment"].rsplit("; default ", 1)[1].strip()
            default = section.model_fields[match["key"]].default
            shown = {None: "null", (): "none", 256 * 1024**2: "256 MiB"}.get(default, default)
            number = isinstance(shown, int | float) and not isinstance(shown, bool)
            assert float(stated) == shown if number else stated.lower() == str(shown).lower(), match["key"]


def test_every_key_has_a_sentence() -> None:
    def check(model: type[BaseModel], place: str) -> None:
        for name, field in model.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                check(field.annotation, f"{place}{name}.")
                continue
            assert field.description, f"{place}{name}"
            assert field.description.endswith("."), f"{place}{name}"

    check(Recipe, "")
    assert recipe_hash(parse_recipe(MINIMAL)) == recipe_hash(parse_recipe(dict(MINIMAL)))


@given(epochs=st.integers(1, 99), flag=st.integers(1, 99))
def test_flag_over_yaml_over_default(tmp_path_factory: pytest.TempPathFactory, epochs: int, flag: int) -> None:
    folder = tmp_path_factory.mktemp("recipe")
    file = write(folder, {**MINIMAL, "fit": {"epochs": epochs}})
    assert load_recipe(write(folder, MINIMAL)).fit.epochs == FitSection.model_fields["epochs"].default
    file = write(folder, {**MINIMAL, "fit": {"epochs": epochs}})
    assert load_recipe(file).fit.epochs == epochs
    assert load_recipe(file, dict([parse_override(f"fit.epochs={flag}")])).fit.epochs == flag
    assert load_recipe(file, {"collect.seed": 5}).collect.seed == 5


def test_values_come_back_as_they_were_written() -> None:
    recipe = parse_recipe({**MINIMAL, "rule": {"resolution": "1e-4"}, "fit": {"learning_rate": "3e-4", "devices": 2}})
    assert recipe.rule.resolution == 1e-4
    assert recipe.fit.learning_rate == 3e-4
    assert parse_recipe(recipe.model_dump(mode="json")) == recipe


def test_the_rule_section_is_the_commit_rule() -> None:
    assert set(RuleSection.model_fields) == set(CommitRule().to_dict())
    assert RuleSection().commit_rule() == CommitRule()
    rule = CommitRule("entropy", "bfloat16", "threshold", 3, 0.5)
    assert RuleSection(**rule.to_dict()).commit_rule() == rule


def test_the_hash_covers_values_and_nothing_else(tmp_path: Path) -> None:
    one = load_recipe(write(tmp_path, MINIMAL))
    other = tmp_path / "other"
    other.mkdir()
    commented = load_recipe(write(other, "# why\n" + yaml.safe_dump({**MINIMAL, "fit": {"epochs": 10}})))
    assert recipe_hash(one) == recipe_hash(commented)
    assert recipe_hash(one) == recipe_hash(load_recipe(other / "recipe.yaml", {"target.device": "cpu"}))
    for key in ("fit.epochs", "collect.seed", "rule.quota", "prompts.limit"):
        assert recipe_hash(one) != recipe_hash(load_recipe(tmp_path / "recipe.yaml", {key: 77})), key
    same = load_recipe(tmp_path / "recipe.yaml", {"fit.epochs": 77})
    assert recipe_hash(one, COLLECT_SECTIONS) == recipe_hash(same, COLLECT_SECTIONS)
    assert set(recipe_values(one, COLLECT_SECTIONS)) == set(COLLECT_SECTIONS)


def test_paths_are_relative_to_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    recipe = load_recipe(write(tmp_path, MINIMAL))
    assert recipe.resolve("model") == str(tmp_path / "model")
    assert recipe.resolve("./missing") == str(tmp_path / "missing")
    assert recipe.resolve("pool.jsonl") == str(tmp_path / "pool.jsonl")
    assert recipe.resolve("owner/name") == "owner/name"
    assert recipe.resolve("/somewhere") == "/somewhere"
    assert Path(recipe.resolve("builtin:recipes/tiny.yaml")) == REPO / "recipes" / "tiny.yaml"
    for name in ("builtin:nothing", "builtin:../etc"):
        with pytest.raises(SpotError, match="not part of this installation"):
            recipe.resolve(name)


@given(st.text(max_size=60))
def test_text_that_is_no_recipe_is_one_sentence(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("recipe")
    file = folder / "recipe.yaml"
    file.write_text(text, encoding="utf-8", errors="replace", newline="")
    with pytest.raises(SpotError, match=re.escape(str(file))):
        load_recipe(file)


def test_yaml_holds_values_only(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    file = write(tmp_path, f"target: !!python/object/apply:pathlib.Path.touch [{marker}]\n")
    with pytest.raises(SpotError, match=r"line 1 is not a plain YAML file"):
        load_recipe(file)
    assert not marker.exists()


def test_a_typo_in_a_set_flag_is_one_sentence() -> None:
    for text in ("fit.epochs", "=3", "fit.epochs=[1"):
        with pytest.raises(SpotError, match="--set"):
            parse_override(text)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("epochs", "'epochs' is not a recipe section; known: .*fit"),
        ("fitt.epochs", r"'fitt' is not a recipe section; did you mean fit\?"),
        ("extends", "'extends' is not a recipe section"),
        ("fit", r"fit is a section; set a key of it, as in fit\.KEY=VALUE"),
        ("fit.", "fit is a section"),
        ("fit.epoch", r"fit\.epoch is not a recipe key; did you mean epochs\?"),
        ("fit.epochs.most", r"fit\.epochs holds a value and no keys; set fit\.epochs itself"),
        ("prompts.sources.0.limit", r"prompts\.sources holds a value"),
    ],
)
def test_an_override_of_what_is_no_key_names_what_is_wrong_with_it(key: str, message: str) -> None:
    with pytest.raises(SpotError, match=f"^override {re.escape(key)}: {message}"):
        load_recipe(SHIPPED[0], {key: 3})


@pytest.mark.parametrize(("section", "held"), [("fit: 3", "a number"), ("fit:", "nothing"), ("fit: [1]", "a list")])
def test_an_override_below_what_the_file_has_no_section_for_blames_the_file(
    section: str, held: str, tmp_path: Path
) -> None:
    file = write(tmp_path, f"target: {{path_or_id: a/b}}\nprompts: {{sources: [{{path_or_id: c/d}}]}}\n{section}\n")
    with pytest.raises(SpotError, match=rf"{re.escape(str(file))}: fit holds {held}; expected keys below it"):
        load_recipe(file, {"fit.epochs": 3})
    with pytest.raises(SpotError, match="holds a list; expected sections"):
        load_recipe(write(tmp_path, "[1, 2]\n"), {"fit.epochs": 3})
