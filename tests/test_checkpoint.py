"""The exported drafter: reads back bit for bit, and every kind of damage is one named error before any forward."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spot_infer import load_drafter as public_load_drafter
from spot_infer.checkpoint import DrafterInfo, PretrainedDrafter, config_json, load_drafter, save_drafter
from spot_infer.drafters import DraftSettings
from spot_infer.errors import SpotError
from spot_infer.features import FeatureKind
from spot_infer.order_model import OrderModel, OrderModelConfig, Scorer
from spot_infer.transition import CommitRule

CONFIG = OrderModelConfig(
    8, d_model=16, heads=2, layers=1, feed_forward=16, head_hidden=8, rule=CommitRule(resolution="bfloat16")
)


def make_drafter(scorer: Scorer = "per_level", features: FeatureKind = "v1") -> PretrainedDrafter:
    torch.manual_seed(0)
    model = OrderModel(replace(CONFIG, scorer=scorer, features=features))
    torch.nn.init.normal_(model.head_out.weight if scorer == "per_level" else model.set_head.out.weight)
    info = DrafterInfo({"name": "fake", "block_length": 8}, {"steps": 3}, {"accuracy": 0.5}, card="---\n---\n# Card\n")
    return PretrainedDrafter(model, DraftSettings(tau=1.5, merged=False), info)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_drafter(make_drafter(), tmp_path / "drafter")
    return tmp_path / "drafter"


@pytest.mark.parametrize("features", ["v1", "v2"])
@pytest.mark.parametrize("scorer", ["per_level", "one_call"])
def test_a_drafter_reads_back_bit_for_bit(scorer: Scorer, features: FeatureKind, tmp_path: Path) -> None:
    folder = tmp_path / "drafter"
    save_drafter(make_drafter(scorer, features), folder)
    written, loaded = make_drafter(scorer, features), load_drafter(folder)
    assert config_json(loaded)["feature_version"] == int(features[1])
    assert config_json(loaded) == config_json(written)
    assert loaded.info.card == written.info.card
    assert loaded.settings == written.settings
    stored = loaded.model.state_dict()
    assert all(torch.equal(stored[name], tensor) for name, tensor in written.model.state_dict().items())
    assert sorted(file.name for file in folder.iterdir()) == [
        "README.md",
        "config.json",
        "golden.safetensors",
        "model.safetensors",
    ]
    assert public_load_drafter is load_drafter


def test_a_config_without_a_scorer_is_per_level(folder: Path) -> None:
    edit_config(lambda c: c["model"].pop("scorer"))(folder)
    assert config_json(load_drafter(folder)) == config_json(make_drafter())


@pytest.mark.parametrize("tensor", ["code.weight", "offset", "sharpness"])
def test_a_changed_one_call_head_is_noticed(tensor: str, tmp_path: Path) -> None:
    save_drafter(make_drafter("one_call"), tmp_path)
    edit_tensors(set_tensor(f"set_head.{tensor}", lambda t: t + 0.01 * torch.randn_like(t)))(tmp_path)
    with pytest.raises(SpotError, match=r"golden\.safetensors.*log_q differs"):
        load_drafter(tmp_path)


@pytest.mark.parametrize("tensor", ["root", "best", "before"])
def test_the_golden_input_of_version_2_reads_roots_and_tables_before(tensor: str, tmp_path: Path) -> None:
    save_drafter(make_drafter(features="v2"), tmp_path)
    changes = {"root": lambda t: ~t, "best": lambda t: t * 0, "before": lambda t: t * 0 - 1}
    edit_tensors(set_tensor(tensor, changes[tensor]), "golden.safetensors")(tmp_path)
    with pytest.raises(SpotError, match=r"golden\.safetensors.*log_q differs"):
        load_drafter(tmp_path)


def test_a_golden_input_without_roots_is_no_one_call_drafters(tmp_path: Path) -> None:
    save_drafter(make_drafter("one_call"), tmp_path)
    edit_tensors(lambda t: t.pop("root"), "golden.safetensors")(tmp_path)
    with pytest.raises(SpotError, match=r"expected .*'root'"):
        load_drafter(tmp_path)


def test_saving_twice_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    load_drafter(folder).save_pretrained(tmp_path / "again")
    for file in folder.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


def edit_config(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))

    return damage


def edit_tensors(
    change: Callable[[dict[str, torch.Tensor]], object], file: str = "model.safetensors"
) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / file)
        change(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / file)

    return damage


def truncate(file: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: len(content) * 2 // 3])

    return damage


def set_tensor(
    name: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.__setitem__(name, change(tensors[name]))


SQUARE = "layers.0.attention_out.weight"
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing tensor": (edit_tensors(lambda t: t.pop("norm.bias")), r"model\.safetensors.*norm\.bias"),
    "extra tensor": (edit_tensors(lambda t: t.update(spare=torch.zeros(2))), r"model\.safetensors.*spare"),
    "renamed tensor": (
        edit_tensors(lambda t: t.update(nrm=t.pop("norm.bias"))),
        r"lacks tensors \['norm\.bias'\].*nrm",
    ),
    "transposed tensor": (edit_tensors(set_tensor("input.weight", torch.t)), r"input\.weight.*\[74, 16\].*transposed"),
    "transposed square tensor": (edit_tensors(set_tensor(SQUARE, torch.t)), r"golden\.safetensors.*log_q differs"),
    "changed weight": (edit_tensors(set_tensor("head_in.bias", lambda t: t + 0.01)), r"golden\.safetensors.*log_q"),
    "weight that is no number": (edit_tensors(set_tensor("norm.bias", lambda t: t * torch.nan)), r"log_q"),
    "half precision": (edit_tensors(set_tensor("norm.bias", torch.Tensor.half)), r"norm\.bias.*F16.*float32"),
    "truncated weights": (truncate("model.safetensors"), r"model\.safetensors is truncated"),
    "truncated golden input": (truncate("golden.safetensors"), r"golden\.safetensors is truncated"),
    "truncated config": (truncate("config.json"), r"config\.json is not readable JSON"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), r"model\.safetensors does not exist"),
    "no golden input": (lambda folder: (folder / "golden.safetensors").unlink(), r"golden\.safetensors does not exist"),
    "no config": (lambda folder: (folder / "config.json").unlink(), r"config\.json does not exist"),
    "another format": (edit_config(lambda c: c.update(format="gguf")), r"format is 'gguf'"),
    "a later format version": (edit_config(lambda c: c.update(format_version=2)), r"format_version is 2.*spot-dlm"),
    "a later feature version": (edit_config(lambda c: c.update(feature_version=3)), r"feature_version is 3.*1 and 2"),
    "features of another version": (
        edit_config(lambda c: c["model"].update(features="v2")),
        r"feature_version is 1, but",
    ),
    "no format version": (edit_config(lambda c: c.pop("format_version")), r"format_version is None"),
    "an unknown key": (edit_config(lambda c: c.update(colour="red")), r"config\.json has unknown keys \['colour'\]"),
    "a missing key": (edit_config(lambda c: c.pop("draft")), r"config\.json .*lacks \['draft'\]"),
    "another block length": (edit_config(lambda c: c["model"].update(block_length=4)), r"model\.block_length is 4"),
    "another model size": (edit_config(lambda c: c["model"].update(d_model=32)), r"model\.safetensors.*shape"),
    "a mistyped size": (edit_config(lambda c: c["model"].update(heads="two")), r"config\.json: model\.heads"),
    "an unknown rule": (
        edit_config(lambda c: c["model"]["rule"].update(resolution="int8")),
        r"config\.json.*resolution",
    ),
    "a mistyped rule": (edit_config(lambda c: c["model"]["rule"].update(threshold="x")), r"config\.json"),
    "a zero tau": (edit_config(lambda c: c["draft"].update(tau=0)), r"config\.json: draft\.tau"),
    "golden of another block length": (
        edit_tensors(lambda t: t.update(slot=t["slot"] + 5), "golden.safetensors"),
        r"golden\.safetensors holds no tables",
    ),
    "golden without scores": (edit_tensors(lambda t: t.pop("log_q"), "golden.safetensors"), r"golden\.safetensors has"),
}


@pytest.mark.parametrize("name", list(DAMAGE))
def test_damage_is_one_named_error(folder: Path, name: str) -> None:
    damage, message = DAMAGE[name]
    damage(folder)
    with pytest.raises(SpotError, match=message) as error:
        load_drafter(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("place", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_a_place_without_a_drafter_is_named(place: str) -> None:
    with pytest.raises(SpotError, match="does not exist"):
        load_drafter(place)


def test_a_file_is_not_a_drafter(folder: Path) -> None:
    with pytest.raises(SpotError, match="is a file"):
        load_drafter(folder / "config.json")


def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SpotError, match="holds no drafter"):
        save_drafter(make_drafter(), tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_a_failed_save_leaves_the_old_drafter(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    broken = make_drafter()
    broken.info.metrics["figure"] = object()
    with pytest.raises(TypeError):
        save_drafter(broken, folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [file.name for file in folder.parent.iterdir()] == ["drafter"]


def test_a_hub_id_loads_from_the_hubs_cache(folder: Path, tmp_path: Path) -> None:
    repository = tmp_path / "cache" / "models--someone--drafter"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, repository / "snapshots" / ("0" * 40))
    hub = {"cache_dir": tmp_path / "cache", "local_files_only": True}
    loaded = PretrainedDrafter.from_pretrained("someone/drafter", **hub)  # type: ignore[arg-type]
    assert config_json(loaded) == config_json(load_drafter(folder))
    with pytest.raises(SpotError, match="no drafter at someone/other"):
        PretrainedDrafter.from_pretrained("someone/other", **hub)  # type: ignore[arg-type]
