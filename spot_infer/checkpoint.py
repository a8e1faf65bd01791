"""The exported drafter: a folder with config.json, model.safetensors, golden.safetensors and README.md.

Saves it atomically and loads it from a folder or a hub id. Everything is checked before the first forward, then the
golden input is scored: a transposed square weight has the right shape, and only its scores give it away. Holds no code
and runs none from the folder.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelHubMixin, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from spot_infer.atomic import new_folder
from spot_infer.drafters.order import DraftSettings, OrderDrafter
from spot_infer.errors import SpotError
from spot_infer.features import FEATURE_VERSIONS
from spot_infer.golden import GOLDEN_TOLERANCE, check_golden, golden_input, golden_scores
from spot_infer.order_model import OrderModel, OrderModelConfig
from spot_infer.packaged import local_path

FORMAT = "spot-drafter"
FORMAT_VERSION = 1
CONFIG_FILE = "config.json"
MODEL_FILE = "model.safetensors"
GOLDEN_FILE = "golden.safetensors"
CARD_FILE = "README.md"
_KEYS = ("format", "format_version", "feature_version", "written_by", "licence", "model", "draft", "target", "training")
_CONFIG_KEYS = (*_KEYS, "metrics")


@dataclass(frozen=True)
class DrafterInfo:
    """What a drafter's file says about itself. target: the one it was trained for; training: data and settings;
    metrics: held-out figures; card: the model card's text."""

    target: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    licence: str = "apache-2.0"
    card: str = "---\nlicense: apache-2.0\nlibrary_name: spot-dlm\n---\n\nA commit-order drafter for `spot-dlm`.\n"


class PretrainedDrafter(OrderDrafter, ModelHubMixin, library_name="spot-dlm", license="apache-2.0"):
    """An order drafter that came from a folder or the hub and can go back there, by huggingface_hub's conventions."""

    def __init__(
        self, model: OrderModel, settings: DraftSettings | None = None, info: DrafterInfo | None = None
    ) -> None:
        super().__init__(model, settings)
        self.info = info or DrafterInfo()

    def save_pretrained(
        self, save_directory: str | Path, *, repo_id: str | None = None, push_to_hub: bool = False, **hub: Any
    ) -> str | None:
        """Write the folder; with `push_to_hub` also upload it and return the commit's address."""
        save_drafter(self, save_directory)
        if not push_to_hub:
            return None
        return str(self.push_to_hub(repo_id=repo_id or Path(save_directory).name, **hub))

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
        device: torch.device | str = "cpu",
    ) -> PretrainedDrafter:
        """Load and check a drafter. Raises SpotError, one sentence that names file and field."""
        folder = _folder(
            str(pretrained_model_name_or_path),
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            force_download=force_download,
        )
        config, settings, info = read_config(folder / CONFIG_FILE)
        model = _read_model(folder / MODEL_FILE, config)
        check_golden(model, folder / GOLDEN_FILE)
        if (folder / CARD_FILE).is_file():
            info = DrafterInfo(**{**vars(info), "card": (folder / CARD_FILE).read_text(encoding="utf-8")})
        drafter = cls(model, settings, info)
        drafter.to(device)
        return drafter


def load_drafter(
    path_or_id: str | Path, *, revision: str | None = None, device: torch.device | str = "cpu"
) -> PretrainedDrafter:
    """The drafter in a folder or under a hub id. Raises SpotError, one sentence that names file and field."""
    return PretrainedDrafter.from_pretrained(path_or_id, revision=revision, device=device)


def save_drafter(drafter: PretrainedDrafter, folder: str | Path) -> None:
    """Write the folder, float32, whole or not at all. A folder that isn't a drafter's is never replaced."""
    place = Path(folder)
    if place.exists() and not (place.is_dir() and ((place / CONFIG_FILE).is_file() or not any(place.iterdir()))):
        raise SpotError(f"{place} exists and holds no drafter; choose another place or remove it first")
    model = drafter.model
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in model.state_dict().items()}
    stored = OrderModel(model.config)
    stored.load_state_dict(tensors)
    golden = golden_input(model.config)
    golden["log_q"] = golden_scores(stored.eval(), golden)
    config = json.dumps(config_json(drafter), indent=2) + "\n"

    with new_folder(place) as partial:
        (partial / CONFIG_FILE).write_text(config, encoding="utf-8")
        save_file(tensors, partial / MODEL_FILE, metadata={"format": "pt"})
        save_file(golden, partial / GOLDEN_FILE, metadata={"tolerance": str(GOLDEN_TOLERANCE)})
        (partial / CARD_FILE).write_text(drafter.info.card, encoding="utf-8")


def config_json(drafter: PretrainedDrafter) -> dict[str, Any]:
    """The contents of config.json."""
    info = drafter.info
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "feature_version": FEATURE_VERSIONS[drafter.model.config.features],
        "written_by": release(),
        "licence": info.licence,
        "model": drafter.model.config.to_dict(),
        "draft": asdict(drafter.settings),
        "target": info.target,
        "training": info.training,
        "metrics": info.metrics,
    }


