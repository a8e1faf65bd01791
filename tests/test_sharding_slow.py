"""Tensor parallelism by transformers' own plan: two processes under torchrun decode what one does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_families import save_sdar

from spot_infer import GenerationConfig, generate, load_target

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys
import torch
from spot_infer import GenerationConfig, generate, load_target
target = load_target(sys.argv[1], dtype="float32", device="cpu", tp_plan="auto")
(result,) = generate(target, [[5, 6, 7, 8]], GenerationConfig(max_new_tokens=8))
with open(f"{sys.argv[1]}/rank{os.environ['RANK']}.json", "w") as file:
    json.dump(result.tokens, file)
torch.distributed.destroy_process_group()  # else its threads may outlive the interpreter, which aborts
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this build of torch has no process groups")
def test_two_processes_decode_what_one_does(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers shards a model with accelerate")
    folder = tmp_path / "target"
    save_sdar(folder)
    (tmp_path / "run.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*command, str(tmp_path / "run.py"), str(folder)], check=True, timeout=300)
    target = load_target(folder, dtype="float32", device="cpu")
    (alone,) = generate(target, [[5, 6, 7, 8]], GenerationConfig(max_new_tokens=8))
    for rank in range(2):
        assert tuple(json.loads((folder / f"rank{rank}.json").read_text())) == alone.tokens
