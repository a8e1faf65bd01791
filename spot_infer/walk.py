"""From a forward's hidden states to what every row commits: read a state, and go on where its step was drafted.

On a CPU every row of the head costs what it computes, so a state's slots meet the vocabulary once the walk gets there:
of a budget's states a few. Elsewhere, and for a drafter that reads responses, all states are read at once, for one
synchronisation. Knows nothing about caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spot_infer.answers import Answers, read_answers
from spot_infer.blocks import Step
from spot_infer.graph import DraftGraph
from spot_infer.packing import Packed
from spot_infer.replicas import RowReplicas
from spot_infer.requests import DecodeSettings
from spot_infer.rows import Row
from spot_infer.targets.protocol import Target
from spot_infer.transition import Sampling
from spot_infer.verify import shared_sampling, target_steps, verify


@dataclass(frozen=True)
class Forward:
    """One target forward: hidden [M, H], and which of its replicas stand for what in every row."""

    packed: Packed
    hidden: Tensor
    laid: list[RowReplicas]


def reads_at_once(device: torch.device) -> bool:
    """Whether all states of a forward are read before any is walked to."""
    return device.type != "cpu"


def walk(
    target: Target,
    forward: Forward,
    rows: Sequence[Row],
    graphs: Sequence[DraftGraph | None],
    settings: DecodeSettings,
    every_state: bool = False,
) -> tuple[list[tuple[list[Step], list[int]]], dict[int, Answers]]:
    """What `verify` says of every row, the steps and the nodes passed; none of a row that lays out no state. And what
    the target answers, by packed state, at the states that were read: all of them with `every_state`, drawn tokens
    as well where the drafter may foresee them."""
    packed, laid = forward.packed, forward.laid
    walks: list[tuple[list[Step], list[int]]] = [([], []) for _ in rows]
    transitions: dict[int, Step] = {}
    answers: dict[int, Answers] = {}
    ends: set[int] = set()
    drafts = [graph or DraftGraph() for graph in graphs]
    foreseen = shared_sampling(settings) if every_state else Sampling()
    wave = [(index, node) for index, one in enumerate(laid) for node in range(len(one.of_node))]
    if not (every_state or reads_at_once(target.device)):
        wave = [(index, node) for index, node in wave if node == 0]
    while wave:
        read, known, ended = _steps(target, forward, rows, graphs, settings, wave, foreseen)
        answers |= read
        transitions |= known
        ends |= ended
        reached = []
        for index in sorted({index for index, _ in wave}):
            first, of_node = packed.row_states[index], laid[index].of_node
            at = [None if replica is None else first + replica for replica in of_node]
            closing = [node for node, state in enumerate(at) if state in ends]
            steps_at = [None if state is None else transitions.get(state) for state in at]
            steps, nodes = verify(drafts[index], steps_at, closing)
            walks[index] = steps, nodes
            if len(steps) < len(nodes) and at[nodes[-1]] is not None:
                reached.append((index, nodes[-1]))
        wave = reached
    return walks, answers


def _steps(
    target: Target,
    forward: Forward,
    rows: Sequence[Row],
    graphs: Sequence[DraftGraph | None],
    settings: DecodeSettings,
    wave: Sequence[tuple[int, int]],
    foreseen: Sampling,
) -> tuple[dict[int, Answers], dict[int, Step], frozenset[int]]:
    """The target's answers, with tokens drawn as they are `foreseen`, and steps at the nodes of `wave`, (row, node)
    each, and which end a round, by packed state."""
    packed, hidden, laid = forward.packed, forward.hidden, forward.laid
    places = [
        (packed.row_states[index] + replica, rows[index], laid[index].replicas[replica].state, graphs[index], node)
        for index, node in wave
        if (replica := laid[index].of_node[node]) is not None
    ]
    reading = [(at, state.start, row.noise) for at, row, state, _, _ in places]
    answers = read_answers(target, packed, hidden, settings.rule, reading, foreseen)
    committed = {at: row.committed_in(state) for at, row, state, _, _ in places if settings.rule.counts_commits}
    drafted = {at: (graph, node) for at, _, _, graph, node in places if graph is not None}
    return answers, *target_steps(target, packed, hidden, answers, settings, reading, drafted, committed)
