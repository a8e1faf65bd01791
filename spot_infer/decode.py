"""The decode loop, draft-free and drafted: draft, one target forward, accept (paper section 4).

Rows of a batch are at different blocks and phases in one forward. A block opens with its root alone (there is no stale
table yet), a request's first one in the forward that encodes its prompt if boundaries are seamless, and goes on in
drafted rounds. A drafted state may finish the block and run on into the next one; accepting it makes the finished
block's keys and values, which the same forward computed, cache. A block that the target finished itself is written in a
forward of its own or, unless boundaries are separate, in the next block's first (where drafts have to pay and none
does, in the cheaper of the two); a row's last block is not. Accepted steps are applied one at a time, so a row ends at
the same commit as draft-free.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from spot_infer.ahead import MOST_OPEN, REPLICAS, completed, make_room
from spot_infer.allocate import Experience, Passed, propose_what_pays, settle, writes_apart
from spot_infer.answers import Answers, read_tables
from spot_infer.bitwise import fixed_shape
from spot_infer.blocks import BlockState, Commit
from spot_infer.drafters.order import OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.fixed_shape import FixedShapeTarget
from spot_infer.graph import (
    DraftContext,
    Drafter,
    DraftGraph,
    Ending,
    crosses_blocks,
    looks_ahead,
    reads_responses,
    tables_read,
)
from spot_infer.packing import Packed, PromptBlocks, RowStates, lineage, pack, pack_prompts, resolve_layout
from spot_infer.rejection import draw_tokens
from spot_infer.replicas import RowReplicas, lay_out, lay_out_write
from spot_infer.requests import Boundary, DecodeSettings, Request, Round, check_settings
from spot_infer.responses import measured
from spot_infer.rows import Row, open_row
from spot_infer.table import StaleTable
from spot_infer.targets.protocol import CanvasTarget, PrefixCache, Target, TargetSpec
from spot_infer.verify import distribution_preserving, shared_sampling
from spot_infer.votes import counted
from spot_infer.walk import Forward, walk

Outcome = TypeVar("Outcome")


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
    settings = replace(settings, boundary=boundary_in_force(target.spec, settings, drafter))
    if settings.sequences:
        target = fixed_shape(target, requests, settings, drafter)
    verdict = distribution_preserving(target.spec, settings if drafter else replace(settings, budget=0))
    if isinstance(drafter, OrderDrafter):
        drafter.check_block_length(target.spec.block_length)
    spec, run = target.spec, Experience()
    blocks = 2 if settings.boundary != "separate" or crosses_blocks(drafter) else 1

    def new_row(number: int, request: Request) -> Row:
        row = open_row(number, request, spec, settings, run, blocks)
        row.stats.distribution_preserving, row.stats.reason = verdict
        row.stats.boundary = settings.boundary
        return row

    waiting = deque(enumerate(requests))
    cache = target.new_cache()
    rows: list[Row] = []
    number = -1
    with torch.inference_mode():
        while waiting or rows:
            if opened := _admit(target, cache, rows, waiting, settings, new_row):
                rounds = _open(target, cache, rows, opened, settings, drafter, record)
                _release(cache, rows, dict(zip(opened, rounds, strict=True)))
                yield from (replace(round_, forward=number) for round_ in rounds)
            if not rows:
                continue
            graphs = _propose(target.spec, rows, settings, drafter)
            forward = _forward(target, cache, rows, graphs, settings)
            rounds = _advance(target, cache, rows, graphs, forward, settings, drafter, record)
            number += 1
            _release(cache, rows, dict(enumerate(rounds)))
            yield from (replace(round_, forward=number) for round_ in rounds)


def check_requests(spec: TargetSpec, requests: Sequence[Request], settings: DecodeSettings) -> None:
    """Refuse requests that can't be decoded, before any forward; the error names the request by its index."""
    for index, request in enumerate(requests):
        if fault := request_fault(spec, request, settings.max_new_tokens):
            raise SpotError(f"prompt {index} {fault}")


def boundary_in_force(spec: TargetSpec, settings: DecodeSettings, drafter: Drafter | None) -> Boundary:
    """What `auto` means for a run: seamless where something is drafted and finished blocks are cached, else separate.

    Raises SpotError where a draft is asked to cross into a block that the target has to encode anew.
    """
    if spec.cache != "exact" and (settings.boundary in ("fused", "seamless") or crosses_blocks(drafter)):
        raise SpotError(
            f"target {spec.name} has full attention, where a finished block is encoded anew; use boundary separate "
            "and a drafter that does not cross blocks"
        )
    if settings.boundary != "auto":
        return settings.boundary
    return "seamless" if spec.cache == "exact" and drafter is not None and settings.budget > 0 else "separate"


