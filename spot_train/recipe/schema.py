"""The recipe's schema: the one list of options, each with its unit, meaning and default. Knows nothing about files.

Paths are relative to the recipe file; `builtin:` names packaged files.
"""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from spot_infer.drafters import DraftSettings
from spot_infer.features import FeatureKind
from spot_infer.order_model import Residual, Scorer
from spot_infer.packaged import BUILTIN, packaged
from spot_infer.packing import Layout
from spot_infer.presets import PRESETS, Preset, PresetName
from spot_infer.requests import Boundary, Verifier
from spot_infer.responses import MOST_RESPONSE, RESPONSE
from spot_infer.transition import CommitRule, Ranking, Sampling

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
GraphScore = Literal["accepted", "parents"]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """A recipe section: unknown keys, NaN and booleans in place of numbers are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _no_boolean_numbers(cls, values: Any) -> Any:
        for name, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field and not _accepts_boolean(field.annotation):
                raise ValueError(f"{name} is {str(value).lower()}; expected {_kind(field.annotation)}, not a boolean")
        return values


class TargetSection(Section):
    """The diffusion language model whose decoding is recorded."""

    path_or_id: str = Field(min_length=1, description="Folder (relative to this file), hub id or `builtin:` path.")
    revision: str | None = Field(
        default=None, description="Hub commit, tag or branch; null is the hub's default branch."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = Field(
        default="auto", description="Dtype of the target's weights; auto is its config's on a GPU, float32 on a CPU."
    )
    block_length: Positive | None = Field(
        default=None,
        description="Block length L in tokens; null takes what the target's config, else its family, names.",
    )
    mask_id: NonNegative | None = Field(
        default=None, description="Token id of a masked position; null takes the one that the target's files name."
    )
    cache: Literal["none", "prefix", "dual"] | None = Field(
        default=None,
        description="What a full-attention target keeps while a block lasts: none (exact, the whole canvas in every "
        "forward), prefix or dual (approximate); null is prefix for such a target, else exact.",
    )
    chat_template: str | None = Field(
        default=None, description="Jinja template or a file of one (relative to this file), for the tokenizer's own."
    )
    device: str = Field(default="auto", description="Torch device; auto is cuda where there is one, else cpu.")
    device_map: str | None = Field(
        default=None, description="Spread over devices by transformers (needs accelerate), such as auto."
    )
    tp_plan: Literal["auto"] | None = Field(
        default=None, description="Shard every layer by transformers' own plan (needs accelerate); start with torchrun."
    )
    trust_remote_code: bool = Field(
        default=False,
        description="Whether Python code that comes with the checkpoint may run; native classes need none.",
    )


class RuleSection(Section):
    """Which masked slots the target commits after a forward (`spot_infer.transition.CommitRule`)."""

    ranking: Ranking = Field(
        default=CommitRule.ranking,
        description="What slots are ranked by, before temperature: probability, margin or entropy.",
    )
    resolution: float | Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="float32, bfloat16, or a number e between 0 and 0.5: probabilities of at least 1 - e tie.",
    )
    selection: Literal["one", "quota", "threshold"] = Field(
        default=CommitRule.selection, description="Commit one slot, a quota of slots, or every slot above a threshold."
    )
    quota: Positive = Field(default=1, description="Slots a step under `quota`, least slots under `threshold`.")
    threshold: float = Field(
        default=CommitRule.threshold, gt=0, lt=1, description="Probability above which `threshold` commits a slot."
    )

    @field_validator("resolution", mode="before")
    @classmethod
    def _resolution_in_range(cls, value: Any) -> float | str:
        if value in ("float32", "bfloat16"):
            return str(value)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = 0.0
        if not 0 < number < 0.5:
            raise ValueError(f"got {value!r}; use float32, bfloat16 or a number between 0 and 0.5")
        return number

    def commit_rule(self) -> CommitRule:
        """The value that decoding uses."""
        return CommitRule(**self.model_dump())


class SamplingSection(Section):
    """How a committed slot's token is chosen: temperature, then top-k, then top-p, then keyed noise."""

    temperature: float = Field(default=0.0, ge=0, description="Softmax temperature; 0 is greedy decoding.")
    top_k: NonNegative = Field(default=0, description="Tokens kept by probability; 0 keeps all.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Probability mass kept; 1 keeps all.")

    def sampling(self) -> Sampling:
        """The value that decoding uses."""
        return Sampling(self.temperature, self.top_k, self.top_p)


