"""From a training checkpoint to the drafter folder that the runtime loads. Success means the folder was read back.

Writes the model card. Knows nothing about shards or the target's weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from spot_infer.checkpoint import DrafterInfo, PretrainedDrafter, config_json, load_drafter, release, save_drafter
from spot_infer.drafters import DraftSettings
from spot_infer.errors import SpotError
from spot_infer.order_model import OrderModel, OrderModelConfig

_PREFIX = "model."


def export(
    checkpoint: str | Path,
    out: str | Path,
    *,
    metrics: Mapping[str, Any] | None = None,
    draft: DraftSettings | None = None,
    licence: str = "apache-2.0",
) -> PretrainedDrafter:
    """Write `out` from the checkpoint that `fit` returned, load it again, compare every bit, and return it.

    metrics: what `evaluate` gave on held-out trajectories; they go into config.json and the model card. Raises
    SpotError where the checkpoint is damaged or the folder reads back differently.
    """
    drafter = read_checkpoint(checkpoint, metrics=metrics, draft=draft, licence=licence)
    save_drafter(drafter, out)
    loaded = load_drafter(out)
    stored, written = loaded.model.state_dict(), drafter.model.state_dict()
    same = stored.keys() == written.keys() and all(torch.equal(stored[name], written[name]) for name in written)
    if not same or config_json(loaded) != config_json(drafter) or loaded.info.card != drafter.info.card:
        raise SpotError(f"{out} does not read back as it was written; check the disk and export again")
    return loaded


def read_checkpoint(
    checkpoint: str | Path,
    *,
    metrics: Mapping[str, Any] | None = None,
    draft: DraftSettings | None = None,
    licence: str = "apache-2.0",
) -> PretrainedDrafter:
    """The drafter inside a training checkpoint, before it is exported."""
    try:
        stored = torch.load(checkpoint, map_location="cpu", weights_only=True)
        settings = dict(stored["hyper_parameters"])
        weights = {
            name.removeprefix(_PREFIX): tensor.float()
            for name, tensor in stored["state_dict"].items()
            if name.startswith(_PREFIX)
        }
        model = OrderModel(OrderModelConfig.from_dict(settings["model"]))
        model.load_state_dict(weights)
        facts = dict(settings["facts"])
    except FileNotFoundError:
        raise SpotError(f"{checkpoint} does not exist; give the checkpoint that `spot-train fit` reported") from None
    except (OSError, RuntimeError, EOFError, KeyError, ValueError, TypeError, UnpicklingError) as error:
        raise SpotError(
            f"{checkpoint} is no checkpoint of `spot-train fit` or is damaged ({type(error).__name__}); fit again"
        ) from None
    if not all(bool(torch.isfinite(tensor).all()) for tensor in model.state_dict().values()):
        raise SpotError(f"{checkpoint} holds weights that are not numbers; lower fit.learning_rate and fit again")
    info = DrafterInfo(
        target={**facts.get("target", {}), "block_length": model.config.block_length},
        training={
            "data": facts.get("data", {}),
            "sampling": facts.get("sampling", {}),
            "fit": settings["fit"],
            "steps": int(stored["global_step"]),
        },
        metrics=dict(metrics or {}),
        licence=licence,
    )
    return PretrainedDrafter(model, draft, DrafterInfo(**{**vars(info), "card": model_card(model, info)}))


def model_card(model: OrderModel, info: DrafterInfo) -> str:
    """README.md of the drafter folder: what it is, what it was trained on, what it measured."""
    config, data = model.config, info.training.get("data", {})
    parameters = sum(parameter.numel() for parameter in model.parameters())
    rule = ", ".join(f"{name} {value}" for name, value in config.rule.to_dict().items() if name in _SHOWN_RULE)
    lines = [
        "---",
        f"license: {info.licence}",
        "library_name: spot-dlm",
        "tags:",
        "- diffusion-language-model",
        "- speculative-decoding",
        "---",
        "",
        f"# Commit-order drafter for {info.target.get('name', 'a diffusion language model')}",
        "",
        f"An order model of {parameters:,} parameters that predicts which position the target commits next, for",
        "lossless drafted decoding with `spot-dlm`. It reads the target's output distributions only: no text, no token",
        "embeddings, no hidden states. The output of drafted decoding does not depend on it; the number of target",
        "forwards does.",
        "",
        "```python",
        "from spot_infer import GenerationConfig, generate, load_drafter, load_target",
        "",
        f'target = load_target("{info.target.get("name", "...")}")',
        'results = generate(target, ["..."], GenerationConfig(budget=8), load_drafter("path/or/hub-id"))',
        "```",
        "",
        "| | |",
        "|---|---|",
        f"| target | {info.target.get('name', 'unknown')}, revision {info.target.get('revision')} |",
        f"| block length | {config.block_length} |",
        f"| commit rule | {rule} |",
        f"| features | {config.features}, depths up to {config.d_max} |",
        f"| network calls a draft | {'one' if config.scorer == 'one_call' else 'one a level of the search'} |",
        f"| trained on | {data.get('train_trajectories', '?')} draft-free trajectories of the target, "
        f"{data.get('train_steps', '?')} steps; {data.get('heldout_trajectories', '?')} held out by prompt |",
        f"| prompts | {data.get('prompts', 'not recorded')} |",
        f"| optimiser steps | {info.training.get('steps')} |",
        f"| written by | {release()} |",
        f"| licence | {info.licence} |",
        "",
        *_accuracy_lines(info.metrics),
        *_replay_lines(info.metrics),
    ]
    return "\n".join(lines).rstrip() + "\n"


_SHOWN_RULE = ("ranking", "resolution", "selection")


def _accuracy_lines(metrics: Mapping[str, Any]) -> list[str]:
    orders = metrics.get("orders", {}).get("before_stop")
    if not orders:
        return ["Held-out accuracy was not measured when this folder was exported.", ""]
    names = {"model": "this drafter", "stale_confidence": "stale confidence", "left_to_right": "left to right"}
    depths = [depth for depth, value in enumerate(orders["model"]["by_depth"]) if value is not None]
    lines = [
        "## Held-out next-commit accuracy, up to the stop token",
        "",
        f"Every depth of every state of {metrics['trajectories']} held-out trajectories.",
        "",
        "| order | all depths | " + " | ".join(f"depth {depth}" for depth in depths) + " |",
        "|---|---|" + "---|" * len(depths),
    ]
    for name, title in names.items():
        values = [orders[name]["accuracy"], *(orders[name]["by_depth"][depth] for depth in depths)]
        lines.append(f"| {title} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
    model = orders["model"]
    lines += ["", f"Top-3 {model['top3']:.3f}; calibration error {model['calibration_error']:.3f}.", ""]
    return lines


def _replay_lines(metrics: Mapping[str, Any]) -> list[str]:
    replayed = metrics.get("replay")
    if not replayed:
        return []
    budgets = list(replayed["order"])
    lines = [
        "## Target forwards, replayed",
        "",
        f"Draft-free forwards over drafted ones on {metrics['replayed']} held-out trajectories, stop token honoured,",
        "cache writes counted on both sides.",
        "",
        "| drafter | " + " | ".join(budgets) + " |",
        "|---|" + "---|" * len(budgets),
    ]
    for name, title in (("order", "this drafter"), ("chain", "untrained chain")):
        lines.append(f"| {title} | " + " | ".join(f"{replayed[name][key]['reduction']:.2f}x" for key in budgets) + " |")
    return [*lines, ""]
