"""What training reaches of this machine's matmul rate; `-m figures -s` prints the table of docs/scaling.md."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.nn import functional

from spot_infer.order_model import HEAD_HIDDEN, OrderModelConfig
from spot_infer.set_head import SetHead
from spot_train.collect.collect import collect
from spot_train.fit.data import Batch
from spot_train.fit.data_module import OrderDataModule
from spot_train.fit.module import OrderModule
from spot_train.fit.step_windows import InMemory
from spot_train.recipe.recipe import load_recipe
from spot_train.shards.store import open_shards

pytestmark = pytest.mark.figures

NETWORKS: dict[str, dict[str, Any]] = {
    "per_level": {"scorer": "per_level", "depths_per_state": 2, "features": "v1"},
    "one_call": {"scorer": "one_call", "depths_per_state": "all", "features": "v2"},
}
GROUPS = 10
REPEATS = 8
"""How often the recorded trajectories are laid out: batches are cut from pools of states sorted by size, which a few
trajectories do not fill."""
LEAST_SHARE = {"32-true": 0.3, "bf16-mixed": 0.15}
"""Of one thread; where products are fast in bfloat16, what else a step does takes most of it."""

Shape = tuple[int, int, int]
Seconds = tuple[float, float]
"""CPU, wall."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> InMemory:
    recipe = load_recipe("builtin:recipes/tiny.yaml", {"prompts.limit": 32})
    shards = tmp_path_factory.mktemp("fit") / "shards"
    collect(recipe, shards)
    return InMemory.of(REPEATS * list(open_shards(shards).trajectories()))


def products(config: OrderModelConfig, batch: Batch) -> list[Shape]:
    """(rows, inputs, outputs) of the matrix products of a forward over `batch`, padding left out."""
    slots = batch.valid.sum(dim=1)
    per_level = config.scorer == "per_level"
    rows, width = int((slots[batch.of] if per_level else slots).sum()), config.d_model
    layer = [(width, 3 * width), (width, width), (width, config.feed_forward), (config.feed_forward, width)]
    head = config.head_hidden * (1 if per_level else 3)
    return [(rows, *sizes) for sizes in ((batch.table.shape[-1] + 2, width), *config.layers * layer, (width, head))]


