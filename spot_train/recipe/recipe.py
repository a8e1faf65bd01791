"""The recipe: one typed schema that the YAML files, the command line and saved results all come from.

Reads and checks recipes; knows nothing about targets, shards or training. Precedence: flag > YAML > the YAML that it
extends > default. YAML holds values only, nothing in it is evaluated.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from spot_infer.errors import SpotError
from spot_train.recipe.schema import (
    BUILTIN,
    BootstrapSection,
    CollectSection,
    DecodeSection,
    FitSection,
    PromptSource,
    PromptsSection,
    Recipe,
    RuleSection,
    SamplingSection,
    TargetSection,
    resolve_path,
    resolve_template,
)

__all__ = [
    "BUILTIN",
    "COLLECT_SECTIONS",
    "BootstrapSection",
    "CollectSection",
    "DecodeSection",
    "FitSection",
    "PromptSource",
    "PromptsSection",
    "Recipe",
    "RuleSection",
    "SamplingSection",
    "TargetSection",
    "load_recipe",
    "parse_override",
    "parse_overrides",
    "parse_recipe",
    "recipe_from_flags",
    "recipe_hash",
    "recipe_values",
    "resolve_path",
]

COLLECT_SECTIONS = ("target", "rule", "sampling", "prompts", "collect")
"""What shards depend on."""
_WHERE_NOT_WHAT = {"target": {"device", "device_map", "tp_plan"}, "collect": {"free_space_margin_bytes"}}


def load_recipe(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read and check a recipe.

    `overrides` maps dotted keys (`fit.epochs`) to values that win over the file. Raises SpotError, one sentence naming
    file and field.
    """
    file = Path(resolve_path(str(path), Path.cwd()))
    tree = _read_tree(file, str(path), ())
    for key, value in (overrides or {}).items():
        _override(tree, key, value)
    recipe = parse_recipe(tree, str(path))
    recipe._folder = file.resolve().parent
    return recipe


def parse_recipe(tree: Any, name: str = "recipe") -> Recipe:
    """A recipe from nested dictionaries; `name` is what errors call it."""
    if not isinstance(tree, dict):
        raise SpotError(f"{name} holds {_kind_of(tree)}; expected sections such as target, prompts and collect")
    if tree.get("extends") is not None:
        raise SpotError(f"{name}: extends is {tree['extends']!r}, which only a recipe file can have; load it as a file")
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise SpotError(_sentence(name, error)) from None


def parse_override(text: str) -> tuple[str, Any]:
    """`section.key=value` from the command line, the value read as YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SpotError(f"--set {text!r} is not section.key=value; write for example --set fit.epochs=3")
    try:
        return key.strip(), yaml.load(value, Loader=_PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise SpotError(f"--set {text!r} has a value that is not YAML; quote it as YAML would need it") from None


def parse_overrides(texts: Sequence[str]) -> dict[str, Any]:
    """Several `section.key=value`; the last one of a key wins."""
    return dict(parse_override(text) for text in texts)


def recipe_from_flags(path: str, overrides: Sequence[str] | None, flags: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a command line: named flags that were given win over --set, --set over the file."""
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    return load_recipe(path, parse_overrides(overrides or ()) | given)


def recipe_values(recipe: Recipe, sections: Sequence[str] | None = None) -> dict[str, Any]:
    """The values of `sections` (default all), defaults included; keys that only say where to run are left out."""
    tree = recipe.model_dump(mode="json", exclude=_WHERE_NOT_WHAT)
    return {name: tree[name] for name in sections or tree}


def recipe_hash(recipe: Recipe, sections: Sequence[str] | None = None) -> str:
    """sha256 of the recipe's values; the file's place, comments and device don't matter."""
    return hashlib.sha256(json.dumps(recipe_values(recipe, sections), sort_keys=True).encode()).hexdigest()


