"""One request while it is decoded: its active block, what it has committed, and where it ends.

A finished block's state is the all-masked block after it, so a row that is not done always has a masked slot; finished
blocks that the cache does not hold yet stay in `unwritten`. Knows nothing about forwards or drafts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from spot_infer.allocate import Experience, Pace
from spot_infer.blocks import BlockState, Step, finished_length, open_block
from spot_infer.noise import GumbelNoise
from spot_infer.requests import DecodeSettings, FinishReason, Request, Result, Stats
from spot_infer.responses import Responses
from spot_infer.table import StaleTable
from spot_infer.targets.protocol import Target, TargetSpec
from spot_infer.votes import Votes

_RECENT_TABLES = 2


@dataclass
class Row:
    """`canvas` holds the prompt and every finished block, `end` is the first position that is never returned;
    `tables` are of the active block, most recent first, `next_table` of the block after it, `guess` how
    the block may end, where the round's forward looks beyond that. `writes`: finished
    blocks go to the cache; under full attention the next block's opening encodes them anew; `pace`: what its rounds
    took, where drafts have to pay, `resting`: where they do not seem to."""

    request: int
    prompt_length: int
    end: int
    canvas: list[int]
    state: BlockState
    noise: GumbelNoise | None
    started_s: float
    unwritten: tuple[BlockState, ...] = ()
    tables: list[StaleTable] = field(default_factory=list)
    next_table: StaleTable | None = None
    responses: Responses | None = None
    votes: Votes | None = None
    guess: BlockState | None = None
    final_tokens: int = 0
    stats: Stats = field(default_factory=Stats)
    writes: bool = True
    pace: Pace | None = None
    resting: bool = False

    @property
    def block_end(self) -> int:
        """First position after the active block."""
        return self.state.start + len(self.state.tokens)

    @property
    def draft_end(self) -> int:
        """First position that no drafted state reaches: a block that is not written is not left in a draft."""
        return self.end if self.writes else self.block_end

    def committed_in(self, state: BlockState) -> int:
        """Commits since `state`'s block opened, the prompt's tail left out."""
        told = max(self.prompt_length - state.start, 0)
        return len(state.tokens) - told - len(state.masked_slots)

    @property
    def last_block(self) -> bool:
        """Whether no block can follow the active one."""
        return self.block_end >= self.end

    @property
    def waiting_replicas(self) -> int:
        """Replicas that a forward takes for it where nothing is drafted."""
        return 1 + len(self.unwritten)

    def generated(self) -> list[int]:
        """Generated ids so far, from the prompt's end to the end of the active block; masks where nothing is."""
        return (self.canvas[: self.state.start] + list(self.state.tokens))[self.prompt_length :]

    def whole_canvas(self, spec: TargetSpec) -> list[int]:
        """The prompt and every finished block, then masks to the end of the last block."""
        known = self.canvas[: self.state.start]
        end = spec.blocks_end(self.prompt_length, self.end - self.prompt_length)
        return [*known, *[spec.mask_id] * (end - len(known))]

    def remember(self, tables: Sequence[StaleTable], next_table: StaleTable | None) -> None:
        """Keep the newest tables of the active block, `tables` oldest first, and that of the block after it."""
        self.tables = [] if self.resting else [*reversed(tables), *self.tables][:_RECENT_TABLES]
        self.next_table = next_table

    def apply(
        self, target: Target, steps: Sequence[Step], settings: DecodeSettings
    ) -> tuple[list[Step], tuple[int, ...], Result | None]:
        """Commit `steps` one at a time until the row is done; returns those committed and what became final."""
        spec = target.spec
        stop_ids = settings.stops(spec)
        before = self.final_tokens
        self.stats.rounds += 1
        for number, step in enumerate(steps):
            self.state = self.state.with_commits(step)
            self.stats.commits += len(step)
            self.stats.accepted += number > 0
            generated = self.generated()
            length = finished_length(generated, spec.mask_id, stop_ids, settings.max_new_tokens)
            filled = next((i for i, token in enumerate(generated) if token == spec.mask_id), len(generated))
            if settings.stop and (cut := self._stop_string(target, generated[: length or filled], settings)):
                length = cut
            self.final_tokens = length if length is not None else min(filled, settings.max_new_tokens)
            if length is not None:
                result = self._result(target, tuple(generated[:length]), settings)
                return list(steps[: number + 1]), tuple(generated[before:length]), result
            if self.state.finished:
                self._open_next()
        return list(steps), tuple(self.generated()[before : self.final_tokens]), None

    def _open_next(self) -> None:
        self.canvas[self.state.start :] = self.state.tokens
        if self.writes:
            self.unwritten += (self.state,)
            self.stats.boundaries += 1
        self.state = self.state.following()
        self.tables, self.next_table, self.responses, self.votes = [], None, None, None

    def _stop_string(self, target: Target, filled: list[int], settings: DecodeSettings) -> int | None:
        """Length of the shortest prefix of the filled tokens whose text holds a stop string."""
        for length in range(self.final_tokens + 1, len(filled) + 1):
            text = target.tokenizer.decode(filled[:length])
            if any(stop in text for stop in settings.stop):
                return length
        return None

    def _result(self, target: Target, tokens: tuple[int, ...], settings: DecodeSettings) -> Result:
        stop_ids = settings.stops(target.spec)
        stopped = bool(tokens) and tokens[-1] in stop_ids
        reason: FinishReason = "stop" if stopped else "length"
        text = ""
        if target.tokenizer is not None:
            text = target.tokenizer.decode(tokens[:-1] if stopped else tokens, skip_special_tokens=True)
            cuts = [text.index(stop) for stop in settings.stop if stop in text]
            if cuts:
                text, reason = text[: min(cuts)], "stop"
        self.stats.wall_s = time.perf_counter() - self.started_s
        return Result(self.request, tokens, text, reason, self.stats)


def open_row(
    number: int, request: Request, spec: TargetSpec, settings: DecodeSettings, run: Experience, blocks: int = 1
) -> Row:
    """A row at the block that holds its prompt's tail. At temperature > 0 it keeps the request's noise for as many
    `blocks` as a forward reads: 40 MB each at a vocabulary of 150,000 and L = 32."""
    canvas = list(request.prompt_ids)
    start = spec.first_block(len(canvas))
    state = open_block(canvas, start, spec.block_length, spec.mask_id)
    noise = None
    if settings.sampling.temperature > 0:
        noise = GumbelNoise(request.seed, spec.vocab_size, keep_rows=blocks * spec.block_length)
    end = len(canvas) + settings.max_new_tokens
    pace = None if settings.curve is None else Pace(settings.curve, run)
    writes = spec.cache == "exact"
    return Row(number, len(canvas), end, canvas, state, noise, time.perf_counter(), writes=writes, pace=pace)
