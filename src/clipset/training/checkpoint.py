"""Trained models on disk and from a hub: safetensors and JSON, whole or not at all.

A model's folder follows the Hugging Face convention: `model.safetensors`, `config.json` and a
README.md that says what it is. Folders of clipset's own runs also hold `model.json`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save

from clipset.config import build, read_json, to_mapping, write_atomic, write_json
from clipset.errors import ModelError
from clipset.model.scale import ScaleModel
from clipset.training.card import FORMAT, KIND, ModelCard, hub_config, model_page
from clipset.training.config import PretrainConfig
from clipset.training.weights import load_file

HUB_FILES = ("model.safetensors", "README.md", "config.json")


def save_pretrained(model: ScaleModel, card: ModelCard, folder: str | Path) -> None:
    """Write a model so that `from_pretrained` reads it, here or from a hub."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plain = {k: v.detach().to("cpu").contiguous() for k, v in model.state_dict().items()}
    write_atomic(folder / "model.safetensors", save(plain, metadata={"format": "pt"}))
    write_atomic(folder / "README.md", model_page(card).encode())
    write_json(folder / "config.json", hub_config(card))


def from_pretrained(name: str | Path, *, revision: str | None = None) -> ScaleModel:
    """A trained model from a folder, or by its name from the Hugging Face hub."""
    return load_model(find_model(name, revision=revision))[0]


def save_model(model: ScaleModel, card: ModelCard, folder: Path) -> None:
    """Write a finished run's model; `model.json` comes last and makes it whole."""
    (folder / "model.json").unlink(missing_ok=True)
    save_pretrained(model, card, folder)
    write_json(folder / "model.json", to_mapping(card))


def remove_model(folder: Path) -> None:
    """Delete what `save_model` wrote, and nothing else."""
    for name in ("model.json", *HUB_FILES):
        (folder / name).unlink(missing_ok=True)


def read_card(folder: Path) -> ModelCard:
    """What a folder's model is."""
    found = [folder / name for name in ("model.json", "config.json") if (folder / name).is_file()]
    if not found:
        raise ModelError(f"{folder} holds no model (no model.json); run `clipset pretrain` first")
    content = read_json(found[0])
    if not isinstance(content, dict) or content.pop("model_type", KIND) != KIND:
        raise ModelError(f"{found[0]} is of another kind of model; a clipset model is needed")
    content.pop("architectures", None)
    if content.get("format") != FORMAT:
        raise ModelError(
            f"{found[0]} is of format {content.get('format')}, not {FORMAT}; another clipset wrote "
            f"it: use that one, or train again in another folder"
        )
    return build(ModelCard, content, str(found[0]))


def read_training(folder: Path) -> PretrainConfig:
    """How a folder's model was trained."""
    card = read_card(folder)
    config = build(PretrainConfig, card.training, f"the training of {folder}")
    return replace(config, model=card.model)


def load_model(folder: Path) -> tuple[ScaleModel, ModelCard]:
    """A trained model, ready to represent sets."""
    card = read_card(folder)
    model = ScaleModel(card.dim, card.model)
    try:
        model.load_state_dict(load_file(folder / "model.safetensors"))
    except (OSError, SafetensorError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise ModelError(f"the weights in {folder} do not fit its description: {first}") from None
    return model.eval(), card


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
