"""`spot-train rehearse`: what a drafter would give on this machine with a model whose weights are not at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spot_infer.errors import SpotError
from spot_train.cli_options import JsonOption, SplitOption

if TYPE_CHECKING:
    from spot_infer.targets import Target
    from spot_train.shards.store import ShardSet

_QWEN3 = {"model_type": "sdar", "vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
          "rope_theta": 1e6, "max_position_embeddings": 32768, "tie_word_embeddings": False}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    name: {**_QWEN3, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
           "num_attention_heads": heads}
    for name, hidden, inner, layers, heads in (
        ("sdar-8b", 4096, 12288, 36, 32),
        ("sdar-4b", 2560, 9728, 36, 32),
        ("sdar-1.7b", 2048, 6144, 28, 16),
    )
}  # fmt: skip
"""Shapes of published targets, by name."""


def rehearse(
    shape: Annotated[str, typer.Argument(help=f"{', '.join(SHAPES)}, or a folder with a config.json.")] = "sdar-8b",
    data: Annotated[Path, typer.Option(help="Folder of shards whose trajectories are decoded.")] = ...,  # type: ignore[assignment]
    drafter: Annotated[str, typer.Option(help="Exported drafter: folder, hub id or builtin:.")] = ...,  # type: ignore[assignment]
    budget: Annotated[list[int] | None, typer.Option(min=1, help="Repeatable; default 4, 8, 20.")] = None,
    split: SplitOption = "heldout",
    minutes: Annotated[float, typer.Option(min=0, help="Most minutes of decoding.")] = 8.0,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16, float32 or float64.")] = "bfloat16",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")] = None,
    clock: Annotated[str, typer.Option(help="cpu, wall, or auto.")] = "auto",
    out: Annotated[Path | None, typer.Option("--out", help="JSON file to write.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Time real drafted decoding on random weights of a model's shape, accepting drafts as recorded trajectories do."""
    from itertools import islice

    from rich.console import Console

    from spot_infer.atomic import check_place, write_json
    from spot_infer.checkpoint import load_drafter
    from spot_infer.clock import clock_for
    from spot_infer.presets import PRESETS
    from spot_train.cost.rehearse import Rehearsed, rehearsal_row
    from spot_train.cost.rehearse import rehearse as measure
    from spot_train.cost.view import print_rehearsal
    from spot_train.provenance import provenance
    from spot_train.recipe.recipe import resolve_path
    from spot_train.shards.store import named_split, open_shards

    if out is not None:
        check_place(out)
    shards = open_shards(data)
    order = load_drafter(resolve_path(drafter, Path.cwd()))
    order.check_block_length(shards.block_length)
    trajectories = [one for one in islice(shards.trajectories(named_split(split)), 1000) if len(one)]
    largest = max((int(one.block_tokens.max()) for one in trajectories), default=0)
    target = random_target(shape, shards, dtype, device, largest)
    order.to(device=target.device)
    methods = [Rehearsed("draft-free")] + [
        Rehearsed(name, states, form.apply(order), form.boundary)
        for states in budget or (4, 8, 20)
        for name, form in PRESETS.items()
    ]
    runs = measure(target, trajectories, methods, shards.rule, clock_for(target.device, clock), 60 * minutes)
    rows = [rehearsal_row(run, runs[0]) for run in runs]
    if out is not None:
        write_json(out, {"shape": shape, "rows": rows, "provenance": provenance()})
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        print_rehearsal(Console(), rows)


def random_target(shape: str, shards: ShardSet, dtype: str, device: str | None, largest: int = 0) -> Target:
    """A target of random weights whose mask, stop tokens and block length are those of the shards.

    `largest`: the largest token id that will be decoded. Raises SpotError where the shape's vocabulary ends below it.
    """
    import torch

    from spot_infer.targets import from_model
    from spot_infer.targets.checkpoint_folder import find_folder, read_json
    from spot_infer.targets.family import family_of
    from spot_infer.targets.load import usable_device

    config = SHAPES.get(shape) or read_json(find_folder(shape, None) / "config.json")
    if config is None:
        raise SpotError(f"{shape} has no config.json; use one of {', '.join(SHAPES)} or a folder that has one")
    family = family_of(config.get("model_type"), shape)
    if family.attention != "block-causal" or shards.attributes["target"].get("cache", "exact") != "exact":
        raise SpotError(f"{shape}, or what was recorded, has full attention; rehearse block-causal targets")
    kinds = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
    if dtype not in kinds:
        raise SpotError(f"--dtype is {dtype!r}; use {', '.join(kinds)}")
    model_class, native = family.native(config)
    needed = max(largest, shards.mask_id, *shards.attributes["target"].get("stop_ids", ()))
    if needed >= native.vocab_size:
        raise SpotError(
            f"{shape} has a vocabulary of {native.vocab_size}, but the shards hold token id {needed}; use a shape with "
            "at least as many tokens"
        )
    place = usable_device(device)
    native._attn_implementation = "sdpa"
    before = torch.get_default_dtype()
    torch.set_default_dtype(kinds[dtype])
    try:
        with place:
            model = model_class(native)
    finally:
        torch.set_default_dtype(before)
    known = shards.attributes["target"]
    return from_model(
        model,
        None,
        block_length=shards.block_length,
        mask_id=shards.mask_id,
        stop_ids=known.get("stop_ids", ()),
        name=f"random weights of {shape}",
    )
