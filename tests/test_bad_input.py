"""Malformed recipes, prompts and shards: each one sentence on stderr that names what is wrong, exit code 2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from collecting import collect_fake, write_prompts
from small_target import save_small_target

from spot_train.cli import run
from spot_train.shards.store import shard_name

SOUND: dict[str, Any] = {"target": {"path_or_id": "./target"}, "prompts": {"sources": [{"path_or_id": "pool.jsonl"}]}}

RECIPES: dict[str, tuple[Any, str]] = {
    "empty file": ("", "holds nothing; expected sections"),
    "a list": ("- target\n", "holds a list; expected sections"),
    "broken YAML": ("target: [1,\n", "line 2 is not a plain YAML file"),
    "a tab": ("target:\n\tpath_or_id: x\n", "line 2 is not a plain YAML file"),
    "a key twice": ("fit: {epochs: 1}\nfit: {epochs: 2}\n", "fit is written twice"),
    "evaluated Python": ("target: !!python/name:os.system\n", "line 1 is not a plain YAML file"),
    "a date that is none": ("target: 2001-99-99\n", "is not a plain YAML file"),
    "not text": (b"\xff\xfe\x00", "can't be read as a UTF-8 text file"),
    "unknown section": ({"fits": {}}, "fits is not a recipe key; did you mean fit?"),
    "unknown key": ({"fit": {"epoch": 3}}, "fit.epoch is not a recipe key; did you mean epochs?"),
    "unknown source key": (
        {"prompts": {"sources": [{"path_or_id": "x", "spilt": "a"}]}},
        "prompts.sources.0.spilt is not a recipe key; did you mean split?",
    ),
    "no target": ({"target": None}, "target holds nothing; expected keys below it"),
    "no target path": ({"target": {}}, "target.path_or_id is missing"),
    "no sources": ({"prompts": {"sources": []}}, "prompts.sources"),
    "text for a number": ({"fit": {"epochs": "many"}}, "fit.epochs is 'many'"),
    "a boolean for a number": ({"fit": {"epochs": True}}, "epochs is true; expected a whole number"),
    "half a prompt": ({"collect": {"batch_size": 1.5}}, "collect.batch_size is 1.5"),
    "a negative size": ({"collect": {"max_new_tokens": -1}}, "collect.max_new_tokens is -1"),
    "not a number": ({"fit": {"learning_rate": float("nan")}}, "fit.learning_rate is nan"),
    "unknown ranking": ({"rule": {"ranking": "best"}}, "rule.ranking is 'best'"),
    "unknown resolution": ({"rule": {"resolution": "float8"}}, "rule.resolution: got 'float8'; use float32, bfloat16"),
    "resolution too coarse": ({"rule": {"resolution": 0.7}}, "rule.resolution: got 0.7"),
    "top_p of nothing": ({"sampling": {"top_p": 0}}, "sampling.top_p is 0"),
    "all held out": ({"prompts": {"sources": [{"path_or_id": "x"}], "heldout_fraction": 1}}, "heldout_fraction is 1"),
    "two ways to read": (
        {"prompts": {"sources": [{"path_or_id": "x", "field": "a", "template": "{b}"}]}},
        "field and template are both set",
    ),
    "code from the checkpoint": ({"target": {"path_or_id": "./target", "trust_remote_code": True}}, "set it to false"),
    "no such target": ({"target": {"path_or_id": "./nowhere"}}, "nowhere"),
    "no such builtin": ({"target": {"path_or_id": "builtin:data/huge"}}, "not part of this installation"),
}

POOLS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no file": (None, {}, "prompt file pool.jsonl does not exist"),
    "nothing in it": ("", {}, "gave no prompt to decode"),
    "only blanks": ('{"prompt": " "}\n{"prompt": null}\n', {}, "skipped: 2 empty"),
    "broken line": ('{"prompt": "a"}\n{"prompt": "b\n', {}, "line 2 is not valid JSON"),
    "a bare string": ('"a"\n', {}, "line 1 is not a JSON object"),
    "bytes": (b'{"prompt": "\xff\xfe"}\n', {}, "line 1 is not valid JSON"),
    "a number": ('{"prompt": "a"}\n{"prompt": 4}\n', {}, "row 1: prompt is"),
    "an object": ('{"prompt": {"text": "a"}}\n', {}, "row 0: prompt is a dict"),
    "a turn without content": ('{"messages": [{"role": "user"}]}\n', {}, "row 0: a message in messages lacks"),
    "other columns": ('{"text": "a"}\n', {}, "has no column 'prompt'; set prompts.sources.field to one of ['text']"),
    "no such field": ('{"text": "a"}\n', {"field": "txt"}, "has no column 'txt'"),
    "no such placeholder": (
        '{"text": "a"}\n',
        {"template": "{txt}"},
        "has no column 'txt' for prompts.sources.template",
    ),
    "wrong ending": ('{"prompt": "a"}\n', {"path_or_id": "./pool.txt"}, "ends in '.txt'; expected one of"),
    "not Parquet": ('{"prompt": "a"}\n', {"path_or_id": "./pool.parquet"}, "can't be read as parquet"),
    "all too long": (json.dumps({"prompt": "a b c " * 400}) + "\n", {}, "1 too long"),
}


def first(folder: Path) -> Path:
    return folder / shard_name(0)


def edit(file: Path, old: bytes, new: bytes) -> None:
    data = file.read_bytes()
    assert old in data
    file.write_bytes(data.replace(old, new, 1))


SHARDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "is not a folder"),
    "no manifest": (lambda out: (out / "manifest.json").unlink(), "has shards but no manifest.json"),
    "half a manifest": (lambda out: (out / "manifest.json").write_text('{"format"'), "manifest.json is damaged"),
    "another manifest": (lambda out: (out / "manifest.json").write_text("{}"), "manifest.json is damaged"),
    "a future manifest": (
        lambda out: edit(out / "manifest.json", b'"format_version": 1', b'"format_version": 9'),
        "format version 9; this release reads version 1",
    ),
    "no shard": (lambda out: shutil.rmtree(first(out)), "part-00000.zarr is listed in manifest.json but missing"),
    "no root": (lambda out: (first(out) / "zarr.json").unlink(), "part-00000.zarr has no zarr.json"),
    "half a root": (lambda out: (first(out) / "zarr.json").write_text("{"), "has a damaged zarr.json"),
    "no chunk": (lambda out: (first(out) / "slot" / "c" / "0").unlink(), "part-00000.zarr lacks its file slot/c/0"),
    "half a chunk": (
        lambda out: edit(first(out) / "slot" / "c" / "0", b"\x28\xb5", b""),
        "bytes in slot/c/0, expected",
    ),
    "a flipped bit": (
        lambda out: edit(first(out) / "slot" / "c" / "0", b"\x28\xb5", b"\x28\xb4"),
        "slot/c/0 that doesn't match its checksum",
    ),
    "another shape": (
        lambda out: edit(first(out) / "heldout" / "zarr.json", b'"bool"', b'"int8"'),
        "heldout/zarr.json that doesn't match its checksum",
    ),
    "edited attributes": (
        lambda out: edit(first(out) / "zarr.json", b'"float32"', b'"bfloat16"'),
        "attributes that don't match their checksum",
    ),
    "a future shard": (
        lambda out: edit(first(out) / "zarr.json", b'"format_version": 2', b'"format_version": 9'),
        "format version 9; this release reads versions 1 and 2",
    ),
    "swapped shards": (
        lambda out: (shutil.rmtree(first(out)), shutil.copytree(out / shard_name(1), first(out))),
        "part-00000.zarr is not the one that manifest.json lists",
    ),
    "no finished shard": (
        lambda out: [shutil.rmtree(path) for path in out.glob("part-*")] + [empty_manifest(out)],
        "has no finished shard",
    ),
}


def empty_manifest(out: Path) -> None:
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**manifest, "shards": {}}))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small target, a sound pool and a finished collection."""
    folder = tmp_path_factory.mktemp("place")
    save_small_target(folder / "target")
    collect_fake(write_prompts(folder / "ids.jsonl", 6), folder / "shards")
    return folder


