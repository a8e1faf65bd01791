"""Loading that needs accelerate: spread by device_map, sharded by tp_plan, quantised; and one sentence without it.

The tests that load so are skipped where accelerate is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_families import MASK, SAVERS, STOP
from small_target import save_small_target

from spot_infer import GenerationConfig, SpotError, generate, load_target

REPO = Path(__file__).resolve().parent.parent
PROMPTS = [[5, 6, 7], [8] * 6]
HERE: dict[str, Any] = {"dtype": "float32", "device": "cpu", "block_length": 4, "mask_id": MASK, "stop_ids": [STOP]}
with_accelerate = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is missing")


def tokens(target: Any) -> list[tuple[int, ...]]:
    return [result.tokens for result in generate(target, PROMPTS, GenerationConfig(max_new_tokens=6))]


def quantised(folder: Path, method: dict[str, Any]) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": method}))
    return folder


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is not None, reason="accelerate is installed")
def test_without_accelerate_spreading_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_small_target(tmp_path)
    with pytest.raises(SpotError, match=r"device_map is 'auto'.* needs accelerate.*pip install accelerate"):
        load_target(folder, device_map="auto")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SpotError, match=r"tp_plan is 'auto'.* needs accelerate.*pip install accelerate"):
        load_target(folder, tp_plan="auto")


@pytest.mark.parametrize("method", ["torchao", "awq", "gptq", "bitsandbytes", "compressed-tensors"])
def test_a_quantised_checkpoint_whose_package_is_missing_is_one_sentence(method: str, tmp_path: Path) -> None:
    package = {"awq": "gptqmodel", "gptq": "optimum"}.get(method, method.replace("-", "_"))
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    kinds = {"torchao": {"quant_type": "int8_weight_only"}, "gptq": {"bits": 4}, "bitsandbytes": {"load_in_8bit": True}}
    folder = quantised(save_small_target(tmp_path), {"quant_method": method, **kinds.get(method, {})})
    with pytest.raises(SpotError, match=r"the weights could not be loaded as \S+ quantised \(") as raised:
        load_target(folder)
    assert "\n" not in str(raised.value) and method in str(raised.value)


def test_a_way_of_quantising_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    for method in ({"quant_method": "no-such-method"}, {"bits": 4}):
        shutil.rmtree(tmp_path / "target", ignore_errors=True)
        with pytest.raises(SpotError, match=r"quantization_config is .*, which this transformers can't load"):
            load_target(quantised(save_small_target(tmp_path / "target"), method))


@with_accelerate
@pytest.mark.parametrize("device_map", ["cpu", "auto", {"": "cpu"}])
def test_a_model_spread_by_device_map_decodes_the_same(device_map: Any, tmp_path: Path) -> None:
    SAVERS["llada2_moe"](tmp_path)
    assert tokens(load_target(tmp_path, device_map=device_map, **HERE)) == tokens(load_target(tmp_path, **HERE))


@with_accelerate
def test_an_fp8_checkpoint_loads_as_transformers_loads_it(tmp_path: Path) -> None:
    SAVERS["sdar"](tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    plain = {name: weight for name, weight in weights.items() if "proj" not in name}
    expected = {}
    for name in weights.keys() - plain.keys():
        scale = weights[name].abs().max() / 448.0
        plain[name] = (weights[name] / scale).to(torch.float8_e4m3fn)
        blocks = [-(-side // 16) for side in weights[name].shape]
        plain[f"{name}_scale_inv"] = scale.expand(blocks).contiguous()
        expected[name] = plain[name].float() * scale
    save_file(plain, tmp_path / "model.safetensors")
    quantised(tmp_path, {"quant_method": "fp8", "weight_block_size": [16, 16], "activation_scheme": "dynamic"})
    target: Any = load_target(tmp_path, **HERE)
    for name, weight in target.model.state_dict().items():
        if name in expected and not torch.cuda.is_available():  # a GPU keeps fp8
            assert torch.allclose(weight.float(), expected[name], rtol=1e-2, atol=1e-4), name
    assert all(tokens(target))


SHARDED = """
import sys
import torch
from torch.distributed.tensor import DTensor
from test_sharded_loading import HERE, tokens
from spot_infer import load_target

for folder in sys.argv[1:]:
    target = load_target(folder, tp_plan="auto", **HERE)
    sharded = sum(isinstance(weight, DTensor) for weight in target.model.parameters())
    alone = load_target(folder, **HERE)
    print(torch.distributed.get_rank(), folder, sharded > 0, tokens(target) == tokens(alone), flush=True)
"""


@with_accelerate
@pytest.mark.slow
def test_two_processes_share_every_layer_and_decode_the_same(tmp_path: Path) -> None:
    families = ("sdar", "sdar_moe", "llada2_moe", "llada", "Dream")
    for family in families:
        SAVERS[family](tmp_path / family)
    (tmp_path / "sharded.py").write_text(SHARDED)
    path = os.pathsep.join([str(REPO), str(REPO / "tests"), str(REPO / "data"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    folders = [str(tmp_path / family) for family in families]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ran = subprocess.run(
        [*torchrun, str(tmp_path / "sharded.py"), *folders],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    expected = {f"{rank} {folder} True True" for rank in (0, 1) for folder in folders}
    assert {line.split(":")[-1] for line in ran.stdout.splitlines() if line} == expected