class PromptSource(Section):
    """One pool of prompts: a local JSONL or Parquet file, or a data set on the hub."""

    path_or_id: str = Field(
        min_length=1, description="A .jsonl, .json or .parquet file (relative to this file, or builtin:), or a hub id."
    )
    name: str | None = Field(default=None, description="Configuration of the hub data set, where it has several.")
    revision: str | None = Field(default=None, description="Hub commit, tag or branch; null is the default branch.")
    split: str = Field(default="train", description="Split of the hub data set; a local file is all one split.")
    field: str | None = Field(
        default=None,
        description="Column with the prompt, a string or chat messages; null takes prompt or messages, if present.",
    )
    template: str | None = Field(
        default=None, description="Prompt built from columns, as in '{instruction} {input}'; replaces `field`."
    )
    limit: Positive | None = Field(
        default=None,
        description="Most rows read, from the first; null reads all. A hub data set with a limit is streamed, row "
        "by row, not downloaded whole.",
    )

    @model_validator(mode="after")
    def _one_way_to_read(self) -> PromptSource:
        if self.field is not None and self.template is not None:
            raise ValueError("field and template are both set; use one of them")
        return self


class PromptsSection(Section):
    """Which prompts are decoded, and which never are."""

    sources: tuple[PromptSource, ...] = Field(min_length=1, description="Prompt pools, read in order.")
    evaluation: tuple[PromptSource, ...] = Field(
        default=(),
        description="Evaluation splits: a prompt whose content is in one of them is skipped, counted and listed.",
    )
    limit: Positive | None = Field(
        default=None, description="Most prompts decoded in all, after skipping; null is no limit."
    )
    max_prompt_tokens: Positive | None = Field(
        default=None, description="Longer prompts are skipped, in tokens; null leaves only the target's own limit."
    )
    heldout_fraction: Fraction = Field(
        default=0.1, description="Share of prompts held out from training, chosen by a hash of their content."
    )
    raw: bool = Field(
        default=False, description="Encode string prompts as they are, without the target's chat template."
    )


class CollectSection(Section):
    """How trajectories are decoded and stored."""

    max_new_tokens: Positive = Field(default=256, description="Generated tokens a prompt, at most.")
    batch_size: Positive | Literal["auto"] = Field(
        default="auto", description="Prompts decoded together; auto finds it from free memory when collection starts."
    )
    lease_prompts: Positive = Field(default=64, description="Prompts a lease: one lease becomes one shard.")
    seed: NonNegative = Field(
        default=0, description="Seed that each request's noise seed derives from, with its prompt."
    )
    ignore_stop: bool = Field(
        default=False, description="Decode max_new_tokens regardless of stop tokens (paper preset)."
    )
    stop: tuple[str, ...] = Field(default=(), description="Strings that end a row, besides the target's stop tokens.")
    layout: Layout = Field(default="auto", description="Replica layout: concat, batch, or auto (batch on a CPU).")
    free_space_margin_bytes: NonNegative = Field(
        default=256 * 1024**2, description="Bytes that must stay free on the disk beyond the projected size."
    )


class BootstrapSection(Section):
    """When `spot-train collect --bootstrap` fits the drafters that it goes on with. How they are trained: `fit`."""

    milestones: tuple[Share, ...] = Field(
        default=(0.03, 0.1, 0.3),
        min_length=1,
        description="Shares of the leases after which a drafter is fitted to all that they recorded.",
    )
    steps: Positive = Field(default=600, description="Optimiser steps of each of these fits, at most.")


