"""The order model: which slot commits next, read from a stale table and a hypothetical state (paper section 4.2).

A three-layer pre-norm encoder over the table's slots, and one of two heads: `per_level` encodes every drafted state
anew, the paper's form; `one_call` encodes the root alone and scores every state that can follow from that
(`set_head.py`). Knows nothing about tables, tokens or files: features in, scores out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from spot_infer.errors import SpotError
from spot_infer.features import (
    LOG_ODDS_COLUMN,
    LOG_ODDS_SCALE,
    PATH_FEATURES,
    RANK_COLUMN,
    FeatureKind,
    path_features,
    table_features,
)
from spot_infer.set_head import SetHead
from spot_infer.transition import CommitRule

Scorer = Literal["per_level", "one_call"]
Residual = Literal["none", "rank", "confidence"]
HEAD_HIDDEN: dict[Scorer, int] = {"per_level": 128, "one_call": 48}
"""Units of either head that make a model of the paper's size."""
MOST_SCALE = 20.0
RANK_WEIGHT, CONFIDENCE_WEIGHT = 0.5, 0.5
"""Where the learned multiples start: log-odds only under a rule that ties nothing, where they agree with the ranks."""
_SIZES = ("block_length", "d_model", "heads", "layers", "feed_forward", "head_hidden")
_ADDED: dict[str, Any] = {"scorer": "per_level"}
"""Fields that configs written before them lack, and what they mean there."""


@dataclass(frozen=True)
class OrderModelConfig:
    """Everything the network's shape and inputs depend on.

    features: kind of the inputs; d_max: largest depth trained; rule: the commit rule whose ranking the inputs hold;
    residual: what is added to the network's scores, so that training starts from the untrained order: a learned
    multiple of the ranks, of the ranks and of the log-odds that near ties show in (confidence), or nothing; scorer:
    which head, of head_hidden units.
    """

    block_length: int
    d_model: int = 128
    heads: int = 8
    layers: int = 3
    feed_forward: int = 512
    head_hidden: int = 128
    features: FeatureKind = "v1"
    d_max: int = 15
    residual: Residual = "confidence"
    scorer: Scorer = "per_level"
    rule: CommitRule = field(default_factory=CommitRule)

    def __post_init__(self) -> None:
        for name in _SIZES:
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise SpotError(f"model.{name} is {size!r}; expected a whole number of at least 1")
        if not isinstance(self.d_max, int) or isinstance(self.d_max, bool) or self.d_max < 0:
            raise SpotError(f"model.d_max is {self.d_max!r}; expected a whole number of at least 0")
        if self.block_length > 256:
            raise SpotError(f"model.block_length is {self.block_length}; slots are stored in a byte, so at most 256")
        if self.d_model % self.heads:
            raise SpotError(f"model.d_model is {self.d_model}; expected a multiple of model.heads ({self.heads})")
        if self.features not in get_args(FeatureKind):
            raise SpotError(f"model.features is {self.features!r}; use one of {', '.join(get_args(FeatureKind))}")
        if self.scorer not in get_args(Scorer):
            raise SpotError(f"model.scorer is {self.scorer!r}; use one of {', '.join(get_args(Scorer))}")
        if self.residual not in get_args(Residual):
            raise SpotError(f"model.residual is {self.residual!r}; use one of {', '.join(get_args(Residual))}")
        self.rule.check_draftable()

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rule": self.rule.to_dict()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> OrderModelConfig:
        """The config from JSON values; unknown, missing and mistyped ones raise SpotError."""
        fields = {**_ADDED, **fields}
        if isinstance(fields.get("residual"), bool):
            fields["residual"] = "rank" if fields["residual"] else "none"
        unknown = set(fields) - set(cls.__dataclass_fields__)
        missing = set(cls.__dataclass_fields__) - set(fields)
        if unknown or missing:
            raise SpotError(
                f"model has unknown keys {sorted(unknown)} and lacks {sorted(missing)}; "
                f"expected exactly {sorted(cls.__dataclass_fields__)}"
            )
        if not isinstance(fields["rule"], dict):
            raise SpotError(f"model.rule is {fields['rule']!r}; expected an object with the commit rule's fields")
        return cls(**{**fields, "rule": CommitRule.from_dict(fields["rule"])})


