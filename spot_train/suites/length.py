"""How forwards and speed respond to the number of generated tokens (paper table 16).

Stop tokens are ignored: honoured, an answer ends before the limit and the limit says nothing. The paper samples at
T = 1, which `full` adds to T = 0.
"""

from __future__ import annotations

from spot_train.bench.conditions import counted, few, line_up, places
from spot_train.bench.materials import Materials
from spot_train.bench.plan import CellGroup, Group

SUITE = "length"
SHARES = (0.25, 0.5, 1.0, 2.0)
"""Lengths, as shares of the recipe's `collect.max_new_tokens`."""


def groups(materials: Materials) -> list[Group]:
    """The smallest and largest budget at every length that the target's context holds."""
    budgets = sorted({min(materials.options.budgets), max(materials.options.budgets)})
    asked: list[Group] = []
    for target, rule in places(materials):
        for share in SHARES:
            tokens = int(materials.recipe.collect.max_new_tokens * share)
            for temperature in (0.0, 1.0) if materials.options.full else (0.0,):
                condition = counted(
                    materials,
                    target,
                    rule,
                    temperature=temperature,
                    ignore_stop=True,
                    max_new_tokens=tokens,
                    prompts=few(materials),
                )
                if not materials.fits(condition):
                    materials.note(f"length: {tokens} tokens don't fit the context of {target}; left out")
                    continue
                asked.append(CellGroup(condition, tuple(line_up(SUITE, materials, condition, budgets))))
    return asked