class FitSection(Section):
    """How the order model is trained."""

    learning_rate: float = Field(default=3e-4, gt=0, description="Adam's learning rate.")
    trajectories: Positive | None = Field(
        default=None, description="Training trajectories, at most, from the set's first; null takes all."
    )
    epochs: Positive = Field(default=10, description="Passes over the training states, at most.")
    max_steps: Positive | None = Field(default=None, description="Optimiser steps, at most; null is no limit.")
    batch_size: Positive = Field(
        default=256, description="States an optimiser step, counted before depths are sampled."
    )
    d_max: NonNegative = Field(default=15, description="Largest depth trained, in steps beyond the root.")
    depths_per_state: Positive | Literal["all"] = Field(
        default="all",
        description="all: every depth of a state, weighed by 1 / (depth + 1); a number: so many sampled.",
    )
    seed: NonNegative = Field(
        default=0, description="Seed of the weights, the order of examples and the sampled depths."
    )
    features: FeatureKind = Field(
        default="v2",
        description="Feature version; v2 adds what changed since the table before, paper drops the float32 log-odds.",
    )
    scorer: Scorer = Field(
        default="one_call",
        description="Network calls of a draft: one that scores all states, or one a level of the search.",
    )
    residual: Residual = Field(
        default="confidence",
        description="What the network's scores are added to: a learned multiple of the untrained order's ranks (rank), "
        "and one of its log-odds too (confidence), or none.",
    )
    warmup_steps: NonNegative = Field(
        default=0, description="Optimiser steps over which the learning rate rises from 0."
    )
    decay_steps: Positive | None = Field(
        default=None, description="Optimiser steps until it is back at 0; null takes those of `epochs`."
    )
    weight_decay: float = Field(default=0.0, ge=0, description="Decoupled weight decay a step; 0 is plain Adam.")
    patience_epochs: Positive | None = Field(
        default=3,
        description="Epochs without a lower held-out loss before training stops; null never stops early.",
    )
    replay_trajectories: NonNegative = Field(
        default=64, description="Held-out trajectories replayed through the draft search each epoch; 0 skips it."
    )
    devices: int | str = Field(
        default="auto", description="Lightning's devices: auto, a number, or a list such as '0,1'."
    )
    precision: str = Field(default="32-true", description="Lightning's precision, such as 32-true or bf16-mixed.")
    strategy: str = Field(default="auto", description="Lightning's strategy, such as auto or ddp.")
    num_workers: NonNegative = Field(default=0, description="Processes that load data beside the main one.")
    resident_shards: Positive = Field(
        default=64, description="Shards whose tables are in memory at once, at most, in each process that loads data."
    )


class DecodeSection(Section):
    """How the exported drafter is run by default."""

    budget: NonNegative = Field(default=8, description="Most drafted states a round.")
    floor: Fraction = Field(default=0.0, description="Smallest mass worth verifying, a probability.")
    pad: bool = Field(default=False, description="Fill every forward up to 1 + budget replicas a row.")
    layout: Layout = Field(default="auto", description="Replica layout: concat, batch, or auto (batch on a CPU).")
    preset: PresetName = Field(
        default="default",
        description="Form of the decoder: default, or paper (separate boundaries, a tree); what is set beside it wins.",
    )
    boundary: Boundary = Field(
        default="auto",
        description="Finished blocks are cached by the next block's forward, which drafts run on into (fused), or by "
        "one of their own (separate); seamless is fused, and the prompt's forward opens the first block; auto is the "
        "preset's, or seamless wherever it is exact.",
    )
    verifier: Verifier = Field(
        default="coupled",
        description="How drafts are accepted at temperature > 0: coupled, uncoupled, greedy or rejection.",
    )
    bitwise: bool = Field(
        default=False,
        description="One shape for every forward, so that drafted and draft-free runs agree to the bit; implies layout "
        "batch and boundary separate.",
    )
    merged: bool | None = Field(
        default=None,
        description="One node for all orders that reach a state; false is a tree, null the preset's, else true.",
    )
    tau: float = Field(default=1.0, gt=0, description="Calibration temperature of the order model's distribution.")
    response: float | None = Field(
        default=None,
        ge=0,
        le=MOST_RESPONSE,
        description="How far the drafter's scores follow responses that earlier forwards measured; 0 reads none, null "
        "is the preset's, else 1.",
    )
    ahead: bool | None = Field(
        default=None,
        description="Drafts run on into the next block; null is the preset's, else true.",
    )

    def form(self) -> Preset:
        """The preset, with what is set beside it."""
        preset = PRESETS[self.preset]
        merged = preset.merged if self.merged is None else self.merged
        response = preset.response if self.response is None else self.response
        ahead = preset.ahead if self.ahead is None else self.ahead
        return Preset(preset.boundary_beside(self.boundary), merged, response, ahead)

    def draft_settings(self) -> DraftSettings:
        """How the exported drafter is searched."""
        form = self.form()
        response = RESPONSE if form.response is None else form.response
        merged, ahead = form.merged is not False, form.ahead is not False
        return DraftSettings(tau=self.tau, merged=merged, response=response, ahead=ahead)


