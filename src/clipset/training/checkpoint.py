"""Models and half-finished runs on disk: safetensors and JSON, whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn, optim

from clipset.config import build, read_json, to_mapping, write_atomic, write_json
from clipset.errors import ModelError
from clipset.model.config import ModelConfig
from clipset.model.scale import ScaleModel

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a saved model is and what it was trained on."""

    dim: int
    model: ModelConfig
    training: dict[str, Any]
    backbone: dict[str, Any]
    videos: int
    split: str
    seed: int
    fingerprint: str
    format: int = FORMAT


def save_model(model: ScaleModel, card: ModelCard, folder: Path) -> None:
    """Write `model.safetensors`, then `model.json`, which makes it whole."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "model.safetensors", save(_plain(model.state_dict())))
    write_json(folder / "model.json", to_mapping(card))


def read_card(folder: Path) -> ModelCard:
    """What a folder's model is."""
    path = folder / "model.json"
    if not path.is_file():
        raise ModelError(f"{folder} holds no model (no model.json); run `clipset pretrain` first")
    content = read_json(path)
    if content.get("format") != FORMAT:
        raise ModelError(f"{path} is not of format {FORMAT}; another clipset wrote it")
    return build(ModelCard, content, str(path))


def load_model(folder: Path) -> tuple[ScaleModel, ModelCard]:
    """A trained model, ready to represent sets."""
    card = read_card(folder)
    model = ScaleModel(card.dim, card.model)
    try:
        model.load_state_dict(load_file(folder / "model.safetensors"))
    except (OSError, SafetensorError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise ModelError(f"the weights in {folder} do not fit model.json: {first}") from None
    return model.eval(), card


def save_progress(
    path: Path, model: nn.Module, optimiser: optim.Optimizer, state: dict[str, str]
) -> None:
    """Everything that a killed run needs to go on as if nothing had happened, in one file."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for number, slot in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{name}": value for name, value in slot.items()}
    write_atomic(path, save(_plain(tensors), metadata=state))


def load_progress(path: Path, model: nn.Module, optimiser: optim.Optimizer) -> None:
    """Put a saved run's weights and optimiser state back."""
    tensors = load_file(path)
    model.load_state_dict(
        {n.removeprefix("model."): v for n, v in tensors.items() if n.startswith("model.")}
    )
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, number, key = name.split(".")
            slots.setdefault(int(number), {})[key] = value
    current = optimiser.state_dict()
    optimiser.load_state_dict({"state": slots, "param_groups": current["param_groups"]})


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}
