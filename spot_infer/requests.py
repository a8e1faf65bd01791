"""What goes into the decode loop and what comes out of it: requests, rounds, results and their accounting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from spot_infer.blocks import BlockState, Step
from spot_infer.cost import CostCurve
from spot_infer.errors import SpotError
from spot_infer.graph import DraftGraph
from spot_infer.packing import Layout
from spot_infer.table import StaleTable
from spot_infer.targets.protocol import TargetSpec
from spot_infer.transition import CommitRule, Sampling

FinishReason = Literal["stop", "length"]
Boundary = Literal["auto", "seamless", "fused", "separate"]
"""`separate` spends a forward on writing a finished block to the cache, `fused` writes it in the next block's first
(under a cost curve an undrafted row of a batch writes apart where that is cheaper);
`seamless` also opens a request's first block in the forward that encodes its prompt. `auto` is `seamless` where
something is drafted and the prefix cache is exact, else `separate`."""
Verifier = Literal["coupled", "uncoupled", "greedy", "rejection"]
"""How a drafted state is accepted at temperature > 0; at temperature 0 all of them are state equality (verify.py)."""


@dataclass(frozen=True)
class Request:
    """One prompt to decode: its token ids and the seed of its noise (`noise.request_seed`)."""

    prompt_ids: tuple[int, ...]
    seed: int = 0


@dataclass(frozen=True)
class DecodeSettings:
    """How the loop runs. budget: most drafted states a round (0 is draft-free); floor: smallest mass worth verifying;
    pad: fill every forward up to 1 + budget replicas a row; batch_size: rows decoded together; verifier: how drafts
    are accepted; boundary: where a finished block is written to the cache, and whether drafters are asked to draft up
    to it; sequences: of every forward in bitwise mode (`bitwise.bitwise_settings`), 0 outside it; curve: what replicas
    cost, where every round drafts only what pays (`allocate`), at most `budget` states a row."""

    max_new_tokens: int = 256
    rule: CommitRule = CommitRule()
    sampling: Sampling = Sampling()
    budget: int = 0
    floor: float = 0.0
    pad: bool = False
    layout: Layout = "auto"
    batch_size: int = 8
    ignore_stop: bool = False
    stop: tuple[str, ...] = ()
    boundary: Boundary = "auto"
    verifier: Verifier = "coupled"
    sequences: int = 0
    curve: CostCurve | None = None

    def stops(self, spec: TargetSpec) -> tuple[int, ...]:
        """The tokens that end a request."""
        return () if self.ignore_stop else spec.stop_ids

    @property
    def verifier_in_force(self) -> Verifier:
        """All verifiers are one where nothing is drawn or nothing is drafted."""
        return self.verifier if self.sampling.temperature > 0 and self.budget > 0 else "coupled"


def check_settings(settings: DecodeSettings) -> None:
    """Raise SpotError for settings under which no request can be decoded."""
    if settings.max_new_tokens < 1:
        raise SpotError(f"max_new_tokens is {settings.max_new_tokens}; use at least 1")
    if settings.budget < 0 or settings.batch_size < 1:
        raise SpotError(
            f"budget is {settings.budget} and batch_size is {settings.batch_size}; use a budget of at least 0 and a "
            "batch size of at least 1"
        )
    if settings.curve is not None and (settings.pad or settings.floor):
        raise SpotError("budget auto drafts what pays, so it takes neither floor nor pad; leave them out")
    if settings.curve is not None and settings.verifier_in_force == "rejection":
        raise SpotError(
            "budget is auto, whose depths follow the batch and the curve, and verifier is rejection, whose tokens "
            "follow the depths; use a budget that is a number or another verifier"
        )
    if settings.verifier not in get_args(Verifier):
        raise SpotError(f"verifier is {settings.verifier!r}; use {', '.join(get_args(Verifier))}")
    if settings.verifier_in_force == "rejection" and settings.rule.selection != "one":
        raise SpotError(
            f"verifier is rejection and rule.selection is {settings.rule.selection}; rejection sampling decides one "
            "commit at a time: use rule.selection one or another verifier"
        )
    if settings.boundary not in get_args(Boundary):
        raise SpotError(f"boundary is {settings.boundary!r}; use {', '.join(get_args(Boundary))}")
    if settings.sequences:
        _check_bitwise(settings)


def _check_bitwise(settings: DecodeSettings) -> None:
    if settings.curve is not None:
        raise SpotError("bitwise is on, where every forward costs the same; use a budget that is a number")
    if settings.sequences < settings.batch_size * (1 + settings.budget):
        raise SpotError(
            f"bitwise mode has {settings.sequences} sequences a forward, but batch_size is {settings.batch_size} and "
            f"budget {settings.budget}; lower one of them"
        )
    if settings.layout != "batch" or settings.boundary != "separate":
        raise SpotError(
            f"bitwise is on, but layout is {settings.layout} and boundary {settings.boundary}; use layout batch and "
            "boundary separate, where every sequence is one block"
        )


@dataclass
class Stats:
    """One request's accounting. nfe: target forwards it took part in beyond the one that encoded its prompt, cache
    writes included; cache_writes: forwards that did nothing else; boundaries: finished blocks that another block
    followed and that were written to the cache; positions: token positions forwarded for it, padding included, its
    prompt's blocks left out; accepted: drafts, the target's own commit excluded; drafted_rounds: rounds that had at
    least one draft; boundary: the one in force; distribution_preserving, reason: the verdict on the configuration
    (`verify.distribution_preserving`)."""

    nfe: int = 0
    rounds: int = 0
    drafted_rounds: int = 0
    cache_writes: int = 0
    boundaries: int = 0
    commits: int = 0
    accepted: int = 0
    drafted: int = 0
    positions: int = 0
    drafter_calls: int = 0
    states_scored: int = 0
    drafter_s: float = 0.0
    wall_s: float = 0.0
    boundary: Boundary = "separate"
    distribution_preserving: bool = True
    reason: str = ""

    @property
    def accepted_per_round(self) -> float:
        """Accepted drafts a drafted round."""
        return self.accepted / self.drafted_rounds if self.drafted_rounds else 0.0

    @property
    def draft_free_nfe(self) -> int:
        """Forwards of draft-free decoding with separate cache writes for the same tokens: one a step and boundary."""
        return self.rounds + self.accepted + self.boundaries


@dataclass(frozen=True)
class Result:
    """One finished request. tokens: generated ids up to and including the stop token; nothing after it."""

    request: int
    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stats: Stats


@dataclass(frozen=True)
class Round:
    """What one target forward did for one request.

    state: the root, or the finished block that the forward only wrote to the cache; graph: what was drafted (None in a
    draft-free round); steps: what committed, in order, accepted drafts first and the target's own last (none where the
    forward only wrote), in blocks that follow one another; tables: when recording, the tables at the root and at every
    accepted state, one a step; otherwise the newest only, and only if something will read it. final_tokens: generated
    ids that became final in this round (contiguous from the left, stop and limit applied). result is set in a request's
    last round. forward: how many forwards came before this one, those that encode prompts left out; rows that shared
    one have the same. replicas: blocks that the forward held for the request, padding left out; 0 where it encoded the
    request's prompt.
    """

    request: int
    state: BlockState
    graph: DraftGraph | None
    steps: tuple[Step, ...]
    tables: tuple[StaleTable, ...]
    final_tokens: tuple[int, ...] = ()
    result: Result | None = field(default=None)
    forward: int = 0
    replicas: int = 0
