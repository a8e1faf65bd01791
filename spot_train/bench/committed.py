"""What a run committed, against the target's own conditionals at the states it visited (paper tables 1 and 21).

Greedy match drifts from the target's law; these two numbers show it without a second run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from spot_infer.blocks import Step
from spot_infer.table import StaleTable


def committed_measures(
    steps: Mapping[int, Sequence[Step]], tables: Mapping[int, Sequence[StaleTable]], block_length: int
) -> dict[str, float | None]:
    """argmax_fraction: share of commits that wrote the likeliest token; committed_probability: mean probability of the
    committed token. Both under the target's conditional before temperature, at the state the step was taken from.

    A token outside the table's 32 counts as probability 0; it has less than the 32nd.
    """
    hits, mass, count = 0, 0.0, 0
    for request, ones in steps.items():
        for step, table in zip(ones, tables[request], strict=True):
            for position, token in step:
                row = int(np.searchsorted(table.slots, position % block_length))
                found = np.flatnonzero(table.top_token[row] == token)
                hits += len(found) > 0 and found[0] == 0
                mass += float(np.exp(np.float64(table.top_logprob[row, found[0]]))) if len(found) else 0.0
                count += 1
    return {
        "argmax_fraction": float(hits / count) if count else None,
        "committed_probability": mass / count if count else None,
    }
