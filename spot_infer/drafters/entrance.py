"""How a draft runs on into the next block, whose table was computed before it opened (`spot_infer/ahead.py`).

Behind the right guess that table is the target's own, so the first commit there is known; a draft goes on below it as
below any other root. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from spot_infer.blocks import Commit
from spot_infer.drafters.hypotheses import token_hypotheses
from spot_infer.drafters.stale import slots_per_step, stale_order
from spot_infer.graph import DraftContext, Entrance
from spot_infer.transition import CommitRule

CERTAINTY = 0.9
"""How sure the first commit of the next block is, its token apart."""


def entrance(context: DraftContext, rule: CommitRule) -> Entrance | None:
    """The entrance to the block after the context's; None where nothing is known of it, or under a rule that may commit
    several slots first."""
    table = context.next_table
    if table is None or not context.completes or slots_per_step(rule) > 1 or len(table.slots) < 2:
        return None
    opening = replace(
        context, state=context.state.following(), tables=(table,), next_table=None, responses=None, votes=None
    )
    first = stale_order(opening, rule)[0]
    token, probability = token_hypotheses(opening)[first][0]
    commit = Commit(opening.state.start + int(table.slots[first]), token)
    entered = replace(opening, state=opening.state.with_commits([commit]), completes=False)
    return Entrance(commit, CERTAINTY * probability, entered)
