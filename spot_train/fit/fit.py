"""Train an order model on recorded trajectories: a plain function for notebooks and for `spot-train fit`.

Resumes exactly: a run that was killed, at any time, ends with the same weights and the same metrics.csv as one that was
not. Knows nothing about shards: it takes trajectories.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, RichProgressBar
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from spot_infer.atomic import write_json
from spot_infer.drafters import OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.order_model import HEAD_HIDDEN, OrderModelConfig
from spot_infer.transition import CommitRule
from spot_train.collect.ranks import first_rank
from spot_train.fit.data import CHECKED_STATES, TrainBatches
from spot_train.fit.data_module import OrderDataModule
from spot_train.fit.module import OrderModule
from spot_train.fit.record import (
    BEST_FILE,
    LAST_FILE,
    METRICS_FILE,
    MONITOR,
    AtomicCheckpoints,
    FitRecord,
    HeldoutReplay,
)
from spot_train.fit.step_windows import InMemory, ShardWindows, StepWindows, WindowFacts, spread_states
from spot_train.fit.warm_start import check_start, start_from
from spot_train.output_lock import deferred_signals, make_folder
from spot_train.recipe.recipe import FitSection
from spot_train.trajectory import Trajectory

RUN_FILE = "run.json"
DONE_FILE = "fit.json"
STANDARDISE_BATCHES = 16
_MAY_CHANGE = ("max_steps", "devices", "strategy", "num_workers")


def fit(
    section: FitSection,
    train: Iterable[Trajectory] | StepWindows,
    heldout: Iterable[Trajectory] | StepWindows,
    out: str | Path,
    *,
    rule: CommitRule | None = None,
    temperature: float = 0.0,
    facts: Mapping[str, Any] | None = None,
    progress: bool = False,
    warm_start: OrderDrafter | None = None,
) -> Path:
    """Train and return the best checkpoint, in `out`; metrics.csv lies beside it.

    Trajectories are laid out in memory; `ShardWindows` of a set are read a few shards at a time.

    An `out` that holds an unfinished run of the same settings and data is resumed, a finished one is returned at once,
    and one of other settings is refused. `rule` and `temperature` are those of the trajectories; `facts` (JSON values:
    what the drafter is trained for and on) travel in the checkpoint to `export`. `warm_start`: a drafter of the same
    config whose weights and input scales training starts from. Raises SpotError for unusable data,
    Interrupted on SIGINT or SIGTERM, with the step in hand saved.
    """
    folder = Path(out)
    commit_rule = rule or CommitRule()
    train, heldout = (_windows(one, section.replay_trajectories) for one in (train, heldout))
    known = {"training": train.facts, "held-out": heldout.facts}
    _check(known)
    model = network(section, train.facts.block_length, commit_rule)
    data = {"train": train.facts.digest, "heldout": heldout.facts.digest}
    start = None if warm_start is None else check_start(warm_start, model)
    record = FitRecord(
        folder, HeldoutReplay(heldout, section.replay_trajectories, commit_rule, temperature), section.max_steps
    )
    with _quiet():
        trainer = _trainer(section, record, progress)
    _claim(folder, section, {"model": model.to_dict(), "data": data, "warm_start": {"weights_hash": start}})
    if (done := _done(folder, section.max_steps)) is not None:
        return done
    batches = TrainBatches(train, section, commit_rule)
    counts = {
        "train_trajectories": train.facts.trajectories,
        "heldout_trajectories": heldout.facts.trajectories,
        "train_steps": train.facts.steps,
        "heldout_steps": heldout.facts.steps,
    }
    trained_on = {**(facts or {}).get("data", {}), **counts, **({"warm_start": start} if start else {})}
    horizon = section.decay_steps or section.epochs * len(batches)
    module = OrderModule(model.to_dict(), section.model_dump(), horizon, {**(facts or {}), "data": trained_on})
    if warm_start is None:
        _standardise(module, batches)
    else:
        start_from(module.model, warm_start)
    last = folder / LAST_FILE
    if last.exists():
        record.load_state_dict(_state(last))
    if first_rank():
        record.go_on()
    checked = OrderDataModule(train, spread_states(heldout, CHECKED_STATES), section, commit_rule)
    return _train(trainer, module, checked, record, last if last.exists() else None)


def network(section: FitSection, block_length: int, rule: CommitRule) -> OrderModelConfig:
    """The network that `section` trains for blocks of this length under this rule."""
    return OrderModelConfig(
        block_length=block_length,
        features=section.features,
        d_max=section.d_max,
        residual=section.residual,
        scorer=section.scorer,
        head_hidden=HEAD_HIDDEN[section.scorer],
        rule=rule,
    )


def _train(
    trainer: lightning.Trainer, module: OrderModule, data: OrderDataModule, record: FitRecord, last: Path | None
) -> Path:
    """Train on from `last`, the run's own checkpoint."""
    best = record.out / BEST_FILE
    with _quiet():
        if not record.complete:
            with deferred_signals() if trainer.world_size == 1 else nullcontext() as record.pending:
                trainer.fit(module, data, ckpt_path=last, weights_only=True)
            if not record.rows or record.rows[-1]["step"] != trainer.global_step:
                trainer.validate(module, data, verbose=False)
                record.add_row(trainer, module, inside=True)
    if trainer.is_global_zero:
        done = {"checkpoint": best.name, "complete": record.complete, "best": record.best, "last": record.rows[-1]}
        write_json(record.out / DONE_FILE, done)
    return best