def one_sentence(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail; returns its one line on stderr."""
    capsys.readouterr()
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.strip().splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("error: ")
    assert len(lines[0]) > 30
    return lines[0]


@pytest.mark.parametrize("name", RECIPES)
def test_a_malformed_recipe(name: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, expected = RECIPES[name]
    file = tmp_path / "recipe.yaml"
    if isinstance(content, dict):
        content = yaml.safe_dump({**SOUND, **content})
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    error = one_sentence(capsys, "collect", str(file), "--out", str(tmp_path / "out"))
    assert expected in error
    if "no such" not in name and "code" not in name:
        assert str(file) in error


@pytest.mark.parametrize("name", POOLS)
def test_a_malformed_pool(name: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, source, expected = POOLS[name]
    source = {"path_or_id": "pool.jsonl", **source}
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / source["path_or_id"]).write_bytes(data)
    tree = {"target": {"path_or_id": str(place / "target")}, "prompts": {"sources": [source]}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    error = one_sentence(capsys, "collect", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "out"))
    assert expected in error
    assert not list((tmp_path / "out").glob("part-*"))


@pytest.mark.parametrize("name", SHARDS)
def test_malformed_shards(name: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, expected = SHARDS[name]
    out = tmp_path / "shards"
    shutil.copytree(place / "shards", out)
    damage(out)
    assert expected in one_sentence(capsys, "shards", "verify", str(out))
    fit = ("fit", "builtin:recipes/tiny.yaml", "--data", str(out), "--out", str(tmp_path / "fit"))
    assert expected in one_sentence(capsys, *fit)
    assert not (tmp_path / "fit").exists()


def test_there_are_at_least_thirty() -> None:
    assert len(RECIPES) + len(POOLS) + len(SHARDS) >= 30


def test_commands_that_are_no_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["colect"], ["collect"], ["collect", "x.yaml"], ["shards", "verify"], ["eval", "--budget", "0"]):
        assert run(arguments) == 2
        assert "Traceback" not in capsys.readouterr().err
    assert "does not exist" in one_sentence(capsys, "collect", "nowhere.yaml", "--out", str(tmp_path))
    (tmp_path / "file").write_text("")
    wrong = ("collect", "builtin:recipes/tiny.yaml", "--out", str(tmp_path / "file"))
    assert "can't be made a folder" in one_sentence(capsys, *wrong)
    assert "not section.key=value" in one_sentence(capsys, "recipe", "show", "builtin:recipes/tiny.yaml", "--set", "x")
    damaged = tmp_path / "no.ckpt"
    damaged.write_bytes(b"PK")
    assert "no.ckpt" in one_sentence(capsys, "export", str(damaged), "--out", str(tmp_path / "drafter"))
    bitwise = ("compare", "builtin:recipes/tiny.yaml", "--drafter", str(tmp_path), "--set", "decode.bitwise=true")
    assert "use a --budget that is a number" in one_sentence(capsys, *bitwise, "--budget", "auto", "--budget", "8")
    assert "leave pad out" in one_sentence(capsys, *bitwise, "--set", "decode.pad=true")
    scored = ("eval", "--drafter", str(tmp_path), "--data", str(tmp_path))
    assert "error: " in one_sentence(capsys, *scored)