class _PlainLoader(yaml.SafeLoader):
    """Plain values only; a key written twice is an error instead of the last one winning."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if isinstance(key, (dict, list)):
                raise yaml.constructor.ConstructorError(None, None, "a key is not a plain name", node.start_mark)
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key} is written twice", node.start_mark)
        return dict(super().construct_mapping(node, deep))


def _read_yaml(file: Path, name: str) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpotError(f"recipe {name} does not exist; give the path of a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpotError(f"recipe {name} can't be read as a UTF-8 text file: {error}") from None
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        raise SpotError(f"recipe {name}{where} is not a plain YAML file: {problem}") from None


def _read_tree(file: Path, name: str, over: tuple[Path, ...]) -> Any:
    """The nested values of a recipe file, laid over those of the recipe that it extends; `over` are the files above."""
    tree = _read_yaml(file, name)
    base = tree.pop("extends", None) if isinstance(tree, dict) else None
    if base is None:
        return tree
    if not isinstance(base, str) or not base:
        raise SpotError(f"{name}: extends is {base!r}; name one recipe file, relative to this one, or builtin:")
    here = file.resolve()
    below = Path(resolve_path(base, here.parent)).resolve()
    if below in (here, *over):
        raise SpotError(f"{name}: extends {base}, which is this recipe or extends it; break the circle")
    under = _read_tree(below, f"{base} (which {name} extends)", (here, *over))
    if not isinstance(under, dict):
        raise SpotError(f"{name}: extends {base}, which holds {_kind_of(under)}; expected a recipe's sections")
    return _laid_over(under if below.parent == here.parent else _anchored(under, below.parent), tree)


def _laid_over(under: dict[Any, Any], own: dict[Any, Any]) -> dict[Any, Any]:
    """`own` on top of `under`: sections merge, everything else is replaced."""
    both = {key for key in own.keys() & under.keys() if isinstance(own[key], dict) and isinstance(under[key], dict)}
    return {**under, **own, **{key: _laid_over(under[key], own[key]) for key in both}}


def _anchored(node: Any, folder: Path) -> Any:
    """A recipe's values with its relative paths, which are relative to `folder`, made absolute."""
    if isinstance(node, list):
        return [_anchored(item, folder) for item in node]
    if not isinstance(node, dict):
        return node
    paths = {"path_or_id": resolve_path, "chat_template": resolve_template}
    return {
        key: paths[key](value, folder)
        if key in paths and isinstance(value, str) and not value.startswith(BUILTIN)
        else _anchored(value, folder)
        for key, value in node.items()
    }


def file_schema() -> dict[str, Any]:
    """The JSON schema of recipe files, for editors. A file that extends another may leave required keys to it."""
    schema = Recipe.model_json_schema()
    alone: dict[str, Any] = {"required": schema.pop("required"), "properties": {}}
    for name, section in (("target", "TargetSection"), ("prompts", "PromptsSection")):
        alone["properties"][name] = {"required": schema["$defs"][section].pop("required")}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "if": {"required": ["extends"], "properties": {"extends": {"type": "string"}}},
        "else": alone,
    }


def _override(tree: Any, key: str, value: Any) -> None:
    """Set a dotted key; where the file holds no section there, `parse_recipe` says so."""
    section, _, rest = key.partition(".")
    name, dot, _ = rest.partition(".")
    sections = [one for one in _known_keys([]) if one != "extends"]
    if section not in sections:
        raise SpotError(f"override {key}: {section!r} is not a recipe section; {_closest(section, sections)}")
    if not name:
        raise SpotError(f"override {key}: {section} is a section; set a key of it, as in {section}.KEY=VALUE")
    if name not in _known_keys([section]):
        raise SpotError(
            f"override {key}: {section}.{name} is not a recipe key; {_closest(name, _known_keys([section]))}"
        )
    if dot:
        raise SpotError(f"override {key}: {section}.{name} holds a value and no keys; set {section}.{name} itself")
    if isinstance(tree, dict) and isinstance(tree.setdefault(section, {}), dict):
        tree[section][name] = value


_ALTERNATIVES = ("float", "literal", "constrained")
"""How pydantic begins the name of one of several types of a field, which stands in an error's place."""


def _sentence(name: str, error: ValidationError) -> str:
    errors = error.errors()
    first = errors[0]
    place = [part for part in first["loc"] if not (isinstance(part, str) and part.startswith(_ALTERNATIVES))]
    field = ".".join(str(part) for part in place) or "recipe"
    more = "" if len(errors) == 1 else f" ({len(errors) - 1} more to fix)"
    if first["type"] == "extra_forbidden":
        return f"{name}: {field} is not a recipe key; {_closest(str(place[-1]), _known_keys(place[:-1]))}{more}"
    if first["type"] == "missing":
        return f"{name}: {field} is missing; add it{more}"
    if first["type"] == "value_error":
        return f"{name}: {field}: {first['ctx']['error']}{more}"
    if first["type"] in ("model_type", "dict_type"):
        return f"{name}: {field} holds {_kind_of(first['input'])}; expected keys below it, or leave it out{more}"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"{name}: {field} is {first['input']!r}; {message}{more}"


def _known_keys(place: list[int | str]) -> list[str]:
    model: Any = Recipe
    for part in place:
        if isinstance(part, str):
            annotation = model.model_fields[part].annotation
            model = typing.get_args(annotation)[0] if typing.get_args(annotation) else annotation
    return sorted(model.model_fields)


def _closest(given: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


def _kind_of(value: Any) -> str:
    kinds = {type(None): "nothing", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), f"a {type(value).__name__}")
