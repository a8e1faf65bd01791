"""The sentence that every wall-clock figure of a CPU run stands beside. Knows no run."""

COST_LINE = (
    "On a CPU a forward over 1 + D block copies takes nearly 1 + D times as long, which is more than the drafts save: "
    "forwards fall, wall clock does not. On a GPU the copies are nearly free until its arithmetic is full."
)