def request_fault(spec: TargetSpec, request: Request, max_new_tokens: int) -> str | None:
    """What is wrong with a request and what to do, as a sentence that lacks its subject; None where nothing is."""
    length = len(request.prompt_ids)
    if not length:
        return "is empty; give it at least one token"
    if spec.mask_id in request.prompt_ids:
        return f"holds the mask token (id {spec.mask_id}), which would be decoded as a hole; remove it"
    if bad := next((token for token in request.prompt_ids if not 0 <= token < spec.vocab_size), None):
        return f"holds token id {bad}; the target's ids are 0..{spec.vocab_size - 1}"
    end = spec.blocks_end(length, max_new_tokens)
    if end > spec.max_positions:
        return (
            f"has {length} tokens and max_new_tokens is {max_new_tokens}: {end} positions in whole blocks, but the "
            f"target holds {spec.max_positions}; shorten one of them"
        )
    return None


def _admit(
    target: Target,
    cache: PrefixCache,
    rows: list[Row],
    waiting: deque[tuple[int, Request]],
    settings: DecodeSettings,
    new_row: Callable[[int, Request], Row],
) -> list[int]:
    """Fill the batch from `waiting` and encode the new rows' whole prompt blocks, but for the rows it returns: those
    whose prompt is to be encoded in the forward that opens the block behind it."""
    opened: list[int] = []
    indices: list[int] = []
    prefixes: list[tuple[int, ...]] = []
    while waiting and len(rows) < settings.batch_size:
        number, request = waiting.popleft()
        rows.append(new_row(number, request))
        index = cache.add_row()
        start = rows[-1].state.start
        if settings.boundary == "seamless" and start > 0:
            opened.append(index)
        else:
            indices.append(index)
            prefixes.append(request.prompt_ids[:start])
    if indices:
        _guard_memory(settings, lambda: target.prefill(cache, indices, prefixes))
    return opened


def _open(
    target: Target,
    cache: PrefixCache,
    rows: list[Row],
    opened: Sequence[int],
    settings: DecodeSettings,
    drafter: Drafter | None,
    record: bool,
) -> list[Round]:
    """Encode the prompts of the new rows `opened` and commit their first step, in one forward."""
    new = [rows[index] for index in opened]
    spec = target.spec
    prompts = [
        PromptBlocks(index, row.canvas[: row.state.start], row.state) for index, row in zip(opened, new, strict=True)
    ]
    packed = pack_prompts(prompts, spec.block_length, spec.mask_id, target.device)
    hidden = _guard_memory(settings, lambda: target.forward(packed, cache))
    cache.store(opened, [row.state.start for row in new])
    laid = [lay_out((), row.state, DraftGraph(), row.draft_end, spec.vocab_size) for row in new]
    for row in new:
        row.stats.positions += spec.block_length
    return _advance(target, cache, new, [None] * len(new), Forward(packed, hidden, laid), settings, drafter, record)


def _release(cache: PrefixCache, rows: list[Row], rounds: Mapping[int, Round]) -> None:
    """Drop the rows that are done, by their index in the batch."""
    for index in sorted(rounds, reverse=True):
        if rounds[index].result is not None:
            cache.drop_row(index)
            rows[index] = rows[-1]
            rows.pop()


