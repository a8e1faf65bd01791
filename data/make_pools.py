"""Writes the prompt pools `pools/{train,heldout,eval}.jsonl` from a seed.

    python data/make_pools.py --out data/pools --seed 0

The same seed gives the same bytes. A question belongs to one split whatever its wording, and a
fifth of the evaluation rows is worded as no training or held-out row is.
"""

import argparse
import json
import os
from pathlib import Path
from random import Random

import problems_code
import problems_json
import problems_list
import problems_math
from problems import SPLITS, Problem

FAMILIES = {
    "math": problems_math.TASKS,
    "code": problems_code.TASKS,
    "list": problems_list.TASKS,
    "json": problems_json.TASKS,
}
ROWS = {"train": 6000, "heldout": 600, "eval": 400}
UNSEEN_EVERY = 5
COPYING_TASKS = ("list_reverse", "json_build")


def draw(rng: Random, family: str, split: str, wording: str = "seen") -> Problem:
    """One problem of a family whose content belongs to the split."""
    task = rng.choice(FAMILIES[family])
    while True:
        problem = task(rng, wording)
        if problem.split() == split:
            return problem


def make_pool(split: str, rows: int, seed: int) -> list[Problem]:
    """The pool of one split: families in turn, no prompt twice."""
    rng = Random(f"{seed}/{split}")
    families = tuple(FAMILIES)
    pool: dict[str, Problem] = {}
    while len(pool) < rows:
        index = len(pool)
        turn, place = divmod(index, UNSEEN_EVERY)
        unseen = split == "eval" and place == UNSEEN_EVERY - 1
        family = families[(turn if place == UNSEEN_EVERY - 1 else place) % len(families)]
        problem = draw(rng, family, split, "unseen" if unseen else "seen")
        pool.setdefault(problem.prompt, problem)
    return list(pool.values())


def write_pool(path: Path, pool: list[Problem]) -> None:
    """Writes JSONL beside its final name and renames it."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        for problem in pool:
            file.write(json.dumps(problem.row(), ensure_ascii=False) + "\n")
    os.replace(partial, path)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "pools")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=int, default=ROWS["train"], help="training rows; more begin with the same ones")
    args = parser.parse_args()
    if args.train < 1:
        parser.error(f"--train is {args.train}; use at least 1 row")
    args.out.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        pool = make_pool(split, args.train if split == "train" else ROWS[split], args.seed)
        write_pool(args.out / f"{split}.jsonl", pool)
        print(f"{split}: {len(pool)} rows")


if __name__ == "__main__":
    main()