class EncoderLayer(nn.Module):
    """Pre-norm self-attention and feed-forward over [Q, m, d_model]; attends where `attend` [Q, 1, 1, m] is true."""

    def __init__(self, d_model: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(d_model)
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.attention_out = nn.Linear(d_model, d_model)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.feed_forward_in = nn.Linear(d_model, feed_forward)
        self.feed_forward_out = nn.Linear(feed_forward, d_model)

    def forward(self, hidden: Tensor, attend: Tensor | None) -> Tensor:
        states, slots, width = hidden.shape
        mixed = self.query_key_value(self.attention_norm(hidden))
        query, key, value = mixed.view(states, slots, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attention = _products if mixed.requires_grad and mixed.device.type == "cpu" else _fused
        attended = attention(query, key, value, attend)
        hidden = hidden + self.attention_out(attended.transpose(1, 2).reshape(states, slots, width))
        inner = functional.gelu(self.feed_forward_in(self.feed_forward_norm(hidden)))
        return hidden + self.feed_forward_out(inner)


def _fused(query: Tensor, key: Tensor, value: Tensor, attend: Tensor | None) -> Tensor:
    """Attention [Q, heads, m, width] where `attend` [Q, 1, 1, m] is true."""
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=attend)


def _products(query: Tensor, key: Tensor, value: Tensor, attend: Tensor | None) -> Tensor:
    """The same as two batched products: over a few tens of slots the fused kernel's way back takes twice as long on a
    CPU."""
    states, heads, slots, width = query.shape
    query, key, value = (part.reshape(states * heads, slots, width) for part in (query, key, value))
    bias, scale = query.new_zeros(1, 1, 1), width**-0.5
    if attend is not None:
        bias = bias.masked_fill(~attend, -torch.inf).expand(states, heads, 1, slots).reshape(-1, 1, slots)
    weights = torch.baddbmm(bias, query, key.transpose(1, 2), beta=int(attend is not None), alpha=scale).softmax(dim=-1)
    return torch.bmm(weights, value).unflatten(0, (states, heads))


class OrderModel(nn.Module):
    """q(slot | state): 0.62M parameters at the default sizes.

    Inputs (F = 74 under feature version 1) are centred and scaled by two buffers [F] that `standardise` takes from
    training examples: the columns that tell near-certain slots apart differ by hundredths, which a network of
    unit-scale weights learns slowly.
    """

    input_mean: Tensor
    input_scale: Tensor

    def __init__(self, config: OrderModelConfig) -> None:
        super().__init__()
        self.config = config
        inputs = table_features(config.features) + PATH_FEATURES
        self.register_buffer("input_mean", torch.zeros(inputs))
        self.register_buffer("input_scale", torch.ones(inputs))
        self.input = nn.Linear(inputs, config.d_model)
        self.slot_embedding = nn.Embedding(config.block_length, config.d_model)
        self.layers = nn.ModuleList(
            EncoderLayer(config.d_model, config.heads, config.feed_forward) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.d_model)
        nn.init.normal_(self.slot_embedding.weight, std=0.02)
        if config.residual != "none":
            self.rank_weight = nn.Parameter(torch.tensor(RANK_WEIGHT))
        if config.residual == "confidence":
            ties = config.rule.resolution != "float32"
            self.confidence_weight = nn.Parameter(torch.tensor(0.0 if ties else CONFIDENCE_WEIGHT))
        if config.scorer == "one_call":
            sizes = (config.d_model, config.head_hidden, config.block_length, config.d_max)
            self.set_head = SetHead(*sizes, zeroed=config.residual != "none")
            return
        self.head_in = nn.Linear(config.d_model, config.head_hidden)
        self.head_out = nn.Linear(config.head_hidden, 1)
        if config.residual != "none":
            nn.init.zeros_(self.head_out.weight)

    def inputs(self, table: Tensor, taken: Tensor, depth: Tensor) -> Tensor:
        """All inputs [Q, m, F], before they are centred and scaled; shapes as in `level_scores`."""
        return torch.cat([table, path_features(taken, depth, self.config.d_max)], dim=-1)

    def rows(
        self, table: Tensor, slot: Tensor, valid: Tensor, root: Tensor, of: Tensor, taken: Tensor, depth: Tensor
    ) -> Tensor:
        """The inputs [n, F] that `forward` would encode, padding left out."""
        if self.config.scorer == "one_call":
            return self.inputs(table, root, depth.new_zeros(len(table)))[valid]
        return self.inputs(table[of], taken, depth)[valid[of]]

    def standardise(self, inputs: Tensor) -> None:
        """Centre and scale by the mean and spread of example inputs [n, F]; scales stay below `MOST_SCALE`."""
        spread = inputs.double().std(dim=0)
        self.input_mean.copy_(inputs.double().mean(dim=0))
        self.input_scale.copy_((1 / spread.clamp(min=1e-6)).clamp(max=MOST_SCALE))

    def forward(
        self, table: Tensor, slot: Tensor, valid: Tensor, root: Tensor, of: Tensor, taken: Tensor, depth: Tensor
    ) -> Tensor:
        """Scores [Q, m] of states over S tables, -inf at taken and padded slots.

        table [S, m, F - 2] from `features`; slot int64 [S, m]; valid bool [S, m] false at padding; root bool [S, m]
        filled in the root; of int64 [Q]: a state's table; taken bool [Q, m], root included; depth int64 [Q], steps
        between the root and the state.
        """
        if self.config.scorer == "one_call":
            scores = self.set_head(self.encode(table, slot, valid, root), of, slot, taken, depth)
            return torch.as_tensor(scores.masked_fill(taken | ~valid[of], -torch.inf))
        return self.level_scores(table[of], slot[of], valid[of], taken, depth)

    def level_scores(self, table: Tensor, slot: Tensor, valid: Tensor, taken: Tensor, depth: Tensor) -> Tensor:
        """The same for the `per_level` head, with a table for every state: all [Q, m, ...]."""
        hidden = self._encoded(self.inputs(table, taken, depth), slot, valid)
        scores = self.head_out(functional.gelu(self.head_in(hidden))).squeeze(-1)
        return (scores + self._prior(table)).masked_fill(taken | ~valid, -torch.inf)

    def encode(self, table: Tensor, slot: Tensor, valid: Tensor, root: Tensor) -> Tensor:
        """The one call of the `one_call` head: what it needs of S tables to score any state, [S, m, ...]; shapes as in
        `forward`."""
        inputs = self.inputs(table, root, slot.new_zeros(len(table)))
        return torch.as_tensor(self.set_head.encode(self._encoded(inputs, slot, valid), self._prior(table)))

    def _encoded(self, inputs: Tensor, slot: Tensor, valid: Tensor) -> Tensor:
        inputs = inputs.to(self.input.weight.dtype)
        hidden = self.input((inputs - self.input_mean) * self.input_scale) + self.slot_embedding(slot)
        whole = valid.device.type == "cpu" and bool(valid.all())  # elsewhere the question would synchronise
        anywhere = ~valid.any(dim=1, keepdim=True)  # where a table has no slot: attention of nothing is NaN
        attend = None if whole else (valid | anywhere)[:, None, None, :]
        for layer in self.layers:
            hidden = layer(hidden, attend)
        return torch.as_tensor(self.norm(hidden))

    def _prior(self, table: Tensor) -> Tensor:
        """Scores [S, m] of the untrained order, where the model adds to it."""
        ranks = table[..., RANK_COLUMN].to(self.input.weight.dtype) * self.config.block_length
        if self.config.residual == "none":
            return torch.zeros_like(ranks)
        prior = -self.rank_weight * ranks
        if self.config.residual == "confidence":
            confidence = table[..., LOG_ODDS_COLUMN].to(ranks.dtype) * LOG_ODDS_SCALE
            prior = prior + self.confidence_weight * confidence
        return prior
