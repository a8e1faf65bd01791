"""Collects many short trajectories of the fake target in a process of its own; prints its peak resident memory in MB.

Arguments: how many prompts; a folder for them and the set.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from collecting import small_recipe
from fake_dlm import FakeTarget

from spot_train.collect.collect import collect


def main() -> None:
    count, folder = int(sys.argv[1]), Path(sys.argv[2])
    rows = [{"prompt": [2 + index // 9**place % 9 for place in range(5)]} for index in range(count)]
    pool = folder / f"{count}.jsonl"
    pool.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = {"max_new_tokens": 4, "batch_size": 32, "lease_prompts": 50}
    summary = collect(small_recipe(pool, collect=sizes), folder / str(count), FakeTarget(seed=3))
    assert summary.tally.trajectories == count
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    main()
