"""The decode loop, draft-free and drafted: draft, one target forward, accept (paper section 4).

Rows of a batch are at different blocks and phases in one forward. A block opens with its root alone (there is no stale
table yet), goes on in drafted rounds, and a finished block is written to the prefix cache in a forward of its own; a
row's last block is not. Accepted steps are applied one at a time, so a row ends at the same commit as draft-free.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from spot_infer.answers import read_answers, read_tables, steps_of_states
from spot_infer.blocks import BlockState, Step, finished_length, open_block
from spot_infer.drafters.order import OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.graph import DraftContext, Drafter, DraftGraph
from spot_infer.noise import GumbelNoise
from spot_infer.packing import Packed, RowStates, pack, resolve_layout
from spot_infer.requests import DecodeSettings, FinishReason, Request, Result, Round, Stats, check_settings
from spot_infer.table import StaleTable
from spot_infer.targets.protocol import PrefixCache, Target, TargetSpec
from spot_infer.verify import distribution_preserving, verify

_RECENT_TABLES = 2
Outcome = TypeVar("Outcome")


@dataclass
class _Row:
    """One request while it is decoded. `canvas` holds the prompt and every finished block."""

    request: int
    prompt_length: int
    canvas: list[int]
    state: BlockState
    noise: GumbelNoise | None
    started_s: float
    tables: list[StaleTable] = field(default_factory=list)
    final_tokens: int = 0
    stats: Stats = field(default_factory=Stats)

    def generated(self) -> list[int]:
        """Generated ids so far, from the prompt's end to the end of the active block; masks where nothing is."""
        return (self.canvas[: self.state.start] + list(self.state.tokens))[self.prompt_length :]


def decode(
    target: Target,
    requests: Sequence[Request],
    settings: DecodeSettings,
    drafter: Drafter | None = None,
    record: bool = False,
) -> Iterator[Round]:
    """Decode `requests`, `settings.batch_size` at a time, and yield what every forward did for every row.

    Output never depends on the drafter, the budget, the layout or the batch (section 4.3; exact in float64). With
    `record`, every round carries one table a step. Raises SpotError before the first forward where a prompt is empty,
    holds the mask token or does not fit the target's context, where the rule serves no drafter, or memory runs out.
    """
    check_settings(settings)
    if drafter is not None:
        settings.rule.check_draftable()
    check_requests(target.spec, requests, settings)
    verdict = distribution_preserving(target.spec, settings if drafter else replace(settings, budget=0))
    if isinstance(drafter, OrderDrafter):
        drafter.check_block_length(target.spec.block_length)
    waiting = deque(enumerate(requests))
    cache = target.new_cache()
    rows: list[_Row] = []
    with torch.inference_mode():
        while waiting or rows:
            _admit(target, cache, rows, waiting, settings, verdict)
            graphs = _propose(rows, settings, drafter)
            packed, hidden = _forward(target, cache, rows, graphs, settings)
            rounds = _advance(target, cache, rows, graphs, packed, hidden, settings, drafter, record)
            for index in reversed(range(len(rows))):
                if rounds[index].result is not None:
                    cache.drop_row(index)
                    rows[index] = rows[-1]
                    rows.pop()
            yield from rounds


