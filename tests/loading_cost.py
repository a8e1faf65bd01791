"""Wall time and peak memory of loading a random checkpoint of 1 to 2 GB of each family, one at a time.

    python tests/loading_cost.py            # all families, as a Markdown table
    python tests/loading_cost.py Dream      # one
    python tests/loading_cost.py --dtype float32

`test_loading_cost.py` measures every family so and holds the peak below 1.3 times the weights.

A checkpoint of the published vocabulary is written in bfloat16 to a temporary folder, loaded by `load_target` in a new
process in bfloat16 or the dtype given, every page of its weights touched, and deleted. Peak: ru_maxrss less what the
process held before it loaded.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GIGABYTE = 10**9
sys.path.append(str(Path(__file__).resolve().parent.parent / "data"))  # as pytest's own path has it
SHAPES: dict[str, dict[str, int]] = {
    "sdar": {"vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 8},
    "sdar_moe": {"vocab_size": 151936, "hidden_size": 1024, "num_experts": 20, "moe_intermediate_size": 512},
    "llada2_moe": {"vocab_size": 157184, "hidden_size": 1024, "experts": 20, "moe_intermediate_size": 512},
    "llada": {"vocab_size": 126464, "hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 10},
    "Dream": {"vocab_size": 152064, "hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 8},
}
for _name in ("sdar_moe", "llada2_moe"):
    SHAPES[_name] |= {"num_hidden_layers": 12, "intermediate_size": 2048}
for _shape in SHAPES.values():
    _shape |= {"num_attention_heads": _shape["hidden_size"] // 128}


def write(family: str, folder: Path) -> None:
    """A random checkpoint under the official names."""
    import torch
    from small_families import SAVERS

    shape = dict(SHAPES[family])
    if family != "llada":
        shape |= {"num_key_value_heads": 4}
        shape |= {} if family == "Dream" else {"head_dim": 128}
    else:
        shape |= {"num_key_value_heads": shape["num_attention_heads"]}
    SAVERS[family](folder, dtype=torch.bfloat16, **shape)


def peak_bytes() -> int:
    """Most memory this process has had resident, mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def load(folder: Path, dtype: str) -> dict[str, Any]:
    """Load in this process, which has only imported, and touch every page."""
    from spot_infer import load_target

    before, started = peak_bytes(), time.perf_counter()
    target: Any = load_target(folder, dtype=dtype, device="cpu", block_length=32, mask_id=5, stop_ids=[6])
    tensors = [*target.model.parameters(), *target.model.buffers()]
    touched = sum(tensor.detach().reshape(-1)[::1024].float().sum().item() for tensor in tensors)
    seconds = time.perf_counter() - started
    weights = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return {"seconds": seconds, "weights": weights, "peak": peak_bytes() - before, "touched": touched}


def measure(family: str, dtype: str = "bfloat16") -> dict[str, Any]:
    """Write, load and delete one family's checkpoint."""
    with tempfile.TemporaryDirectory(prefix="spot-loading-") as folder:
        child = [sys.executable, __file__, "--child", family, folder, dtype]
        subprocess.run([*child, "write"], check=True, stderr=subprocess.DEVNULL)
        size = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))
        ran = subprocess.run([*child, "load"], check=True, capture_output=True, text=True)
        return {"file": size, **json.loads(ran.stdout.splitlines()[-1])}


HEAD = ("family", "checkpoint, GB", "weights loaded, GB", "seconds", "peak, GB", "peak / weights")


def cells(family: str, one: dict[str, Any]) -> list[str]:
    """One measurement, in the order of HEAD."""
    file, weights, peak = (one[name] / GIGABYTE for name in ("file", "weights", "peak"))
    return [family, f"{file:.2f}", f"{weights:.2f}", f"{one['seconds']:.1f}", f"{peak:.2f}", f"{peak / weights:.2f}"]


def main(arguments: list[str]) -> None:
    """The table, or one child's half of a measurement."""
    if arguments[:1] == ["--child"]:
        _, family, folder, dtype, what = arguments
        print(json.dumps(load(Path(folder), dtype))) if what == "load" else write(family, Path(folder))
        return
    dtype = "bfloat16"
    if arguments[:1] == ["--dtype"]:
        _, dtype, *arguments = arguments
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
    for family in arguments or SHAPES:
        print(f"| {' | '.join(cells(family, measure(family, dtype)))} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
