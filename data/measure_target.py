"""Measures the tiny target under draft-free decoding: what it solves and how hard its commit order is.

    python data/measure_target.py --target data/tiny-sdar --pool data/pools/eval.jsonl

Solved prompts are counted by family, task and wording. Order accuracy: of the slots that are still
masked after a commit, how often the one that the same table ranks first is the next to commit, inside
a block. Token accuracy: how often the table's best token at the slot that commits next is the token
that commits. Decoding ends at the stop token. Code answers are run: see `spot_train.tasks.tiny`.
"""

import argparse
import json
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from spot_infer import GenerationConfig, load_target
from spot_infer.api import encode_prompt
from spot_infer.decode import decode
from spot_infer.requests import Request, Round
from spot_infer.targets.protocol import Target
from spot_train.tasks.tiny import score

Counts = dict[str, list[int]]


def order_counts(rounds: list[Round], prompt_tokens: int, block_length: int) -> Counts:
    """By answer block and in all: pairs of commits, order right, token right."""
    counts: Counts = defaultdict(lambda: [0, 0, 0])
    steps = [(round_, next(iter(round_.steps[0]))) for round_ in rounds if round_.steps]
    for (round_, commit), (later, after) in pairwise(steps):
        start = round_.state.start
        if later.state.start != start:
            continue
        table, taken, following = round_.tables[0], commit.position - start, after.position - start
        ranked = sorted(zip(-table.log_odds, table.slots, strict=True))
        guess = next(int(slot) for _, slot in ranked if slot != taken)
        token = int(table.top_token[table.slots.tolist().index(following)][0])
        for key in (f"block {start // block_length - prompt_tokens // block_length}", "all"):
            counts[key][0] += 1
            counts[key][1] += guess == following
            counts[key][2] += token == after.token
    return counts


def measure(target: Target, rows: list[dict], config: GenerationConfig) -> tuple[Counts, Counts, list[int], list[str]]:
    """Solved counts, order counts, NFE and text of every row."""
    requests = [Request(encode_prompt(target, row["prompt"])) for row in rows]
    traces: list[list[Round]] = [[] for _ in rows]
    for round_ in decode(target, requests, config.settings(drafted=False), record=True):
        traces[round_.request].append(round_)
    solved: Counts = defaultdict(lambda: [0, 0])
    order: Counts = defaultdict(lambda: [0, 0, 0])
    nfe, texts = [], []
    for row, request, trace in zip(rows, requests, traces, strict=True):
        result = trace[-1].result
        assert result is not None
        right = score(row, result.text, allow_code_execution=True)
        nfe.append(result.stats.nfe)
        texts.append(result.text)
        for key in (row["wording"], f"{row['wording']} {row['family']}", f"task {row['task']}"):
            solved[key][0] += right
            solved[key][1] += 1
        for key, values in order_counts(trace, len(request.prompt_ids), target.spec.block_length).items():
            order[key] = [a + b for a, b in zip(order[key], values, strict=True)]
    return solved, order, nfe, texts


def main() -> None:
    """Command line."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--target", default=str(here / "tiny-sdar"))
    parser.add_argument("--pool", type=Path, default=here / "pools" / "eval.jsonl")
    parser.add_argument("--rows", type=int, default=None, help="the first so many rows")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--answers", type=Path, help="write the answers here as JSONL")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = [json.loads(line) for line in args.pool.read_text(encoding="utf-8").splitlines()][: args.rows]
    config = GenerationConfig(max_new_tokens=args.max_new_tokens, batch_size=16)
    solved, order, nfe, texts = measure(load_target(args.target, dtype="float32"), rows, config)
    print(f"{len(rows)} prompts, {sum(nfe) / len(nfe):.1f} target forwards each")
    for key, (right, count) in sorted(solved.items()):
        print(f"solved, {key}: {right} of {count} ({right / count:.3f})")
    for key, (count, slot, token) in sorted(order.items()):
        print(f"next commit, {key}: order {slot / count:.3f}, token {token / count:.4f}, of {count}")
    if args.answers:
        lines = [json.dumps({**row, "output": text}) for row, text in zip(rows, texts, strict=True)]
        args.answers.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