def check_requests(spec: TargetSpec, requests: Sequence[Request], settings: DecodeSettings) -> None:
    """Refuse requests that can't be decoded, before any forward."""
    for index, request in enumerate(requests):
        length = len(request.prompt_ids)
        if not length:
            raise SpotError(f"prompt {index} is empty; give it at least one token")
        if spec.mask_id in request.prompt_ids:
            raise SpotError(
                f"prompt {index} holds the mask token (id {spec.mask_id}), which would be decoded as a hole; remove it"
            )
        if bad := next((token for token in request.prompt_ids if not 0 <= token < spec.vocab_size), None):
            raise SpotError(f"prompt {index} holds token id {bad}; the target's ids are 0..{spec.vocab_size - 1}")
        end = -(-(length + settings.max_new_tokens) // spec.block_length) * spec.block_length
        if end > spec.max_positions:
            raise SpotError(
                f"prompt {index} has {length} tokens and max_new_tokens is {settings.max_new_tokens}: {end} positions "
                f"in whole blocks, but the target holds {spec.max_positions}; shorten one of them"
            )


def _admit(
    target: Target,
    cache: PrefixCache,
    rows: list[_Row],
    waiting: deque[tuple[int, Request]],
    settings: DecodeSettings,
    verdict: tuple[bool, str],
) -> None:
    """Fill the batch from `waiting` and encode the new rows' whole prompt blocks."""
    spec = target.spec
    indices: list[int] = []
    prefixes: list[tuple[int, ...]] = []
    while waiting and len(rows) < settings.batch_size:
        number, request = waiting.popleft()
        start = len(request.prompt_ids) // spec.block_length * spec.block_length
        noise = _noise(request, spec) if settings.sampling.temperature > 0 else None
        state = open_block(request.prompt_ids, start, spec.block_length, spec.mask_id)
        canvas = list(request.prompt_ids)
        rows.append(_Row(number, len(canvas), canvas, state, noise, time.perf_counter()))
        rows[-1].stats.distribution_preserving, rows[-1].stats.reason = verdict
        indices.append(cache.add_row())
        prefixes.append(request.prompt_ids[:start])
    if indices:
        _guard_memory(settings, lambda: target.prefill(cache, indices, prefixes))


def _noise(request: Request, spec: TargetSpec) -> GumbelNoise:
    """The request's noise, keeping one block of rows: 40 MB at a vocabulary of 150,000 and L = 32."""
    return GumbelNoise(request.seed, spec.vocab_size, keep_rows=spec.block_length)


def _propose(rows: list[_Row], settings: DecodeSettings, drafter: Drafter | None) -> list[DraftGraph | None]:
    """Draft for every row that has a stale table and something left to draft."""
    graphs: list[DraftGraph | None] = [None] * len(rows)
    if drafter is None or settings.budget == 0:
        return graphs
    drafting = [index for index, row in enumerate(rows) if row.tables and len(row.state.masked_slots) > 1]
    if not drafting:
        return graphs
    contexts = [
        DraftContext(
            request=rows[index].request,
            state=rows[index].state,
            tables=tuple(rows[index].tables),
            budget=settings.budget,
            floor=settings.floor,
            temperature=settings.sampling.temperature,
            noise=rows[index].noise,
        )
        for index in drafting
    ]
    started = time.perf_counter()
    proposed = drafter.propose(contexts)
    share = (time.perf_counter() - started) / len(drafting)
    for index, graph in zip(drafting, proposed, strict=True):
        graphs[index] = graph
        stats = rows[index].stats
        stats.drafter_s += share
        stats.drafter_calls += graph.calls
        stats.states_scored += graph.states_scored
    return graphs


def _forward(
    target: Target,
    cache: PrefixCache,
    rows: list[_Row],
    graphs: list[DraftGraph | None],
    settings: DecodeSettings,
) -> tuple[Packed, torch.Tensor]:
    """One target forward over every row's root and drafted states, or its finished block to be written."""
    packing = []
    for index, (row, graph) in enumerate(zip(rows, graphs, strict=True)):
        drafted = [] if graph is None else [row.state.with_commits(commits) for commits in graph.commits[1:]]
        packing.append(RowStates(index, cache.lengths[index], (row.state, *drafted), read=not row.state.finished))
    pad_states = 1 + settings.budget if settings.pad else 0
    packed = pack(packing, resolve_layout(settings.layout, target.device), target.device, pad_states)
    hidden = _guard_memory(settings, lambda: target.forward(packed, cache))
    for index, row in enumerate(rows):
        row.stats.nfe += 1
        row.stats.positions += packed.positions_of(index)
    return packed, hidden


def _advance(
    target: Target,
    cache: PrefixCache,
    rows: list[_Row],
    graphs: list[DraftGraph | None],
    packed: Packed,
    hidden: torch.Tensor,
    settings: DecodeSettings,
    drafter: Drafter | None,
    record: bool,
) -> list[Round]:
    """Verify every row, apply what it committed, read the tables that will be needed, and move to the next phase."""
    answers = read_answers(target, hidden, settings.rule)
    reading = [
        (state, row.state.start, row.noise)
        for index, row in enumerate(rows)
        for state in range(packed.row_states[index], packed.row_states[index + 1])
        if not row.state.finished
    ]
    transitions = steps_of_states(target, packed, hidden, answers, settings.rule, settings.sampling, reading)
    rounds: list[Round] = []
    wanted: list[tuple[int, int, GumbelNoise | None]] = []
    wanted_of: list[int] = []
    for index, row in enumerate(rows):
        first = packed.row_states[index]
        root = row.state
        if root.finished:
            row.stats.cache_writes += 1
            cache.promote(index, packed, first)
            row.canvas[root.start :] = root.tokens
            row.state = open_block((), root.start + len(root.tokens), len(root.tokens), root.mask_id)
            rounds.append(Round(row.request, root, None, (), ()))
            wanted_of.append(0)
            continue
        graph = graphs[index] or DraftGraph()
        steps, nodes = verify(graph, [transitions.get(first + node) for node in range(1 + len(graph))])
        steps, final, result = _apply(target, row, steps, graph, settings)
        keep = nodes[: len(steps)]
        reads_next = drafter is not None and settings.budget > 0 and result is None and not row.state.finished
        nodes_read = keep if record else keep[-1:] if reads_next else []
        wanted += [(first + node, root.start, row.noise) for node in nodes_read]
        wanted_of.append(len(nodes_read))
        rounds.append(Round(row.request, root, graphs[index], tuple(steps), (), final, result))
    tables = iter(read_tables(target, packed, hidden, settings.sampling, wanted) if wanted else ())
    return [
        _with_tables(row, round_, [next(tables) for _ in range(count)])
        for row, round_, count in zip(rows, rounds, wanted_of, strict=True)
    ]


def _with_tables(row: _Row, round_: Round, tables: list[StaleTable]) -> Round:
    """Attach tables to the round and keep the newest ones for drafting in the same block."""
    row.tables = [] if row.state.finished or not round_.steps else [*reversed(tables), *row.tables][:_RECENT_TABLES]
    return replace(round_, tables=tuple(tables))


def _apply(
    target: Target, row: _Row, steps: list[Step], graph: DraftGraph, settings: DecodeSettings
) -> tuple[list[Step], tuple[int, ...], Result | None]:
    """Commit `steps` one at a time until the row finishes; returns those committed and what became final."""
    stats = row.stats
    stats.rounds += 1
    stats.drafted += len(graph)
    stats.drafted_rounds += len(graph) > 0
    spec = target.spec
    stop_ids = () if settings.ignore_stop else spec.stop_ids
    before = row.final_tokens
    for number, step in enumerate(steps):
        row.state = row.state.with_commits(step)
        stats.commits += len(step)
        stats.accepted += number > 0
        generated = row.generated()
        length = finished_length(generated, spec.mask_id, stop_ids, settings.max_new_tokens)
        filled = next((i for i, token in enumerate(generated) if token == spec.mask_id), len(generated))
        if settings.stop and (cut := _stop_string(target, generated[: length or filled], row, settings)):
            length = cut
        row.final_tokens = length if length is not None else min(filled, settings.max_new_tokens)
        if length is not None:
            result = _result(target, row, tuple(generated[:length]), settings)
            return steps[: number + 1], tuple(generated[before:length]), result
    return steps, tuple(row.generated()[before : row.final_tokens]), None


def _stop_string(target: Target, filled: list[int], row: _Row, settings: DecodeSettings) -> int | None:
    """Length of the shortest prefix of the filled tokens whose text holds a stop string."""
    for length in range(row.final_tokens + 1, len(filled) + 1):
        text = target.tokenizer.decode(filled[:length])
        if any(stop in text for stop in settings.stop):
            return length
    return None


def _result(target: Target, row: _Row, tokens: tuple[int, ...], settings: DecodeSettings) -> Result:
    stop_ids = () if settings.ignore_stop else target.spec.stop_ids
    stopped = bool(tokens) and tokens[-1] in stop_ids
    reason: FinishReason = "stop" if stopped else "length"
    text = ""
    if target.tokenizer is not None:
        text = target.tokenizer.decode(tokens[:-1] if stopped else tokens, skip_special_tokens=True)
        cuts = [text.index(stop) for stop in settings.stop if stop in text]
        if cuts:
            text, reason = text[: min(cuts)], "stop"
    row.stats.wall_s = time.perf_counter() - row.started_s
    return Result(row.request, tokens, text, reason, row.stats)


def _guard_memory(settings: DecodeSettings, call: Callable[[], Outcome]) -> Outcome:
    try:
        return call()
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not known and "allocate memory" not in str(error):
            raise
        raise SpotError(
            f"out of memory in a target forward with batch_size {settings.batch_size} and budget {settings.budget}; "
            "lower one of them"
        ) from error
