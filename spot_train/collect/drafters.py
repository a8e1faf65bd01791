"""Drafters that a bootstrap fitted, beside the shards of a set: where each lies, and how it gets to another place."""

from __future__ import annotations

import re

from spot_infer.checkpoint import CONFIG_FILE
from spot_train.shards.copy import Place

DRAFTERS = "drafters"
_WHOLE = re.compile(rf"{DRAFTERS}/lease-\d+/{CONFIG_FILE}")


def drafter_folder(milestone: int) -> str:
    """Where in a set the drafter lies that was fitted to all leases before `milestone`."""
    return f"{DRAFTERS}/lease-{milestone:05d}"


def copy_drafters(here: Place, there: Place) -> None:
    """Copy the drafters that `there` lacks or holds others of; each one's config.json last, without which it is none.

    Raises Unreachable where a place does not list, give or take a file.
    """
    files = here.files_in(DRAFTERS)
    for config in filter(_WHOLE.fullmatch, files):
        data, held = here.read(config), there.read(config)
        if held == data:
            continue
        if held is not None:
            there.remove(config)
        for file in files:
            if file != config and file.startswith(config.removesuffix(CONFIG_FILE)):
                there.write(file, here.read(file) or b"")
        there.write(config, data or b"")
