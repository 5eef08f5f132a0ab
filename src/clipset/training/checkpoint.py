"""Trained models on disk and from a hub: safetensors and JSON, whole or not at all.

A model's folder follows the Hugging Face convention: `model.safetensors`, `config.json` and a
README.md that says what it is. Folders of clipset's own runs also hold `model.json`.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from clipset.backbones.checkpoints import first_nonfinite
from clipset.config import build, encode_json, read_json, to_mapping, write_together
from clipset.errors import ModelError
from clipset.model.scale import ScaleModel
from clipset.training.card import FORMAT, KIND, ModelCard, hub_config, model_page
from clipset.training.config import PretrainConfig
from clipset.training.weights import load_file

MODEL_FILE = "model.safetensors"
HUB_FILES = (MODEL_FILE, "README.md", "config.json")


def save_pretrained(model: ScaleModel, card: ModelCard, folder: str | Path) -> None:
    """Write a model so that `from_pretrained` reads it, here or from a hub."""
    _save(model, card, Path(folder), own=False)


def from_pretrained(name: str | Path, *, revision: str | None = None) -> ScaleModel:
    """A trained model from a folder, or by its name from the Hugging Face hub."""
    return load_model(find_model(name, revision=revision))[0]


def save_model(model: ScaleModel, card: ModelCard, folder: Path) -> None:
    """Write a finished run's model; `model.json` comes last and makes it whole."""
    _save(model, card, folder, own=True)


def _save(model: ScaleModel, card: ModelCard, folder: Path, *, own: bool) -> None:
    plain = {k: v.detach().to("cpu").contiguous() for k, v in model.state_dict().items()}
    bad = first_nonfinite(plain)
    if bad is not None:
        raise ModelError(f"the model is not saved: {bad} holds NaN or infinity; train again")
    weights = save(plain, metadata={"format": "pt"})
    card = replace(card, checksum=_checksum(hashlib.blake2b(weights, digest_size=16), card))
    files = {
        MODEL_FILE: weights,
        "README.md": model_page(card).encode(),
        "config.json": encode_json(hub_config(card)),
    }
    if own:
        files["model.json"] = encode_json(to_mapping(card))
    write_together({folder / name: content for name, content in files.items()})


def _checksum(weights: Any, card: ModelCard) -> str:
    """A checksum of the weights, given as a hash so far, and of all that the card says."""
    weights.update(msgspec.json.encode(to_mapping(replace(card, checksum="")), order="sorted"))
    return str(weights.hexdigest())


def remove_model(folder: Path) -> None:
    """Delete what `save_model` wrote, and nothing else."""
    for name in ("model.json", *HUB_FILES):
        (folder / name).unlink(missing_ok=True)


def read_card(folder: Path) -> ModelCard:
    """What a folder's model is."""
    path = _card_path(folder)
    content = read_json(path)
    if not isinstance(content, dict) or content.pop("model_type", KIND) != KIND:
        raise ModelError(f"{path} is of another kind of model; a clipset model is needed")
    content.pop("architectures", None)
    if content.get("format") != FORMAT:
        raise ModelError(
            f"{path} is of format {content.get('format')}, not {FORMAT}; another clipset wrote "
            f"it: use that one, or train again in another folder"
        )
    return build(ModelCard, content, str(path))


def _card_path(folder: Path) -> Path:
    """The file that says what a folder's model is: of a run, else of a hub."""
    for name in ("model.json", "config.json"):
        if (folder / name).is_file():
            return folder / name
    raise ModelError(f"{folder} holds no model (no model.json); run `clipset pretrain` first")


def read_training(folder: Path) -> PretrainConfig:
    """How a folder's model was trained."""
    card = read_card(folder)
    config = build(PretrainConfig, card.training, f"the training of {folder}")
    return replace(config, model=card.model)


def load_model(folder: Path) -> tuple[ScaleModel, ModelCard]:
    """A trained model, ready to represent sets; its files are those that were written."""
    card, path = read_card(folder), folder / MODEL_FILE
    try:
        _refuse_damage(path, card, _card_path(folder))
        _refuse_other_shapes(path, card)
        model = ScaleModel(card.dim, card.model)
        state = load_file(path)
        model.load_state_dict(state)
    except (OSError, SafetensorError, RuntimeError, OverflowError, TypeError) as error:
        first = str(error).splitlines()[0]
        raise ModelError(f"the weights in {folder} do not fit its description: {first}") from None
    bad = first_nonfinite(state)
    if bad is not None:
        raise ModelError(f"the weights in {folder} are damaged: {bad} holds NaN or infinity")
    return model.eval(), card


def _refuse_damage(path: Path, card: ModelCard, described: Path) -> None:
    """Refuse weights or a card that are not as they were written; a hub's may have no checksum."""
    if not card.checksum and described.name == "config.json":
        return
    with path.open("rb") as file:
        weights = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
    if _checksum(weights, card) != card.checksum:
        raise ModelError(
            f"{path} or {described.name} beside it is damaged: its checksum is another; copy the "
            f"model there again, or delete the folder and train again"
        )


def _refuse_other_shapes(path: Path, card: ModelCard) -> None:
    """Compare what the card announces with what the file holds, before memory is taken for it."""
    with torch.device("meta"):
        announced = ScaleModel(card.dim, card.model).state_dict()
    with safe_open(path, "np") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    for name in {**announced, **shapes}:
        here = tuple(announced[name].shape) if name in announced else None
        if here != shapes.get(name):
            told, found = here or "not there", shapes.get(name, "not there")
            raise RuntimeError(f"{name} should be {told}, in the file it is {found}")


def find_model(name: str | Path, *, revision: str | None = None) -> Path:
    """The folder of a model: the one of that name, else a copy of the hub's."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    parts = str(name).split("/")
    if len(parts) != 2 or not all(parts) or parts[0] in (".", "..", "~"):
        raise ModelError(f"there is no folder {folder}; run `clipset pretrain` first")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise ModelError(
            f"there is no folder {folder}, and to look for it on the Hugging Face hub "
            f"huggingface_hub is needed: pip install huggingface_hub"
        ) from None
    try:
        return Path(snapshot_download(str(name), revision=revision, allow_patterns=list(HUB_FILES)))
    except (OSError, ValueError, HfHubHTTPError) as error:
        first = str(error).strip().splitlines()[0]
        raise ModelError(
            f"there is no folder {folder}, and the Hugging Face hub did not give a model of that "
            f"name: {first}"
        ) from None