def _propose(
    spec: TargetSpec, rows: list[Row], settings: DecodeSettings, drafter: Drafter | None
) -> list[DraftGraph | None]:
    """Draft for every row that has a stale table and something left to draft."""
    graphs: list[DraftGraph | None] = [None] * len(rows)
    for row in rows:
        row.guess = None
    if drafter is None or settings.budget == 0:
        return graphs
    crosses = _crosses(settings, drafter)
    shared = shared_sampling(settings)
    stop_ids = frozenset(settings.stops(spec))
    contexts = {
        index: DraftContext(
            request=row.request,
            state=row.state,
            tables=tuple(row.tables),
            budget=settings.budget,
            floor=settings.floor,
            temperature=shared.temperature,
            noise=row.noise if shared.temperature > 0 else None,
            completes=crosses and not row.last_block,
            ending=Ending(row.prompt_length, row.end, stop_ids),
            next_table=row.next_table,
            responses=row.responses,
            votes=row.votes,
        )
        for index, row in enumerate(rows)
        if row.tables and not row.resting
    }
    contexts = {index: one for index, one in contexts.items() if one.completes or len(one.state.masked_slots) > 1}
    if not contexts:
        return graphs
    started = time.perf_counter()
    paces = {index: row.pace for index, row in enumerate(rows) if row.pace is not None}
    if paces:
        drafting = [paces[index] for index in contexts]
        idle = {paces[index]: row.waiting_replicas for index, row in enumerate(rows) if index not in contexts}
        proposed = propose_what_pays(drafter, drafting, list(contexts.values()), idle)
    else:
        proposed = drafter.propose(list(contexts.values()))
    share = (time.perf_counter() - started) / len(contexts)
    replicas = sum(row.waiting_replicas for row in rows) + sum(map(len, proposed))
    for index, graph in zip(contexts, proposed, strict=True):
        if settings.sequences and len(graph) > settings.budget:
            graph = graph.trimmed(range(1, 1 + settings.budget))
        graph, rows[index].guess = _look_ahead(spec, rows[index], contexts[index], graph, settings, drafter, replicas)
        replicas += 0 if rows[index].guess is None else REPLICAS
        noise = rows[index].noise
        if noise is not None and settings.verifier_in_force == "rejection":
            graph = draw_tokens(graph, contexts[index], settings.sampling, noise.seed)
        graphs[index] = graph
        stats = rows[index].stats
        stats.drafted += len(graph)
        stats.drafted_rounds += len(graph) > 0
        stats.drafter_s += share
        stats.drafter_calls += graph.calls
        stats.states_scored += graph.states_scored
    return graphs


def _crosses(settings: DecodeSettings, drafter: Drafter | None) -> bool:
    """Whether drafts may run on into the next block."""
    return settings.boundary != "separate" or crosses_blocks(drafter)


def _look_ahead(
    spec: TargetSpec,
    row: Row,
    context: DraftContext,
    graph: DraftGraph,
    settings: DecodeSettings,
    drafter: Drafter | None,
    replicas: int,
) -> tuple[DraftGraph, BlockState | None]:
    """What is drafted for a row, and its block as it is likeliest to end where the forward looks beyond that: if
    the next round may get there, if the guess does not end the request, and if it is worth the states it takes or, on a
    cost curve, what it adds to a forward of `replicas`."""
    looks = looks_ahead(drafter) and _crosses(settings, drafter)
    if not looks or row.last_block or len(row.state.masked_slots) > MOST_OPEN * len(graph):
        return graph, None
    guess = completed(context)
    if guess is None:
        return graph, None
    generated = guess.tokens[max(row.prompt_length - guess.start, 0) :]
    if not {*settings.stops(spec)}.isdisjoint(generated):
        return graph, None
    commits = [Commit(guess.start + slot, guess.tokens[slot]) for slot in row.state.masked_slots]
    price = 0.0 if row.pace is None else row.pace.price(replicas, REPLICAS)
    roomy = make_room(graph, commits, settings.budget, price)
    return (graph, None) if roomy is None else (roomy, guess)


def _forward(
    target: Target,
    cache: PrefixCache,
    rows: list[Row],
    graphs: list[DraftGraph | None],
    settings: DecodeSettings,
) -> Forward:
    """One target forward over every row's root and drafted states, or its finished block to be written."""
    apart = settings.curve is not None and not any(graphs) and writes_apart(settings.curve, len(rows))
    laid = [
        lay_out_write(row.unwritten)
        if row.unwritten and (settings.boundary == "separate" or (apart and row.resting))
        else lay_out(
            row.unwritten,
            row.state,
            graph or DraftGraph(),
            row.block_end if settings.sequences else row.draft_end,
            target.spec.vocab_size,
            row.guess,
        )
        for row, graph in zip(rows, graphs, strict=True)
    ]
    packing = [RowStates(index, cache.lengths[index], one.replicas) for index, one in enumerate(laid)]
    pad_states = 1 + settings.budget if settings.pad else 0
    layout = resolve_layout(settings.layout, target.device)
    if isinstance(target, CanvasTarget):
        target.open_blocks(cache, [row.whole_canvas(target.spec) for row in rows], [row.state.start for row in rows])
        packed = target.pack(packing, cache, layout, pad_states)
    else:
        packed = pack(packing, layout, target.device, pad_states)
    if isinstance(target, FixedShapeTarget):
        packed = target.fill(packed)
    hidden = _guard_memory(settings, lambda: target.forward(packed, cache))
    for index, row in enumerate(rows):
        row.stats.nfe += 1
        row.stats.positions += packed.positions_of(index)
    return Forward(packed, hidden, laid)


