"""Saved models and training checkpoints: safetensors and JSON, whole or not at all.

A model's folder follows the Hugging Face convention: `model.safetensors`, `config.json` and a
README.md. Folders of finished runs also have `model.json`. An unfinished run has checkpoints: one
file each with the weights, the optimizer's state and, in its header, the run's settings and epoch.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn, optim

from clipset.backbones.checkpoints import (
    CheckpointLayout,
    first_nonfinite,
    network_from_state,
)
from clipset.checksums import find_damage, seal
from clipset.config import build, encode_json, flatten, parse_json, read_json, to_mapping
from clipset.errors import BackboneError, ConfigError, ModelError, TrainingError
from clipset.files import write_atomic, write_together, writing
from clipset.model.config import ModelConfig
from clipset.model.scale import ScaleNetwork
from clipset.progress import log
from clipset.training.card import MODEL_FORMAT, MODEL_TYPE, ModelCard, model_page
from clipset.training.config import PretrainConfig

MODEL_FILE = "model.safetensors"
HUB_FILES = (MODEL_FILE, "README.md", "config.json")
CHECKPOINT_FORMAT = 4


class ScaleModel(ScaleNetwork):
    """A set transformer with its training heads and its model card."""

    def __init__(self, dim: int, config: ModelConfig, card: ModelCard | None = None) -> None:
        super().__init__(dim, config)
        self.card = card or ModelCard(dim=dim, model=config)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that `from_pretrained` reads, here or from a hub."""
        save_model(self, self.card, Path(folder), is_finished_run=False)

    @classmethod
    def from_pretrained(cls, name: str | Path, *, revision: str | None = None) -> ScaleModel:
        """A trained model from a folder, or by its name from the Hugging Face hub."""
        return load_model(find_model(name, revision=revision))


def load_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; its name need not be UTF-8."""
    return load(path.read_bytes())


def save_model(
    model: ScaleNetwork, card: ModelCard, folder: Path, *, is_finished_run: bool = True
) -> None:
    """Write a model; that of a finished run has `model.json`, which comes last."""
    tensors = _cpu_tensors(model.state_dict())
    bad_tensor = first_nonfinite(tensors)
    if bad_tensor is not None:
        raise ModelError(f"the model is not saved: {bad_tensor} holds NaN or infinity; train again")
    weights = save(tensors, metadata={"format": "pt"})
    card = replace(card, checksum=_checksum(hashlib.blake2b(weights, digest_size=16), card))
    card_table = to_mapping(card)
    hub_config = {"model_type": MODEL_TYPE, "architectures": ["ScaleModel"], **card_table}
    files = {
        MODEL_FILE: weights,
        "README.md": model_page(card).encode(),
        "config.json": encode_json(hub_config),
    }
    if is_finished_run:
        files["model.json"] = encode_json(card_table)
    write_together({folder / name: content for name, content in files.items()})


def _cpu_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}


def _checksum(weights_hash: Any, card: ModelCard) -> str:
    """A checksum of the weights, given as a hash object, and of the whole card."""
    content = to_mapping(replace(card, checksum=""))
    weights_hash.update(msgspec.json.encode(content, order="sorted"))
    return str(weights_hash.hexdigest())


def remove_model(folder: Path) -> None:
    """Delete the files of a model, and nothing else."""
    for name in ("model.json", *HUB_FILES):
        (folder / name).unlink(missing_ok=True)


def read_card(folder: Path) -> ModelCard:
    """The card of a folder's model."""
    path = _card_path(folder)
    content = read_json(path)
    if not isinstance(content, dict) or content.pop("model_type", MODEL_TYPE) != MODEL_TYPE:
        raise ModelError(f"{path} is of another kind of model; a clipset model is needed")
    content.pop("architectures", None)
    if content.get("format") != MODEL_FORMAT:
        raise ModelError(
            f"{path} is of format {content.get('format')}, not {MODEL_FORMAT}; another clipset "
            f"wrote it: use that one, or train again in another folder"
        )
    return build(ModelCard, content, str(path))


def _card_path(folder: Path) -> Path:
    """The card of a run's model, else of a hub's."""
    for name in ("model.json", "config.json"):
        if (folder / name).is_file():
            return folder / name
    raise ModelError(f"{folder} holds no model (no model.json); run `clipset pretrain` first")


def training_settings(card: ModelCard) -> PretrainConfig:
    """The training settings that a card records."""
    config = build(PretrainConfig, card.training, "the settings of the model's training")
    return replace(config, model=card.model)


def check_model(folder: Path) -> ModelCard:
    """The card of a folder's model; raises if the files changed since they were written."""
    card, path, card_path = read_card(folder), folder / MODEL_FILE, _card_path(folder)
    if not card.checksum and card_path.name == "config.json":
        return card  # a hub's model may have none
    try:
        with path.open("rb") as file:
            weights_hash = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    if _checksum(weights_hash, card) != card.checksum:
        raise ModelError(
            f"{path} or {card_path.name} beside it is damaged: its checksum is another; copy the "
            f"model there again, or delete the folder and train again"
        )
    return card


def load_model(folder: Path) -> ScaleModel:
    """The trained model of a folder, in evaluation mode; damaged files are refused."""
    card, path = check_model(folder), folder / MODEL_FILE
    try:
        network = network_from_state(
            lambda: ScaleModel(card.dim, card.model, card),
            load_file(path),
            CheckpointLayout(),
            path,
        )
    except (OSError, SafetensorError, RuntimeError, OverflowError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"the weights in {folder} do not fit its description: {reason}") from None
    except BackboneError as error:
        raise ModelError(str(error)) from None
    return network.eval()