def release() -> str:
    """Name and version of the installed distribution."""
    try:
        return f"spot-dlm {metadata.version('spot-dlm')}"
    except metadata.PackageNotFoundError:
        return "spot-dlm (not installed)"


def read_config(path: Path) -> tuple[OrderModelConfig, DraftSettings, DrafterInfo]:
    """Check config.json, versions first. Raises SpotError."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpotError(f"{path} does not exist; a drafter folder holds {CONFIG_FILE} and {MODEL_FILE}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SpotError(f"{path} is not readable JSON ({error}); export or download the drafter again") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        got = config.get("format") if isinstance(config, dict) else type(config).__name__
        raise SpotError(f"{path}: format is {got!r}, expected {FORMAT!r}; this is not an exported drafter")
    versions = {"format_version": (FORMAT_VERSION,), "feature_version": tuple(sorted({*FEATURE_VERSIONS.values()}))}
    for name, known in versions.items():
        if config.get(name) not in known or isinstance(config.get(name), bool):
            raise SpotError(
                f"{path}: {name} is {config.get(name)!r}, but {release()} reads {' and '.join(map(str, known))}; "
                f"the release that wrote it reads it: {config.get('written_by', 'unknown')}"
            )
    unknown, missing = set(config) - set(_CONFIG_KEYS), set(_CONFIG_KEYS) - set(config)
    if unknown or missing:
        raise SpotError(f"{path} has unknown keys {sorted(unknown)} and lacks {sorted(missing)}; export it again")
    for name in ("model", "draft", "target", "training", "metrics"):
        if not isinstance(config[name], dict):
            raise SpotError(f"{path}: {name} is {config[name]!r}, expected an object; export it again")
    try:
        model = OrderModelConfig.from_dict(config["model"])
        settings = DraftSettings(**config["draft"])
    except (SpotError, TypeError) as error:
        raise SpotError(f"{path}: {error}") from None
    if FEATURE_VERSIONS[model.features] != config["feature_version"]:
        raise SpotError(
            f"{path}: feature_version is {config['feature_version']}, but model.features {model.features!r} is of "
            f"version {FEATURE_VERSIONS[model.features]}; export the drafter again"
        )
    info = DrafterInfo(config["target"], config["training"], config["metrics"], str(config["licence"]))
    trained_for = info.target.get("block_length", model.block_length)
    if trained_for != model.block_length:
        raise SpotError(
            f"{path}: model.block_length is {model.block_length} but target.block_length is {trained_for}; "
            "they must be equal, so export the drafter again"
        )
    return model, settings, info


def _read_model(path: Path, config: OrderModelConfig) -> OrderModel:
    with torch.device("meta"):
        expected = OrderModel(config).state_dict()
    check_tensors(path, {name: (tuple(tensor.shape), "F32") for name, tensor in expected.items()})
    model = OrderModel(config)
    model.load_state_dict(load_file(path))
    return model.eval()


def check_tensors(path: Path, expected: dict[str, tuple[tuple[int, ...], str]]) -> None:
    """Compare a safetensors file's names, shapes and dtypes with `expected`, from its header alone."""
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: (tuple(view.get_shape()), str(view.get_dtype())) for name, view in found.items()}
    except FileNotFoundError:
        raise SpotError(f"{path} does not exist; export or download the drafter again") from None
    except (SafetensorError, OSError) as error:
        raise SpotError(f"{path} is truncated or no safetensors file ({error}); download the drafter again") from None
    missing, extra = sorted(set(expected) - set(shapes)), sorted(set(shapes) - set(expected))
    if missing or extra:
        raise SpotError(f"{path} lacks tensors {missing} and has unknown ones {extra}; config.json describes others")
    for name, (shape, dtype) in expected.items():
        got_shape, got_dtype = shapes[name]
        if got_shape != shape:
            hint = ", it is transposed" if got_shape == shape[::-1] else ""
            raise SpotError(f"{path}: {name} has shape {list(got_shape)}, expected {list(shape)}{hint}")
        if got_dtype != dtype:
            raise SpotError(f"{path}: {name} has dtype {got_dtype}, expected {dtype}; store the drafter in float32")


def _folder(path_or_id: str, **hub: Any) -> Path:
    path = local_path(path_or_id)
    if path.is_dir():
        return path
    if path.exists():
        raise SpotError(f"{path_or_id} is a file; give the folder that holds {CONFIG_FILE} and {MODEL_FILE}")
    if path_or_id.startswith((".", "/", "~")) or path_or_id.count("/") != 1:
        raise SpotError(f"no drafter at {path_or_id}: the folder does not exist; check the path")
    patterns = [CONFIG_FILE, MODEL_FILE, GOLDEN_FILE, CARD_FILE]
    try:
        return Path(snapshot_download(path_or_id, allow_patterns=patterns, **hub))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise SpotError(
            f"no drafter at {path_or_id}: no such folder, and the hub gave {type(error).__name__}; check path or id"
        ) from None