class CalibrateSection(Section):
    """What `spot-train calibrate` decodes and counts. Never an evaluation split."""

    sources: tuple[PromptSource, ...] = Field(
        default=(),
        description="Pools of held-out prompts; none takes what heldout_fraction holds out of prompts.sources.",
    )
    prompts: Positive = Field(default=25, description="Held-out prompts that a calibration is made on.")
    heldout: NonNegative = Field(default=25, description="Further held-out prompts that its result is measured on.")
    lookahead: Positive = Field(default=6, description="Steps ahead that the draft graph is counted over.")
    graph_size: Positive = Field(default=24, description="Most states of the draft graph.")
    score: GraphScore = Field(
        default="accepted",
        description="Select states by the accepted drafts they add, or by their own and their parents' count.",
    )


class Recipe(Section):
    """Everything one drafter is made from. `load_recipe` lays a file over the one that it extends."""

    extends: str | None = Field(
        default=None,
        exclude=True,
        description="Recipe that this file is laid over, relative to it, or builtin:. Sections merge key by key, lists "
        "are replaced, paths stay relative to the file that they stand in.",
    )
    target: TargetSection
    rule: RuleSection = RuleSection()
    sampling: SamplingSection = SamplingSection()
    prompts: PromptsSection
    collect: CollectSection = CollectSection()
    bootstrap: BootstrapSection = BootstrapSection()
    fit: FitSection = FitSection()
    decode: DecodeSection = DecodeSection()
    calibrate: CalibrateSection = CalibrateSection()
    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    def resolve(self, path_or_id: str) -> str:
        """An absolute path for a local or `builtin:` file, the hub id unchanged otherwise."""
        return resolve_path(path_or_id, self._folder)

    def chat_template(self) -> str | None:
        """target.chat_template: the template itself, or the absolute path of its file."""
        given = self.target.chat_template
        return given if given is None else resolve_template(given, self._folder)


def resolve_path(path_or_id: str, folder: Path) -> str:
    """An absolute path if `path_or_id` is `builtin:`, absolute, starts with a dot or exists below `folder`."""
    if path_or_id.startswith(BUILTIN):
        return str(packaged(path_or_id.removeprefix(BUILTIN)))
    path = folder / Path(path_or_id).expanduser()
    local = path_or_id.startswith((".", "/", "~")) or path.exists()
    return str(path.resolve()) if local or path.suffix in (".jsonl", ".json", ".parquet", ".yaml") else path_or_id


def resolve_template(given: str, folder: Path) -> str:
    """A template, which holds braces, as it is; the absolute path of a file of one otherwise."""
    if "{" in given:
        return given
    if given.startswith(BUILTIN):
        return str(packaged(given.removeprefix(BUILTIN)))
    return str((folder / Path(given).expanduser()).resolve())


def _accepts_boolean(annotation: Any) -> bool:
    return annotation is bool or bool in typing.get_args(annotation)


def _kind(annotation: Any) -> str:
    text = repr(annotation)
    for word, kind in (("int", "a whole number"), ("float", "a number"), ("str", "text")):
        if word in text:
            return kind
    return "a section or one of the documented words"