def find_model(name: str | Path, *, revision: str | None = None) -> Path:
    """The folder of a model: a local one, else a download from the Hugging Face hub."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    owner, _, model = str(name).partition("/")
    is_local = str(name).startswith((".", "/", "~")) or os.path.isdir(owner)  # noqa: PTH112
    if is_local or not owner or not model or "/" in model:
        raise ModelError(f"model folder {name} not found; run `clipset pretrain` first")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise ModelError(
            f"folder {folder} not found, and huggingface_hub, which looks for it on the Hugging "
            f"Face hub, is not installed: pip install huggingface_hub"
        ) from None
    try:
        return Path(snapshot_download(str(name), revision=revision, allow_patterns=list(HUB_FILES)))
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"folder {folder} not found, and the Hugging Face hub did not give a model of that "
            f"name: {reason}"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The identity and progress of a run; runs of equal fingerprints can resume each other."""

    fingerprint: str
    epoch: int
    settings: dict[str, Any]
    dim: int
    seed: int
    best: tuple[float, int] | None = None
    loss_curve: tuple[tuple[int, float], ...] = ()
    scaler: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    format: int = CHECKPOINT_FORMAT


def write_checkpoint(
    folder: Path, state: RunState, optimizer: optim.Optimizer, model: nn.Module, *, keep: int
) -> None:
    """Write everything that a killed run needs to resume, and keep the last few checkpoints."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, slot in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in slot.items()}
    header = {"state": msgspec.json.encode(to_mapping(state)).decode()}
    content = seal(save(_cpu_tensors(tensors), metadata=header))
    write_atomic(_checkpoint_path(folder, state.epoch), content)
    with writing(folder):
        for old in _newest_first(folder)[keep:]:
            old.unlink(missing_ok=True)


def newest_checkpoint(folder: Path) -> RunState | None:
    """The state of the newest checkpoint that is not damaged."""
    for path in _newest_first(folder):
        if find_damage(path) is not None:
            log(f"{path.name} is damaged and is skipped")
            continue
        return _read_state(path)
    return None


def find_checkpoint(folder: Path, state: RunState) -> RunState | None:
    """The newest checkpoint of the run of `state`; a checkpoint of another run is refused."""
    newest = newest_checkpoint(folder)
    if newest is not None and newest.fingerprint != state.fingerprint:
        raise TrainingError(
            f"{folder.parent} holds another run that was stopped at epoch {newest.epoch} "
            f"({describe_difference(state, newest)}); use another folder, or delete {folder} to "
            f"start anew"
        )
    return newest


def _read_state(path: Path) -> RunState:
    try:
        with safe_open(path, "np") as file:
            content = parse_json((file.metadata() or {})["state"], path.name)
        if content["format"] == CHECKPOINT_FORMAT:
            return msgspec.convert(content, RunState)
    except (OSError, SafetensorError, KeyError, TypeError, ConfigError, msgspec.MsgspecError):
        pass
    raise TrainingError(
        f"{path} is not a checkpoint of format {CHECKPOINT_FORMAT}; another clipset wrote it: "
        f"resume with that one, or delete {path.parent} to start anew"
    )


def load_checkpoint(
    folder: Path, epoch: int, optimizer: optim.Optimizer, model: nn.Module
) -> RunState:
    """Restore weights and optimizer state as they were after an epoch."""
    path = _checkpoint_path(folder, epoch)
    damage = find_damage(path)
    if damage is not None:  # of another rank's copy
        raise TrainingError(f"the checkpoint {path} is damaged: {damage}; delete it and run again")
    state, tensors = _read_state(path), load_file(path)
    weights: dict[str, Tensor] = {}
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        owner, _, rest = name.partition(".")
        if owner == "model":
            weights[rest] = value
        else:
            index, key = rest.split(".")
            slots.setdefault(int(index), {})[key] = value
    model.load_state_dict(weights)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": slots, "param_groups": groups})
    return state


def remove_checkpoints(folder: Path) -> None:
    """Delete all checkpoints and partial files."""
    with writing(folder):
        for path in _newest_first(folder):
            path.unlink(missing_ok=True)
        remove_partial_files(folder)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def remove_partial_files(folder: Path) -> None:
    """Delete checkpoints that a killed process left half written."""
    for path in folder.glob(".epoch-*.part"):
        path.unlink(missing_ok=True)


def describe_difference(state: RunState, other: RunState) -> str:
    """In a few words, why two states are not of the same run."""
    if state.dim != other.dim:
        return f"features of width {other.dim}, now {state.dim}"
    if state.seed != other.seed:
        return f"seed {other.seed}, now {state.seed}"
    settings = msgspec.json.decode(msgspec.json.encode(state.settings))  # as it is read again
    now, before = flatten(settings), flatten(other.settings)
    changes = [
        f"{name} {before.get(name)}, now {now.get(name)}"
        for name in sorted(now | before)
        if now.get(name) != before.get(name)
    ]
    more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
    return "; ".join(changes[:3]) + more if changes else "other videos or features"


def _checkpoint_path(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:06d}.safetensors"


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("epoch-*.safetensors"), reverse=True)
