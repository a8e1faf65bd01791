"""Trains a tiny target of either family with the block-diffusion objective and exports it.

    python data/train_target.py --out my-target --hours 2

The folder's config.json says which family and what sizes. `--init` starts from another target's weights.
The loss is cross-entropy at masked answer tokens only. The learning rate follows the share of the
budget that is spent, which is `--hours` of training time or, for a run that repeats bit for bit,
`--steps`. Problems are drawn fresh from the generator, never from heldout or eval. Stopping and
starting again continues from the checkpoint in `--state`.
"""

import argparse
import copy
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from block_batches import Batch, Encoder, step_batches
from muon import Muon
from official_names import llada2_names
from safetensors.torch import load_file, save_file
from target_forward import masked_logits
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from spot_infer.targets.family import family_of

WARMUP_STEPS = 60
EMA_DECAY = 0.995
EXPERT_BIAS_STEP = 1e-3


@dataclass
class Run:
    """Everything that a checkpoint holds."""

    model: PreTrainedModel
    average: PreTrainedModel
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    elapsed_s: float = 0.0


def new_model(folder: Path) -> PreTrainedModel:
    """A freshly initialised model of `folder`'s config."""
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model_class, config = family_of(fields["model_type"], str(folder)).native(fields)
    return model_class._from_config(config, dtype=torch.float32, experts_implementation="eager")


def block_length(folder: Path) -> int:
    """What config.json says or, where it has no field for it, the family."""
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    length = fields.get("block_size") or family_of(fields["model_type"], str(folder)).block_length
    assert length is not None
    return int(length)


