"""One way of reading a set of shards in a process of its own; prints the process's peak resident memory in MB.

Arguments: read, verify or fit; the folder of the set; a folder for what fit writes; shards in memory at once.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from spot_train.fit.step_windows import ShardWindows
from spot_train.recipe.recipe import FitSection
from spot_train.shards.report import verify
from spot_train.shards.store import open_shards


def main() -> None:
    action, folder, out, resident = sys.argv[1:]
    if action == "verify":
        verify([folder])
    elif action == "read":
        assert sum(len(one) for one in open_shards(folder).trajectories())
    else:
        from spot_train.fit.fit import fit

        section = FitSection(max_steps=3, batch_size=16, d_max=3, replay_trajectories=1)
        shards = open_shards(folder)
        train, heldout = (ShardWindows(shards, split, int(resident)) for split in ("train", "heldout"))  # type: ignore[arg-type]
        fit(section, train, heldout, out)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    main()
