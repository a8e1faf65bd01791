"""The target's transition as a value and pure functions: which slots commit, which token each of them takes.

Paper section 4.1 (equations 1 and 2) and 4.3 (equation 4). Everything that decides an order, collection, features,
drafters, verification, calls `ranking_values` and `select_slots`; everything that picks a token calls `draw`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from spot_infer.errors import SpotError

Ranking = Literal["probability", "margin", "entropy"]
_LATER_FIELDS = ("inclusive", "temperature", "opening")


@dataclass(frozen=True)
class CommitRule:
    """Which masked slots the target commits after a forward.

    ranking: what a slot is ranked by, always before temperature and filters: its largest probability, the margin
        between its two likeliest allowed tokens, or its negative entropy.
    resolution: `float32` ranks by the value itself; `bfloat16` by bfloat16(probability), as decoders that take the
        softmax in model dtype do; a number e ties every slot whose probability is at least 1 - e.
    selection: `one` slot, a `quota` of slots, or every slot whose probability is above `threshold` (at least `quota`).
    Ties break to the lowest slot.

    The last fields, and a quota that is a tuple (one number a step of a block, the last repeating), serve to reproduce
    what published decoders return, draft-free: `inclusive` commits at the threshold too; `temperature` ranks, and
    compares with the threshold, after it; `opening` is `first` where the forward that opens a block commits its first
    masked slot alone.
    """

    ranking: Ranking = "probability"
    resolution: str | float = "float32"
    selection: Literal["one", "quota", "threshold"] = "one"
    quota: int | tuple[int, ...] = 1
    threshold: float = 0.9
    inclusive: bool = False
    temperature: float = 1.0
    opening: Literal["rule", "first"] = "rule"

    def __post_init__(self) -> None:
        if self.ranking not in get_args(Ranking):
            raise SpotError(f"rule.ranking is {self.ranking!r}; use one of {', '.join(get_args(Ranking))}")
        numeric = isinstance(self.resolution, float) and 0 < self.resolution < 0.5
        if not numeric and self.resolution not in ("float32", "bfloat16"):
            raise SpotError(
                f"rule.resolution is {self.resolution!r}; use float32, bfloat16 or a number between 0 and 0.5"
            )
        if numeric and self.ranking != "probability":
            raise SpotError(
                f"rule.resolution is {self.resolution!r} with rule.ranking {self.ranking!r}; a number ties "
                "probabilities: use float32 or bfloat16 here, or rank by probability"
            )
        if self.selection not in ("one", "quota", "threshold"):
            raise SpotError(f"rule.selection is {self.selection!r}; use one, quota or threshold")
        if min(self._quotas(), default=0) < 1 or not 0 < self.threshold < 1:
            raise SpotError(
                f"rule.quota is {self.quota} and rule.threshold is {self.threshold}; use a quota of at least 1 and a "
                "threshold between 0 and 1"
            )
        if isinstance(self.quota, tuple) and self.selection != "quota":
            raise SpotError(f"rule.quota is {self.quota} under selection {self.selection}, which takes one number")
        if not 0 < self.temperature < float("inf") or self.opening not in ("rule", "first"):
            raise SpotError(
                f"rule.temperature is {self.temperature} and rule.opening is {self.opening!r}; use a positive "
                "temperature and rule or first"
            )

    def _quotas(self) -> tuple[int, ...]:
        return self.quota if isinstance(self.quota, tuple) else (self.quota,)

    @property
    def tie_width(self) -> float:
        """Largest 1 - p at which a slot of probability p still ranks as a certain one does: 0 where none does."""
        if self.resolution == "bfloat16":
            return 2.0**-9
        return self.resolution if isinstance(self.resolution, float) else 0.0

    @property
    def counts_commits(self) -> bool:
        """Whether a step depends on how many commits its block has seen."""
        return self.opening == "first" or isinstance(self.quota, tuple)

    def quota_after(self, committed: int) -> int:
        """Slots of the step that follows `committed` commits in a block."""
        quotas = self._quotas()
        for quota in quotas[:-1]:
            if committed <= 0:
                return quota
            committed -= quota
        return quotas[-1]

    def check_draftable(self) -> None:
        """Raise SpotError for a rule that decodes draft-free only: what it commits is not what drafters rank by."""
        later = {name: getattr(self, name) for name in _LATER_FIELDS if name != "inclusive"}
        odd = {name: value for name, value in later.items() if value != getattr(CommitRule, name)}
        if isinstance(self.quota, tuple):
            odd["quota"] = self.quota
        if odd:
            name, value = next(iter(odd.items()))
            raise SpotError(
                f"rule.{name} is {value!r}, which reproduces a published decoder draft-free; drafters, shards and "
                "replay can't serve it: leave it out, or decode without a drafter"
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON values; the fields after `threshold` only where they are not the default."""
        fields = asdict(self)
        if isinstance(self.quota, tuple):
            fields["quota"] = list(self.quota)
        return {
            name: value
            for name, value in fields.items()
            if name not in _LATER_FIELDS or value != getattr(CommitRule, name)
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> CommitRule:
        unknown = set(fields) - set(cls.__dataclass_fields__)
        if unknown:
            raise SpotError(f"rule has unknown keys {sorted(unknown)}; known keys: {sorted(cls.__dataclass_fields__)}")
        quota = fields.get("quota")
        return cls(**{**fields, "quota": tuple(quota)} if isinstance(quota, list) else fields)


@dataclass(frozen=True)
class Sampling:
    """Temperature (0 is greedy), then top-k (0 keeps all), then top-p (1 keeps all), then noise: in that order."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or self.temperature == float("inf"):
            raise SpotError(f"temperature is {self.temperature}; use 0 for greedy decoding or a positive number")
        if self.top_k < 0:
            raise SpotError(f"top_k is {self.top_k}; use 0 to keep every token or a positive integer")
        if not 0 < self.top_p <= 1:
            raise SpotError(f"top_p is {self.top_p}; use a number above 0 and at most 1")


def named_resolution(text: str) -> str | float:
    """A resolution as a command line gives it: a name, or a number that ties probabilities."""
    try:
        return float(text)
    except ValueError:
        return text


def confidence(logits: Tensor, forbidden_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Best allowed token and its log-odds, with the slot's log-normaliser.

    logits [M, V] float32 or float64; forbidden_ids [F] int64 stay in the normaliser and can't be best.
    Returns log_odds [M] = z_best - logsumexp(the other logits), best token [M] int64 (lowest id among ties),
    log-normaliser [M]. Log-odds are never computed through 1 - p, which saturates.
    """
    allowed = logits.index_fill(-1, forbidden_ids, -torch.inf)
    best_logit = allowed.max(dim=-1).values
    token_ids = torch.arange(logits.shape[-1], device=logits.device)
    best = torch.where(allowed == best_logit[:, None], token_ids, logits.shape[-1]).min(dim=-1).values
    others = torch.logsumexp(logits.scatter(-1, best[:, None], -torch.inf), dim=-1)
    return best_logit - others, best, torch.logaddexp(best_logit, others)


def ranking_values(
    log_odds: Tensor, rule: CommitRule, logits: Tensor | None = None, forbidden_ids: Tensor | None = None
) -> Tensor:
    """The value slots are ranked by, largest first, shaped like `log_odds` [...].

    `logits` [..., V] are needed by the margin and entropy rankings only; `forbidden_ids` [F] are not in a margin.
    """
    if rule.ranking == "probability":
        value = log_odds
        if rule.resolution == "bfloat16":
            return torch.sigmoid(value.double()).to(torch.bfloat16).to(value.dtype)
        if isinstance(rule.resolution, float):
            return value.clamp(max=float(torch.logit(torch.tensor(1 - rule.resolution, dtype=torch.float64))))
        return value
    if logits is None:
        raise ValueError(f"ranking {rule.ranking!r} needs the slots' logits")
    probabilities = logits.softmax(dim=-1)
    if rule.ranking == "margin":
        if forbidden_ids is not None:
            probabilities = probabilities.index_fill(-1, forbidden_ids, 0.0)
        top = probabilities.topk(2, dim=-1).values
        value = top[..., 0] - top[..., 1]
    else:
        value = torch.special.xlogy(probabilities, probabilities).sum(dim=-1)
    if rule.resolution == "bfloat16":
        return value.to(torch.bfloat16).to(value.dtype)
    return value


def select_slots(values: list[float], log_odds: list[float], rule: CommitRule, committed: int = 0) -> list[int]:
    """Indices into one state's masked slots (ascending slots) that commit now, best first.

    `committed`: how many were committed since the block opened; only a rule that is not the same at every step asks.
    """
    if rule.opening == "first" and not committed:
        return [0]
    order = sorted(range(len(values)), key=lambda index: (-values[index], index))
    if rule.selection == "one":
        return order[:1]
    quota = rule.quota_after(committed)
    if rule.selection == "quota":
        return order[:quota]
    floor = float(torch.logit(torch.tensor(rule.threshold, dtype=torch.float64)))
    above = [index for index in order if log_odds[index] > floor or (rule.inclusive and log_odds[index] == floor)]
    return above if len(above) >= quota else order[:quota]


def draw(logits: Tensor, noise: Tensor, sampling: Sampling, forbidden_ids: Tensor) -> tuple[Tensor, Tensor]:
    """The coupled draw (equation 4): argmax of filtered log-probabilities at temperature plus keyed Gumbel noise.

    logits [M, V], noise [M, V] (float64), sampling.temperature > 0. Returns the drawn token [M] int64 (lowest id
    among ties) and its log-probability [M] under the filtered, renormalised law.
    """
    log_law = token_law(logits, sampling, forbidden_ids)
    token = pick(log_law, noise)
    return token, log_law.gather(-1, token[:, None]).squeeze(-1)


def draw_from_all(logits: Tensor, noise: Tensor, temperature: float, forbidden_ids: Tensor) -> Tensor:
    """What `draw` would commit were nothing filtered, [M] int64: one pass over the vocabulary and no sort, for drafts.

    logits [M, V], noise [M, V] (float64), temperature > 0.
    """
    perturbed = torch.add(noise, logits, alpha=1 / temperature)
    return perturbed.index_fill_(-1, forbidden_ids, -torch.inf).argmax(dim=-1)


def token_law(logits: Tensor, sampling: Sampling, forbidden_ids: Tensor) -> Tensor:
    """The law that tokens are drawn from at temperature > 0: log-probabilities float64 [M, V] of logits [M, V].

    Forbidden tokens have none; filtered and renormalised.
    """
    scaled = logits.to(torch.float64).index_fill(-1, forbidden_ids, -torch.inf) / sampling.temperature
    return torch.log_softmax(filter_logits(scaled, sampling), dim=-1)


def pick(log_law: Tensor, noise: Tensor) -> Tensor:
    """Draw from log-probabilities [M, V], up to a constant a row, with Gumbel noise [M, V]: tokens [M] int64."""
    perturbed = log_law + noise
    token_ids = torch.arange(log_law.shape[-1], device=log_law.device)
    largest = perturbed.max(dim=-1, keepdim=True).values
    return torch.where(perturbed == largest, token_ids, log_law.shape[-1]).min(dim=-1).values


def filter_logits(scaled: Tensor, sampling: Sampling) -> Tensor:
    """Top-k, then top-p, on logits [M, V] already divided by the temperature; removed tokens become -inf.

    Ties at the edge of either filter are kept in order of token id.
    """
    if not sampling.top_k and sampling.top_p >= 1:
        return scaled
    ordered, order = torch.sort(scaled, dim=-1, descending=True, stable=True)
    if 0 < sampling.top_k < scaled.shape[-1]:
        ordered = ordered.index_fill(
            -1, torch.arange(sampling.top_k, scaled.shape[-1], device=scaled.device), -torch.inf
        )
    if sampling.top_p < 1:
        probabilities = ordered.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        ordered = ordered.masked_fill(before >= sampling.top_p, -torch.inf)
    return torch.empty_like(scaled).scatter(-1, order, ordered)
