"""Trains the tiny target with the block-diffusion objective and exports it.

    python data/train_target.py --out my-target --hours 2

The loss is cross-entropy at masked answer tokens only. The learning rate follows the share of the
budget that is spent, which is `--hours` of training time or, for a run that repeats bit for bit,
`--steps`. Problems are drawn fresh from the generator, never from heldout or eval. Stopping and
starting again continues from the checkpoint in `--state`.
"""

import argparse
import copy
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from block_batches import Batch, Encoder, step_batches
from muon import Muon
from safetensors.torch import save_file
from target_forward import masked_logits
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

WARMUP_STEPS = 60
EMA_DECAY = 0.995


@dataclass
class Run:
    """Everything that a checkpoint holds."""

    model: Qwen3ForCausalLM
    average: Qwen3ForCausalLM
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    elapsed_s: float = 0.0


def new_run(folder: Path, seed: int, matrix_lr: float, other_lr: float, pool: ThreadPoolExecutor) -> Run:
    """A freshly initialised model of `folder`'s config with its optimizers."""
    torch.manual_seed(seed)
    config = Qwen3Config.from_pretrained(folder)
    model = Qwen3ForCausalLM._from_config(config, dtype=torch.float32)
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "layers" in name]
    others = [p for name, p in named if not (p.ndim == 2 and "layers" in name)]
    optimizers = [
        Muon(matrices, lr=matrix_lr, weight_decay=0.01, pool=pool),
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


def export(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Writes half-precision weights under the official names by atomic rename."""
    tensors = {name: t.to(torch.float16).contiguous() for name, t in model.state_dict().items()}
    partial = folder / "model.safetensors.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    os.replace(partial, folder / "model.safetensors")


def rate(step: int, share: float) -> float:
    """Learning rate as a part of its peak: warm-up, plateau to 65% of the budget, then to 0."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * min(1.0, max(0.0, 1.0 - share) / 0.35)


def gradients(model: Qwen3ForCausalLM, batch: Batch) -> tuple[Sequence[torch.Tensor], list[float]]:
    """Gradients of the weighted loss sum, and (loss sum, correct, counted) at answer tokens."""
    logits = masked_logits(model, batch)
    loss = functional.cross_entropy(logits, batch.labels, reduction="none")
    loss = (loss * batch.weights).sum()
    grads = torch.autograd.grad(loss, list(model.parameters()))
    real = batch.weights == 1
    correct = float(((logits.argmax(-1) == batch.labels) & real).sum())
    return grads, [loss.item(), correct, float(real.sum())]


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
    decay = min(EMA_DECAY, (1 + run.step) / (20 + run.step))
    with torch.no_grad():
        torch._foreach_lerp_([*run.average.parameters()], parameters, 1 - decay)
    run.step += 1
    loss, correct, counted = (sum(values) for values in zip(*counts, strict=True))
    return loss / total, correct / max(counted, 1.0)


def longest_blocks(share: float) -> int:
    """Short rows first, so that copying is learnt early: two blocks, then every length."""
    return 2 if share < 0.04 else 99


def train(run: Run, encoder: Encoder, pool: ThreadPoolExecutor, args: argparse.Namespace) -> None:
    """The loop: until the budget is spent, with a checkpoint and an export now and then."""
    saved_s = exported_s = time.monotonic()
    mean_loss = mean_accuracy = 0.0
    while True:
        started_s = time.monotonic()
        spent = run.step / args.steps if args.steps else run.elapsed_s / (args.hours * 3600)
        if spent >= 1:
            break
        batches = step_batches(encoder, args.seed, run.step, args.rows, longest_blocks(spent))
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
    parser.add_argument("--state", type=Path, default=Path("tiny-sdar-training.pt"))
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
    run = new_run(args.out, args.seed, args.matrix_lr, args.other_lr, pool)
    if args.state.exists():
        load_state(run, args.state)
    config: Any = run.model.config
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    encoder = Encoder(
        tokenizer,
        config.mask_token_id,
        config.eos_token_id,
        config.pad_token_id,
        args.filler_weight,
    )
    train(run, encoder, pool, args)


if __name__ == "__main__":
    main()