def new_run(model: PreTrainedModel, matrix_lr: float, other_lr: float, pool: ThreadPoolExecutor) -> Run:
    """The model with its optimizers: Muon for the layers' matrices and experts, AdamW for routers and the rest."""
    matrices: list[torch.nn.Parameter] = []
    fused: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or "layers" not in name or name.endswith("mlp.gate.weight"):
            others.append(parameter)
        else:
            (fused if name.endswith("gate_up_proj") else matrices).append(parameter)
    groups: list[dict[str, Any]] = [{"params": matrices}, *([{"params": fused, "fused": 2}] if fused else [])]
    optimizers = [
        Muon(groups, lr=matrix_lr, weight_decay=0.01, pool=pool),
        torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return Run(model, copy.deepcopy(model), optimizers)


def save_state(run: Run, path: Path) -> None:
    """Writes the checkpoint by atomic rename."""
    state = {
        "model": run.model.state_dict(),
        "average": run.average.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in run.optimizers],
        "step": run.step,
        "elapsed_s": run.elapsed_s,
    }
    partial = path.with_name(path.name + ".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def load_state(run: Run, path: Path) -> None:
    """Continues from a checkpoint; the peak learning rates stay those of the command line."""
    state = torch.load(path, weights_only=True)
    run.model.load_state_dict(state["model"])
    run.average.load_state_dict(state["average"])
    for optimizer, saved in zip(run.optimizers, state["optimizers"], strict=True):
        peaks = [group["peak_lr"] for group in optimizer.param_groups]
        optimizer.load_state_dict(saved)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["peak_lr"] = peak
    run.step, run.elapsed_s = state["step"], state["elapsed_s"]


def export(model: PreTrainedModel, folder: Path) -> None:
    """Writes half-precision weights under the official names by atomic rename."""
    weights = model.state_dict()
    if model.config.model_type == "glm4_moe":
        weights = llada2_names(weights)
    tensors = {name: t.to(torch.float16).contiguous() for name, t in weights.items()}
    partial = folder / "model.safetensors.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    os.replace(partial, folder / "model.safetensors")


def rate(step: int, share: float) -> float:
    """Learning rate as a part of its peak: warm-up, plateau to 65% of the budget, then to 0."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * min(1.0, max(0.0, 1.0 - share) / 0.35)


@dataclass
class Counts:
    """Sums over answer tokens of some batches, and the tokens [E] that each expert of each layer took."""

    loss: float
    correct: float
    counted: float
    loads: list[torch.Tensor]

    def __add__(self, other: "Counts") -> "Counts":
        loads = [a + b for a, b in zip(self.loads, other.loads, strict=True)]
        return Counts(self.loss + other.loss, self.correct + other.correct, self.counted + other.counted, loads)


def gradients(model: PreTrainedModel, batch: Batch) -> tuple[Sequence[torch.Tensor], Counts]:
    """Gradients of the weighted loss sum, and what was counted."""
    logits, loads = masked_logits(model, batch)
    loss = functional.cross_entropy(logits, batch.labels, reduction="none")
    loss = (loss * batch.weights).sum()
    grads = torch.autograd.grad(loss, list(model.parameters()))
    real = batch.weights == 1
    correct = float(((logits.argmax(-1) == batch.labels) & real).sum())
    return grads, Counts(loss.item(), correct, float(real.sum()), loads)


@torch.no_grad()
def balance_experts(model: PreTrainedModel, loads: list[torch.Tensor]) -> None:
    """Moves every router's selection bias by one step towards equal loads, as LLaDA2.0's expert_bias is for."""
    biases = [buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]
    for bias, load in zip(biases, loads, strict=True):
        bias.add_(torch.sign(load.float().mean() - load), alpha=EXPERT_BIAS_STEP)


def train_step(run: Run, batches: list[Batch], factor: float, pool: ThreadPoolExecutor) -> tuple[float, float]:
    """One optimizer step; returns the loss and the accuracy at masked answer tokens.

    Each thread works on whole batches and the sums keep the order of the batches, so the result
    does not depend on the threads and a busy core delays one batch, not every operation.
    """
    total = sum(float(batch.weights.sum()) for batch in batches)
    parameters: list[torch.Tensor] = list(run.model.parameters())
    grads, counts = zip(*pool.map(lambda batch: gradients(run.model, batch), batches), strict=True)
    summed = list(grads[0])
    for other in grads[1:]:
        torch._foreach_add_(summed, other)
    torch._foreach_div_(summed, total)
    for parameter, grad in zip(parameters, summed, strict=True):
        parameter.grad = grad
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
        optimizer.step()
    counted = reduce(add, counts)
    balance_experts(run.model, counted.loads)
    decay = min(EMA_DECAY, (1 + run.step) / (20 + run.step))
    with torch.no_grad():
        torch._foreach_lerp_([*run.average.parameters()], parameters, 1 - decay)
        for average, buffer in zip(run.average.buffers(), run.model.buffers(), strict=True):
            average.lerp_(buffer, 1 - decay)
    run.step += 1
    return counted.loss / total, counted.correct / max(counted.counted, 1.0)


def longest_tokens(share: float) -> int:
    """Short rows first, so that copying is learnt early, then every length."""
    return 64 if share < 0.04 else 3200


def train(run: Run, encoder: Encoder, pool: ThreadPoolExecutor, args: argparse.Namespace) -> None:
    """The loop: until the budget is spent, with a checkpoint and an export now and then."""
    saved_s = exported_s = time.monotonic()
    mean_loss = mean_accuracy = 0.0
    while True:
        started_s = time.monotonic()
        spent = run.step / args.steps if args.steps else run.elapsed_s / (args.hours * 3600)
        if spent >= 1:
            break
        batches = step_batches(encoder, args.seed, run.step, args.rows, longest_tokens(spent))
        loss, accuracy = train_step(run, batches, rate(run.step, spent), pool)
        mean_loss, mean_accuracy = mean_loss + loss, mean_accuracy + accuracy
        now_s = time.monotonic()
        run.elapsed_s += now_s - started_s
        if run.step % args.log_every == 0:
            print(
                f"step {run.step} share {spent:.3f} elapsed_s {run.elapsed_s:.0f} "
                f"loss {mean_loss / args.log_every:.4f} "
                f"accuracy {mean_accuracy / args.log_every:.4f} step_s {now_s - started_s:.2f}",
                flush=True,
            )
            mean_loss = mean_accuracy = 0.0
        if now_s - saved_s > args.save_minutes * 60:
            save_state(run, args.state)
            saved_s = now_s
        if now_s - exported_s > args.export_minutes * 60:
            export(run.average, args.out)
            exported_s = now_s
    save_state(run, args.state)
    export(run.average, args.out)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder with config and tokenizer")
    parser.add_argument("--init", type=Path, help="folder of a target whose weights the training starts from")
    parser.add_argument("--state", type=Path, default=Path("tiny-target-training.pt"))
    parser.add_argument("--hours", type=float, default=2.0, help="training time, all starts together")
    parser.add_argument("--steps", type=int, default=0, help="budget in steps instead of hours")
    parser.add_argument("--rows", type=int, default=32, help="problems per step")
    parser.add_argument("--matrix-lr", type=float, default=0.01)
    parser.add_argument("--other-lr", type=float, default=1e-3)
    parser.add_argument("--filler-weight", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--save-minutes", type=float, default=5)
    parser.add_argument("--export-minutes", type=float, default=25)
    args = parser.parse_args()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(args.threads)
    torch.manual_seed(args.seed)
    model = new_model(args.out)
    if args.init:
        model.load_state_dict({k: v.float() for k, v in load_file(args.init / "model.safetensors").items()})
    run = new_run(model, args.matrix_lr, args.other_lr, pool)
    if args.state.exists():
        load_state(run, args.state)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.out)
    encoder = Encoder(tokenizer, block_length(args.out), args.filler_weight)
    train(run, encoder, pool, args)


if __name__ == "__main__":
    main()