def _advance(
    target: Target,
    cache: PrefixCache,
    rows: list[Row],
    graphs: list[DraftGraph | None],
    forward: Forward,
    settings: DecodeSettings,
    drafter: Drafter | None,
    record: bool,
) -> list[Round]:
    """Verify every row, apply what it committed, make cache of the blocks behind it, and read the tables needed."""
    packed, hidden = forward.packed, forward.hidden
    responsive = reads_responses(drafter) and settings.budget > 0
    walks, answers = walk(target, forward, rows, graphs, settings, responsive)
    drafts = drafter is not None and settings.budget > 0
    rounds: list[Round] = []
    reads: list[list[int]] = []
    for index, (row, laid) in enumerate(zip(rows, forward.laid, strict=True)):
        held = 0 if packed.encodes_prompts else len(laid.replicas)
        if not laid.of_node:
            rounds.append(Round(row.request, row.unwritten[-1], None, (), (), replicas=held))
            reads.append([])
            row.stats.cache_writes += 1
            _promote(cache, index, row, packed, range(len(laid.replicas)))
            continue
        root, (steps, nodes) = row.state, walks[index]
        steps, final, result = row.apply(target, steps, settings)
        rounds.append(Round(row.request, root, graphs[index], tuple(steps), (), final, result, replicas=held))
        passed = [replica for node in nodes[: len(steps)] if (replica := laid.of_node[node]) is not None]
        if result is None:
            _promote(cache, index, row, packed, lineage(laid.replicas, passed[-1])[:-1])
            if responsive:
                _respond(row, laid, passed[-1], packed.row_states[index], answers)
        newest = [replica for replica in passed[-tables_read(drafter) :] if laid.start(replica) == row.state.start]
        reads.append(passed if record else newest if drafts and result is None else [])
        if laid.next_block is not None and root.start == row.state.start and result is None:
            reads[-1].append(laid.next_block)
    _settle(rows, graphs, forward.laid, rounds)
    reads = [[] if row.resting and not record else read for row, read in zip(rows, reads, strict=True)]
    wanted = [
        (packed.row_states[index] + replica, laid.start(replica), rows[index].noise)
        for index, (laid, read) in enumerate(zip(forward.laid, reads, strict=True))
        for replica in read
    ]
    tables = iter(read_tables(target, packed, hidden, shared_sampling(settings), wanted) if wanted else ())
    return [
        _with_tables(row, round_, {replica: next(tables) for replica in read}, laid)
        for row, round_, read, laid in zip(rows, rounds, reads, forward.laid, strict=True)
    ]


def _respond(row: Row, laid: RowReplicas, passed: int, first: int, answers: Mapping[int, Answers]) -> None:
    """Note what the active block's states say of one another; `passed`: replica of the last that was reached, `first`:
    packed state of the row's first replica."""
    at = laid.replicas[passed].state
    if at.start == row.state.start:
        drafted = [replica for replica in laid.of_node if replica is not None and laid.start(replica) == at.start]
        said = {one: (laid.replicas[one].state, answers[first + one]) for one in drafted}
        row.responses = measured(row.responses, [(state, own.log_odds) for state, own in said.values()], at)
        row.votes = counted([(state, own.drawn) for one, (state, own) in said.items() if one != passed])


def _settle(rows: list[Row], graphs: list[DraftGraph | None], laid: list[RowReplicas], rounds: list[Round]) -> None:
    """Where drafts have to pay, note what the forward took, and which rows are not worth drafting next."""
    paces = [row.pace for row in rows if row.pace is not None]
    if not paces:
        return
    passed = [
        Passed(len(one.replicas), sum(map(len, round_.steps)), graph, max(len(round_.steps) - 1, 0))
        for one, round_, graph in zip(laid, rounds, graphs, strict=True)
    ]
    settle(paces, passed)
    for row, pace in zip(rows, paces, strict=True):
        row.resting = not pace.drafts()


def _promote(cache: PrefixCache, index: int, row: Row, packed: Packed, replicas: Sequence[int]) -> None:
    """Make cache of the row's first unwritten blocks: `replicas` are theirs, computed by the forward `packed`."""
    for replica in replicas:
        cache.promote(index, packed, packed.row_states[index] + replica)
    row.unwritten = row.unwritten[len(replicas) :]


def _with_tables(row: Row, round_: Round, tables: dict[int, StaleTable], laid: RowReplicas) -> Round:
    """Attach the passed states' tables to the round, and keep what the next round drafts from."""
    unopened = laid.next_block is not None and laid.start(laid.next_block) > row.state.start
    ahead = tables.pop(laid.next_block, None) if laid.next_block is not None and unopened else None
    row.remember([table for replica, table in tables.items() if laid.start(replica) == row.state.start], ahead)
    return replace(round_, tables=tuple(tables.values()))


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