def _windows(source: Iterable[Trajectory] | StepWindows, keep: int) -> StepWindows:
    return source if isinstance(source, InMemory | ShardWindows) else InMemory.of(source, keep)  # type: ignore[arg-type]


def _standardise(module: OrderModule, batches: TrainBatches) -> None:
    """Centre and scale the network's inputs by those of the first training batches."""
    model = module.model
    first = [batches[step] for step in range(min(len(batches), STANDARDISE_BATCHES))]
    model.standardise(torch.cat([model.rows(*one.asked) for one in first]))


def _trainer(section: FitSection, record: FitRecord, progress: bool) -> lightning.Trainer:
    callbacks: list[Callback] = [RichProgressBar()] if progress else []
    if section.patience_epochs is not None:
        callbacks.append(EarlyStopping(MONITOR, patience=section.patience_epochs, check_on_train_epoch_end=False))
    try:
        return _lightning(section, record, callbacks, progress)
    except (ValueError, TypeError, MisconfigurationException) as error:
        raise SpotError(
            f"fit.devices {section.devices!r}, fit.precision {section.precision!r} and fit.strategy "
            f"{section.strategy!r} don't make a Lightning trainer ({str(error).splitlines()[0]}); change one of them"
        ) from error


def _lightning(section: FitSection, record: FitRecord, callbacks: list[Callback], progress: bool) -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=section.epochs,
        max_steps=-1 if section.max_steps is None else section.max_steps,
        devices=section.devices,
        precision=section.precision,  # type: ignore[arg-type]
        strategy=section.strategy,
        callbacks=[*callbacks, record],
        logger=_tensorboard(record.out),
        plugins=[AtomicCheckpoints()],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=progress,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        default_root_dir=record.out,
    )


def _claim(folder: Path, section: FitSection, identity: dict[str, Any]) -> None:
    """Write run.json into a new folder; refuse one that holds a run of other settings or data. Of several processes the
    first one does."""
    if not first_rank():
        return
    fields = {name: value for name, value in section.model_dump().items() if name not in _MAY_CHANGE}
    identity = json.loads(json.dumps({"fit": fields, **identity}))
    file = folder / RUN_FILE
    if not any((folder / name).exists() for name in (LAST_FILE, BEST_FILE, METRICS_FILE)):
        make_folder(folder)
        write_json(file, identity)
        return
    if not file.exists():
        raise SpotError(f"{folder} holds checkpoints but no {RUN_FILE}; choose another output folder")
    known = read_json(file)
    for part, values in identity.items():
        for name, value in values.items():
            if known.get(part, {}).get(name) != value:
                raise SpotError(
                    f"{folder} holds a run with another {part}.{name} ({known.get(part, {}).get(name)!r}, now "
                    f"{value!r}); choose another output folder or delete this one"
                )


def _done(folder: Path, max_steps: int | None) -> Path | None:
    """The finished run's checkpoint; None where there is more to train."""
    file = folder / DONE_FILE
    if not file.exists():
        return None
    done = read_json(file)
    checkpoint = folder / str(done.get("checkpoint"))
    if (done.get("complete") or done.get("last", {}).get("step") == max_steps) and checkpoint.is_file():
        return checkpoint
    if first_rank():
        file.unlink()
    return None


def read_json(file: Path) -> dict[str, Any]:
    """An object that a run wrote down. Raises SpotError where it is damaged."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise SpotError(f"{file} is not readable JSON; delete {file.parent} to start over") from None


def _state(checkpoint: Path) -> dict[str, Any]:
    """The `FitRecord` state in a checkpoint."""
    try:
        stored = torch.load(checkpoint, map_location="cpu", weights_only=True)
        return dict(stored["callbacks"]["FitRecord"])
    except (OSError, RuntimeError, EOFError, KeyError, ValueError, UnpicklingError) as error:
        raise SpotError(f"{checkpoint} is damaged ({type(error).__name__}); delete it to start over") from None


def _check(known: Mapping[str, WindowFacts]) -> None:
    lengths = [facts.block_length for facts in known.values()]
    if len(set(lengths)) > 1:
        raise SpotError(
            f"training data has block length {lengths[0]}, held-out data {lengths[1]}; "
            "collect both from one target and block length"
        )
    for name, facts in known.items():
        if not sum(facts.usable):
            raise SpotError(
                f"the {name} trajectories hold no block with two steps of one commit each; collect more prompts, "
                "under a rule that commits one slot a step"
            )


def _tensorboard(out: Path) -> Logger | bool:
    """A TensorBoard logger where one is installed; metrics.csv is written in any case."""
    if find_spec("tensorboard") is None and find_spec("tensorboardX") is None:
        return False
    return TensorBoardLogger(out, name="tensorboard", version="")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Lightning's start-up notes, which say nothing about the run, off the terminal."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "lightning")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="lightning")
            warnings.filterwarnings("ignore", message=".*LeafSpec.*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
