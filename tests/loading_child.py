"""Training batches of a set of shards from two loading processes, in a process that has opened the set itself.

Argument: the folder of the set. Prints one digest a batch, of what the loading processes made and of what this process
makes, and whether it imported transformers, as three lines of JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from spot_train.fit.data import Batch, EpochSteps, TrainBatches, loader
from spot_train.fit.step_windows import ShardWindows
from spot_train.recipe.recipe import FitSection
from spot_train.shards.store import open_shards


def digest(batch: Batch) -> str:
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in batch)).hexdigest()


def main() -> None:
    shards = open_shards(sys.argv[1])
    windows = ShardWindows(shards, "train", resident=1)
    batches = TrainBatches(windows, FitSection(batch_size=8, d_max=3), shards.rule)
    sampler = EpochSteps(len(batches), lambda: 0)
    print(json.dumps([digest(batch) for batch in loader(batches, sampler, 2)]))
    print(json.dumps([digest(batches[step]) for step in sampler]))
    print(json.dumps("transformers" in sys.modules))


if __name__ == "__main__":
    main()
