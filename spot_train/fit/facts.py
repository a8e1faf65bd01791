"""What a drafter's files say about the recorded set it was trained on. Knows nothing about training."""

from __future__ import annotations

from typing import Any

from spot_train.shards.store import ShardSet


def drafter_facts(shards: ShardSet) -> dict[str, Any]:
    """JSON values for `fit(..., facts=...)`: the target, the sampling and the data that the drafter is trained on."""
    attributes = shards.attributes
    prompts = attributes.get("prompts", {})
    sources = [str(source.get("path_or_id")) for source in prompts.get("sources", ())]
    return {
        "target": {**attributes["target"], "block_length": shards.block_length},
        "sampling": dict(attributes["sampling"]),
        "data": {
            "prompts": ", ".join(sources) or "not recorded",
            "prompts_sha256": prompts.get("sha256"),
            "recipe_hash": attributes.get("recipe_hash"),
            "decoding": dict(attributes.get("decoding", {})),
            "noise_version": attributes.get("noise_version"),
        },
    }
