"""The files of a Hugging Face model: its folder, its weights, its preprocessing, its licence."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from clipset.backbones.registry import checkpoint_files
from clipset.config import read_json
from clipset.errors import BackboneError

WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
PREPROCESSORS = ("video_preprocessor_config.json", "preprocessor_config.json")
PROCESSORS = ("video_processor", "image_processor")  # sections of a processor_config.json

Triple = tuple[float, float, float]


def find_folder(model_name: str) -> Path:
    """The folder of a model: `name` itself, the cached copy of the hub, or a download."""
    model_folder = Path(model_name).expanduser()
    if model_folder.is_dir():
        if not (model_folder / "config.json").is_file():
            raise BackboneError(
                f"{model_folder} is not a Hugging Face model: it has no config.json"
            )
        return model_folder
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model_name) is None or model_name.startswith("."):
        raise BackboneError(f"folder {model_folder} not found; give a folder or a name of the hub")
    return _download(
        model_name, ("*.json", "README.md"), lambda copy: (copy / "config.json").is_file()
    )


def find_weights(model_name: str) -> Path:
    """The weights in the folder of a model; safetensors if there are any."""
    model_folder = find_folder(model_name)
    if not Path(model_name).expanduser().is_dir():
        for pattern in ("model*.safetensors", "pytorch_model.bin"):
            if not _has_weights(model_folder):
                model_folder = _download(model_name, ("*.json", pattern), _has_weights)
    weights_path = _weights_in(model_folder)
    if weights_path is None:
        raise BackboneError(f"{model_folder} has no weights: none of {', '.join(WEIGHT_FILES)}")
    return weights_path


def read_preprocessing(model_folder: Path) -> tuple[Triple, Triple, int | None]:
    """Mean and std on the scale 0..255, and size, from the model's own preprocessor file."""
    values = _read_preprocessor(model_folder)
    if "Vivit" in str(values.get("image_processor_type")):  # its own defaults: pixels to -1..1
        values = {"rescale_factor": 1 / 127.5, "offset": True} | values
    if not values.get("do_normalize", True):
        values = values | {"image_mean": 0.0, "image_std": 1.0}
    try:
        is_rescaled = values.get("do_rescale", True)
        factor = float(values.get("rescale_factor", 1 / 255)) if is_rescaled else 1.0
        if not 0 < factor < math.inf:
            raise BackboneError(f"rescale_factor in {model_folder} must be above 0, got {factor}")
        shift = 1.0 if values.get("offset", False) else 0.0
        mean = _triple(values, "image_mean", model_folder, shift, factor)
        std = _triple(values, "image_std", model_folder, 0.0, factor)
        return mean, std, _input_size(values, model_folder)
    except (TypeError, ValueError, OverflowError) as error:
        raise BackboneError(
            f"the preprocessor file in {model_folder} does not fit: {error}"
        ) from None


def read_licence(model_folder: Path) -> str:
    """The licence that the model card names."""
    model_card = model_folder / "README.md"
    text = model_card.read_text(encoding="utf-8", errors="replace") if model_card.is_file() else ""
    match = re.search(r"\A---\n.*?^license:\s*(\S+)", text, flags=re.MULTILINE | re.DOTALL)
    return match[1] if match else "not stated; see the model card"


def _has_weights(model_folder: Path) -> bool:
    """Whether the weights are there, with all of their shards."""
    weights_path = _weights_in(model_folder)
    with suppress(BackboneError):
        return weights_path is not None and bool(checkpoint_files(weights_path))
    return False


def _weights_in(model_folder: Path) -> Path | None:
    return next(filter(Path.is_file, (model_folder / name for name in WEIGHT_FILES)), None)


def _read_preprocessor(model_folder: Path) -> dict[str, Any]:
    for file_name in PREPROCESSORS:
        if (model_folder / file_name).is_file():
            return _read_table(model_folder / file_name)
    config_path = model_folder / "processor_config.json"
    content = _read_table(config_path) if config_path.is_file() else {}
    for section in PROCESSORS:
        if isinstance(content.get(section), dict):
            return content[section]  # type: ignore[no-any-return]
    raise BackboneError(
        f"{model_folder} has no preprocessor_config.json, which says how its input is normalised; "
        'add it, such as {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "size": 224}'
    )


def _read_table(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise BackboneError(f"{path} must hold a table of settings, got {type(content).__name__}")
    return content


def _triple(
    values: Mapping[str, Any], key: str, model_folder: Path, shift: float, factor: float
) -> Triple:
    """Three numbers of the file, on the scale of the pixels."""
    value = values.get(key)
    value = [value] * 3 if isinstance(value, int | float) else value
    if not isinstance(value, list) or len(value) != 3:
        raise BackboneError(
            f"the preprocessor file in {model_folder} needs three numbers {key}, got {value}"
        )
    red, green, blue = ((float(number) + shift) / factor for number in value)
    return red, green, blue


def _input_size(values: Mapping[str, Any], model_folder: Path) -> int | None:
    """The side of the network's input: of the crop if there is one, else of the resize."""
    is_cropped = values.get("do_center_crop", True) and values.get("crop_size") is not None
    size = values.get("crop_size") if is_cropped else values.get("size")
    if isinstance(size, Mapping):
        sides = {size[key] for key in ("shortest_edge", "height", "width") if size.get(key)}
        if len(sides) > 1:
            raise BackboneError(
                f"the model in {model_folder} needs {size}; clipset's clips are square"
            )
        size = sides.pop() if sides else None
    return None if size is None else int(size)


def _download(model_name: str, patterns: tuple[str, ...], complete: Callable[[Path], bool]) -> Path:
    """The folder of a model of the hub: the cached copy if that is complete, else a download."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        raise BackboneError(
            f"hf:{model_name} is not a folder, and the hub needs: pip install 'clipset[hf]'"
        ) from None
    try:
        with suppress(LocalEntryNotFoundError):
            cached = Path(snapshot_download(model_name, local_files_only=True))
            if complete(cached):
                return cached
        return Path(snapshot_download(model_name, allow_patterns=list(patterns)))
    except Exception as error:  # of the network, of the hub, of the name
        raise BackboneError(
            f"hf:{model_name} is not a folder and cannot be downloaded ({type(error).__name__}); "
            "download it on a machine with internet and give its folder: hf:/path/to/folder"
        ) from None
