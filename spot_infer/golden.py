"""The golden input of an exported drafter: raw stale tables, paths through them, and the scores they must get.

It starts from tables, not from features, so a change in the feature function is noticed as well as a changed weight.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from spot_infer.errors import SpotError
from spot_infer.features import pad_rows, ragged_features
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_infer.table import TOP_K, Tables

GOLDEN_TOLERANCE = 1e-4
_QUERIES_PER_TABLE = 3
_DTYPES = {
    "top_logprob": torch.float16,
    "log_odds": torch.float32,
    "slot": torch.uint8,
    "start": torch.int64,
    "table": torch.int64,
    "taken": torch.bool,
    "depth": torch.int64,
    "log_q": torch.float32,
}
_ROOT = {"root": torch.bool}
_BEFORE = {"best": torch.int32, "before": torch.int64}


def golden_input(config: OrderModelConfig) -> dict[str, Tensor]:
    """Made-up tables of every kind of length with paths of several depths; depends on block length, scorer and feature
    version alone.

    top_logprob f16 [M, 32], log_odds f32 [M], slot u8 [M], start i64 [T + 1]; table, depth i64 [Q], taken bool [Q, m];
    where the root is read, root bool [Q, m]: the table slots filled in it; where the table before is, before i64 [T],
    its number or -1, and best i32 [M].
    """
    generator = np.random.Generator(np.random.Philox(key=config.block_length))
    block_length = config.block_length
    lengths = sorted({min(2, block_length), (block_length + 1) // 2, block_length})
    start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    slot = np.concatenate([np.sort(generator.permutation(block_length)[:length]) for length in lengths])
    log_odds = generator.uniform(-2, 14, size=len(slot)).astype(np.float32)
    best = -np.logaddexp(0.0, -log_odds.astype(np.float64))
    rest = np.sort(generator.uniform(0.5, 12, size=(len(slot), TOP_K - 1)), axis=1)
    top_logprob = np.concatenate([best[:, None], best[:, None] - rest], axis=1).astype(np.float16)
    table = np.repeat(np.arange(len(lengths)), _QUERIES_PER_TABLE)
    _, valid = pad_rows(start, table)
    taken, root = np.zeros_like(valid), np.zeros_like(valid)
    depth = np.zeros(len(table), dtype=np.int64)
    for query, index in enumerate(table):
        filled = generator.integers(0, lengths[index])
        path = generator.permutation(lengths[index])[:filled]
        taken[query, path], root[query, path[:1]] = True, True
        depth[query] = max(int(filled) - 1, 0)
    golden = {
        "top_logprob": torch.from_numpy(top_logprob),
        "log_odds": torch.from_numpy(log_odds),
        "slot": torch.from_numpy(slot.astype(np.uint8)),
        "start": torch.from_numpy(start),
        "table": torch.from_numpy(table),
        "taken": torch.from_numpy(taken),
        "depth": torch.from_numpy(depth),
    }
    extra = {
        "root": torch.from_numpy(root),
        "best": torch.from_numpy(
            (slot * 7 + np.repeat(np.arange(len(lengths)), lengths) * (slot % 3)).astype(np.int32)
        ),
        "before": torch.tensor([*range(1, len(lengths)), -1]),
    }
    return golden | {name: extra[name] for name in _dtypes(config) if name in extra}


def _dtypes(config: OrderModelConfig) -> dict[str, torch.dtype]:
    """The tensors of a drafter's golden input and their dtypes."""
    reads_root = config.scorer == "one_call" or config.features == "v2"
    return _DTYPES | (_ROOT if reads_root else {}) | (_BEFORE if config.features == "v2" else {})


@torch.inference_mode()
def golden_scores(model: OrderModel, golden: dict[str, Tensor]) -> Tensor:
    """log q float32 [Q, m] of the golden paths, -inf at taken and padded slots."""
    config = model.config
    of, root = golden["table"].numpy(), golden.get("root", golden["taken"]).numpy()
    slot = golden["slot"].numpy()
    best = golden["best"].numpy() if "best" in golden else np.zeros(len(slot), np.int32)
    every = Tables(golden["start"].numpy(), slot, golden["top_logprob"].numpy(), golden["log_odds"].numpy(), best)
    before = golden["before"].numpy()[of] if "before" in golden else np.full(len(of), -1)
    tables = every.take(of)
    rows, valid = pad_rows(tables.start, np.arange(len(of)))
    slots = tables.slot.astype(np.int64)[rows]
    filled = np.ones((len(of), config.block_length), dtype=bool)
    query, place = np.nonzero(valid & ~root)
    filled[query, slots[query, place]] = False
    features = ragged_features(tables, every.take(before), filled, config.features, config.rule)
    scores = model(
        torch.from_numpy(features[rows]),
        torch.from_numpy(slots),
        torch.from_numpy(valid),
        torch.from_numpy(root),
        torch.arange(len(of)),
        golden["taken"],
        golden["depth"],
    )
    return torch.log_softmax(scores.float(), dim=-1).clone()


def check_golden(model: OrderModel, path: Path) -> None:
    """Score the golden input with `model` on the CPU and compare. Raises SpotError."""
    try:
        golden = load_file(path)
    except FileNotFoundError:
        raise SpotError(f"{path} does not exist; export or download the drafter again") from None
    except (SafetensorError, OSError) as error:
        raise SpotError(f"{path} is truncated or no safetensors file ({error}); download the drafter again") from None
    expected = _dtypes(model.config)
    if {name: tensor.dtype for name, tensor in golden.items()} != expected:
        raise SpotError(f"{path} has tensors {sorted(golden)}; expected {sorted(expected)} in their stored dtypes")
    if not _well_formed(golden, model.config.block_length):
        raise SpotError(
            f"{path} holds no tables and paths for block length {model.config.block_length}; export the drafter again"
        )
    stored, scores = golden["log_q"], golden_scores(model, golden)
    if stored.shape != scores.shape or not torch.equal(stored.isneginf(), scores.isneginf()):
        raise SpotError(f"{path}: log_q {list(stored.shape)} does not fit the golden input; export the drafter again")
    kept = ~stored.isneginf()
    worst = float((stored - scores)[kept].abs().max())
    if not worst <= GOLDEN_TOLERANCE:
        raise SpotError(
            f"{path}: the network's log_q differs from the stored ones by {worst:.3g} (tolerance {GOLDEN_TOLERANCE}); "
            "a tensor of model.safetensors is transposed or changed, so export or download the drafter again"
        )


def _well_formed(golden: dict[str, Tensor], block_length: int) -> bool:
    slot, start, table, taken = (golden[name].numpy() for name in ("slot", "start", "table", "taken"))
    if start.ndim != 1 or len(start) < 2 or start[0] != 0 or start[-1] != len(slot) or (np.diff(start) < 1).any():
        return False
    if golden["top_logprob"].shape != (len(slot), TOP_K) or golden["log_odds"].shape != slot.shape:
        return False
    if slot.max() >= block_length or not len(table) or table.min() < 0 or table.max() >= len(start) - 1:
        return False
    widest = int(np.diff(start)[table].max())
    before = golden["before"].numpy() if "before" in golden else np.full(len(start) - 1, -1)
    if before.shape != (len(start) - 1,) or before.min() < -1 or before.max() >= len(start) - 1:
        return False
    if "best" in golden and golden["best"].shape != slot.shape:
        return False
    shape = (len(table), widest)
    return taken.shape == golden.get("root", golden["taken"]).shape == shape and golden["depth"].shape == table.shape