class Products:
    """The matrix products of training steps and nothing else: of each layer x w', dy w, dy' x."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.operands: dict[Shape, tuple[torch.Tensor, ...]] = {}

    def __call__(self, shapes: list[Shape]) -> None:
        for rows, inputs, outputs in shapes:
            sizes = ((rows, inputs), (outputs, inputs), (rows, outputs))
            if (rows, inputs, outputs) not in self.operands:
                made = tuple(torch.randn(size).to(self.dtype) for size in sizes)
                self.operands[rows, inputs, outputs] = made
            x, weight, gradient = self.operands[rows, inputs, outputs]
            torch.mm(x, weight.t())
            torch.mm(gradient, weight)
            torch.mm(gradient.t(), x)


class Paired(Callback):
    """Times groups of training steps, loading included, and right after each the products of the same batches."""

    def __init__(self, config: OrderModelConfig, dtype: torch.dtype, group: int) -> None:
        self.config, self.products, self.group = config, Products(dtype), group
        self.shapes: list[list[Shape]] = []
        self.steps: list[Seconds] = []
        self.bounds: list[Seconds] = []
        self.operations = self.examples = 0
        self.since = now()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.shapes.append(products(self.config, batch))
        self.examples += len(batch.label)
        if len(self.shapes) == self.group:
            self.steps.append(passed(self.since))
            for shapes in self.shapes:
                self.products(shapes)
            since = now()
            for shapes in self.shapes:
                self.products(shapes)
            self.bounds.append(passed(since))
            if len(self.steps) > 1:
                self.operations += sum(6 * a * b * c for shapes in self.shapes for a, b, c in shapes)
            else:
                self.examples = 0
            self.shapes.clear()
            self.since = now()


def now() -> Seconds:
    return time.process_time(), time.perf_counter()


def passed(since: Seconds) -> Seconds:
    end = now()
    return end[0] - since[0], end[1] - since[1]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("batch_size", [32, 256])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("threads", [1, 2])
def test_throughput(
    network: str, batch_size: int, precision: str, threads: int, recorded: InMemory, tmp_path: Path
) -> None:
    """One process, in turns; by CPU time on one thread, which a busy machine disturbs less, by wall time on two."""
    recipe = load_recipe("builtin:recipes/tiny.yaml")
    section = recipe.fit.model_copy(update={**NETWORKS[network], "batch_size": batch_size})
    sizes = {"block_length": 32, "features": section.features, "scorer": section.scorer}
    config = OrderModelConfig(**sizes, head_hidden=HEAD_HIDDEN[section.scorer])
    slow = precision != "32-true" or batch_size > 32
    group = 1 if slow else 5
    paired = Paired(config, torch.float32 if precision == "32-true" else torch.bfloat16, group)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        trainer = lightning.Trainer(
            max_steps=GROUPS * group,
            precision=precision,  # type: ignore[arg-type]
            devices=1,
            callbacks=[paired],
            limit_val_batches=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        module = OrderModule(config.to_dict(), section.model_dump(), 1000, {})
        trainer.fit(module, OrderDataModule(recorded, recorded.all_steps, section, recipe.rule.commit_rule()))
    finally:
        torch.set_num_threads(before)
    clock = threads - 1
    steps, bounds = ([one[clock] for one in pairs[1:]] for pairs in (paired.steps, paired.bounds))
    shares = [bound / step for step, bound in zip(steps, bounds, strict=True)]
    share = median(shares)
    print(
        f"\n{network}, {batch_size} states a step, {precision}, {threads} threads, {('CPU', 'wall')[clock]} time: "
        f"{paired.examples / sum(steps):.0f} examples/s, {1e3 * sum(steps) / len(steps) / group:.0f} ms a step, "
        f"products {1e3 * sum(bounds) / len(bounds) / group:.0f} ms "
        f"at {paired.operations / sum(bounds) / 1e9:.1f} GFLOP/s, "
        f"share {share:.0%} ({min(shares):.0%} to {max(shares):.0%})"
    )
    assert threads > 1 or share >= LEAST_SHARE[precision]


def one_by_one(head: SetHead, codes: Tensor, of: Tensor, slot: Tensor, taken: Tensor, depth: Tensor) -> Tensor:
    """The head's formula, every state by itself: a product with what each filled slot of a block tells all others."""
    base, gate, message, prior = codes[of].split((*(3 * [head.hidden]), 1), dim=-1)
    marked, length = taken.to(codes.dtype), head.block_length
    slots = torch.arange(length)
    offsets = head.offset[slots[:, None] - slots + length - 1].flatten(1)
    filled = marked.new_zeros(len(marked), length).scatter_add(1, slot[of], marked)
    near = (filled @ offsets).unflatten(1, (length, -1)).gather(1, slot[of, :, None].expand(-1, -1, head.hidden))
    hears = base + gate * torch.bmm(marked[:, None], message) + near
    return (prior + head.out(functional.relu(hears))).squeeze(-1) * head.sharpness[depth].exp()[:, None]


@pytest.mark.parametrize(("block_length", "tables"), [(32, 32), (32, 256), (128, 32), (256, 16)])
def test_the_head_at_any_block_length(block_length: int, tables: int) -> None:
    """Forward and back over 16 states of every table, in turns with every state by itself; CPU time, one thread."""
    torch.manual_seed(0)
    masked, states = block_length * 5 // 8, 16
    head = SetHead(128, HEAD_HIDDEN["one_call"], block_length, states - 1, zeroed=False)
    torch.nn.init.normal_(head.offset, std=0.1)
    slot = torch.rand(tables, block_length).argsort(dim=1)[:, :masked].sort(dim=1).values
    of, depth = torch.arange(tables).repeat_interleave(states), torch.arange(states).repeat(tables)
    taken = torch.rand(tables, masked).argsort(dim=1)[of] <= depth[:, None]
    encoded, prior = torch.randn(tables, masked, 128, requires_grad=True), torch.randn(tables, masked)
    seconds: dict[str, list[float]] = {"one by one": [], "laid out": []}
    scores: dict[str, Tensor] = {}
    for _ in range(6):
        for name, form in (("one by one", partial(one_by_one, head)), ("laid out", head)):
            since = now()
            scores[name] = form(head.encode(encoded, prior), of, slot, taken, depth)
            scores[name].square().sum().backward()
            seconds[name].append(passed(since)[0])
    torch.testing.assert_close(scores["laid out"], scores["one by one"], atol=1e-3, rtol=1e-3)
    plain, laid_out = (1e3 * median(times[1:]) for times in seconds.values())
    print(f"\nhead, L = {block_length}, {tables} tables: {plain:.0f} ms one by one, {laid_out:.0f} ms laid out")
    assert laid_out < plain
