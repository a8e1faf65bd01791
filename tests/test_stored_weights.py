"""Weights read from where they lie: what was saved, pages returned once copied, writes kept, damage in a sentence."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_families import MASK, SAVERS, STOP
from torch import Tensor

from spot_infer import SpotError, load_target
from spot_infer.targets.stored_weights import stored_weights

HERE: dict[str, Any] = {"device": "cpu", "block_length": 4, "mask_id": MASK, "stop_ids": [STOP]}
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def resident_bytes(file: Path) -> int:
    """Bytes of `file` that this process has in memory through mappings."""
    counted, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            ours = line.endswith(str(file))
        elif ours and line.startswith("Rss:"):
            counted += int(line.split()[1]) * 1024
    return counted


def some_weights() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2)
    weights = {str(dtype): torch.randn(5, 3, generator=random).to(dtype) for dtype in dtypes}
    weights |= {str(dtype): torch.arange(7).to(dtype) for dtype in (torch.int64, torch.int32, torch.int16, torch.int8)}
    return weights | {"bool": torch.tensor([True, False]), "one": torch.tensor(2.5), "none": torch.zeros(0, 4)}


def test_every_dtype_and_shape_is_read_as_it_was_saved_from_one_file_or_several(tmp_path: Path) -> None:
    weights = some_weights()
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    save_file(weights, tmp_path / "whole" / "model.safetensors", metadata={"format": "pt"})
    for part, own in parts.items():
        save_file({name: weights[name] for name in own}, tmp_path / "parts" / part)
    index = {"weight_map": {name: part for part, own in parts.items() for name in own}}
    (tmp_path / "parts" / "model.safetensors.index.json").write_text(json.dumps(index))
    for folder in ("whole", "parts"):
        with stored_weights(tmp_path / folder, {}) as stored:
            assert stored.keys() == weights.keys()
            for name, weight in weights.items():
                read = stored[name][...]
                assert (read.dtype, read.shape) == (weight.dtype, weight.shape)
                assert torch.equal(read.double(), weight.double()), name
            assert torch.equal(stored["torch.int64"][2:4], weights["torch.int64"][2:4])


def test_fused_rows_are_read_as_their_parts(tmp_path: Path) -> None:
    weights = {"0.fused.weight": torch.randn(7, 5), "0.fused.bias": torch.randn(7), "other": torch.randn(2)}
    save_file(weights, tmp_path / "model.safetensors")
    with stored_weights(tmp_path, {".fused.": {".a.q.": 4, ".k.": 2, ".v.": 1}}) as stored:
        read = {name: one[...] for name, one in stored.items()}
        assert [stored["0.a.q.weight"].get_shape(), stored["0.v.bias"].get_shape()] == [[4, 5], [1]]
        assert read.keys() == {
            "other",
            *(f"0.{part}.{kind}" for part in ("a.q", "k", "v") for kind in ("weight", "bias")),
        }
        for kind in ("weight", "bias"):
            together = torch.cat([read[f"0.{part}.{kind}"] for part in ("a.q", "k", "v")])
            assert torch.equal(together, weights[f"0.fused.{kind}"])
    with (
        pytest.raises(SpotError, match=r"fused weights have 7 rows, but config\.json makes them \[4, 2\]"),
        stored_weights(tmp_path, {".fused.": {".a.q.": 4, ".k.": 2}}),
    ):
        pass


@on_linux
def test_pages_are_returned_when_what_was_read_dies_and_can_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    weight = torch.randn(1000, 1000)
    save_file({"weight": weight}, file)
    with stored_weights(tmp_path, {}) as stored:
        read = stored["weight"][...]
        assert torch.equal(read, weight) and resident_bytes(file) >= weight.nbytes
        parameter = torch.nn.Parameter(read)
        del read
        assert resident_bytes(file) < weight.nbytes / 10
        assert torch.equal(parameter, weight)
    assert torch.equal(parameter, weight)


@on_linux
@pytest.mark.parametrize("family", ["llada2_moe", "sdar_moe"])
def test_experts_do_not_stay_in_memory_beside_their_stack(family: str, tmp_path: Path) -> None:
    SAVERS[family](tmp_path, moe_intermediate_size=1024, hidden_size=256)
    target: Any = load_target(tmp_path, dtype="float32", **HERE)
    file = tmp_path / "model.safetensors"
    stacked = [weight.nbytes for name, weight in target.model.named_parameters() if "experts." in name]
    assert sum(stacked) > file.stat().st_size / 2
    assert resident_bytes(file) < file.stat().st_size / 4


@pytest.mark.parametrize("before", [None, "0"])
def test_the_environment_is_as_it_was_after_a_load(
    before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_DEACTIVATE_ASYNC_LOAD", raising=False)
    if before is not None:
        monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", before)
    save_file({"one": torch.zeros(2)}, tmp_path / "model.safetensors")
    with stored_weights(tmp_path, {}):
        assert os.environ["HF_DEACTIVATE_ASYNC_LOAD"] == "1"
    assert os.environ.get("HF_DEACTIVATE_ASYNC_LOAD") == before


def test_weights_can_be_written_to_once_they_are_loaded(tmp_path: Path) -> None:
    SAVERS["sdar"](tmp_path)
    target: Any = load_target(tmp_path, dtype="float32", **HERE)
    before = {name: weight.clone() for name, weight in target.model.state_dict().items()}
    with torch.no_grad():
        for weight in target.model.parameters():
            weight += 1
    gc.collect()
    assert all(torch.equal(weight, before[name] + 1) for name, weight in target.model.state_dict().items())
    again: Any = load_target(tmp_path, dtype="float32", **HERE)
    assert all(torch.equal(weight, before[name]) for name, weight in again.model.state_dict().items())


def test_damaged_and_missing_weights_are_one_sentence(tmp_path: Path) -> None:
    SAVERS["sdar"](tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    for damaged in (whole[:-9], whole[:40], b"", b"\xff" * 64):
        file.write_bytes(damaged)
        with pytest.raises(SpotError, match=r"the weights could not be loaded \("):
            load_target(tmp_path, **HERE)
    header = json.dumps({"scale": {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(SpotError, match=r"scale is of dtype F8_E8M0, but config\.json has no quantization_config"):
        load_target(tmp_path, **HERE)
    file.unlink()
    with pytest.raises(SpotError, match=r"holds neither model\.safetensors nor"):
        load_target(tmp_path, **HERE)
    index = tmp_path / "model.safetensors.index.json"
    for text, said in (('{"weight_map": {"a": "x.safetensors"}}', "No such file"), ("{}", "with a weight_map")):
        index.write_text(text)
        with pytest.raises(SpotError, match=said):
            load_target(tmp_path, **HERE)
