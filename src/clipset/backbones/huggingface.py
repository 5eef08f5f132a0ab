"""Any vision or video model of Hugging Face, by folder or by name: `hf:<folder>`, `hf:<name>`.

Video models see the clip at once; image models see each frame and are averaged over the frames.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clipset.backbones.checkpoints import check_file, check_finite, listed
from clipset.backbones.huggingface_families import OTHER, Family, find_family
from clipset.backbones.huggingface_files import (
    WEIGHTS,
    find_folder,
    find_weights,
    read_licence,
    read_preprocessing,
)
from clipset.backbones.layers import Parted, bin_means, outputs_of
from clipset.backbones.registry import BackboneEntry, BackboneSpec, Weights
from clipset.config import read_json
from clipset.errors import BackboneError

PREFIX = "hf:"
MOST_LAYERS = 1000
IMAGE_FRAMES = 16  # how many frames of a clip an image model sees


class HuggingFaceBackbone(Parted):
    """Normalised clips to features, through a model of transformers."""

    def __init__(self, family: Family, model: nn.Module, dim: int, call: dict[str, Any]) -> None:
        super().__init__()
        self.trunk = model.get_submodule(family.trunk)
        self.last_norm = (
            model.get_submodule(family.last_norm) if family.last_norm else nn.Identity()
        )
        self.family, self.dim, self.call = family, dim, call
        self.blocks = _find_blocks(self.trunk) if family.layer else nn.ModuleList()

    @property
    def depth(self) -> int:
        """The blocks, where it is known which token stands for them."""
        return len(self.blocks)

    def steps(self, frames: int) -> int:
        """Frames, or tokens that are a few frames deep; 1 where tokens do not tell time."""
        if not self.family.video:
            return frames
        config: Any = self.trunk.config
        return frames // config.tubelet_size if self.family.in_time else 1

    def parts(
        self, clips: Float[Tensor, "B T 3 H W"], layers: tuple[int, ...], bins: int
    ) -> Float[Tensor, "B L N D"]:
        """The token of each layer (or their mean), or the usual feature, in each time bin."""
        if self.family.video:
            return self._video_parts(clips, layers, bins)
        frames = clips.flatten(0, 1)  # (B T, 3, H, W)
        found = self._states(frames, layers) if layers else [self.features(frames)]
        if layers:
            found = [e[:, 0] if self.family.layer == "first" else e.mean(dim=1) for e in found]
        means = [bin_means(each.unflatten(0, clips.shape[:2]), bins) for each in found]
        return torch.stack(means, dim=1)

    def _video_parts(
        self, clips: Float[Tensor, "B T 3 H W"], layers: tuple[int, ...], bins: int
    ) -> Float[Tensor, "B L N D"]:
        found = self._states(clips, layers)
        if self.family.layer == "first":
            return torch.stack([tokens[:, :1] for tokens in found], dim=1)
        steps = self.steps(int(clips.shape[1]))
        means = torch.stack([bin_means(e.unflatten(1, (steps, -1)), bins) for e in found], dim=1)
        return means if layers else self.last_norm(means)

    def _states(self, pixels: Tensor, layers: tuple[int, ...]) -> list[Float[Tensor, "B N D"]]:
        if not layers:
            return [self._output(pixels).last_hidden_state]
        outputs = outputs_of(self.blocks, layers, lambda: self._output(pixels))
        return [output[0] if isinstance(output, tuple) else output for output in outputs]

    def _output(self, pixels: Tensor) -> Any:
        return self.trunk(**{self.family.pixels: pixels}, **self.call)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D"]:
        if self.family.video:
            return self.features(clips)
        features = self.features(clips.flatten(0, 1))  # (B T, D)
        return features.unflatten(0, clips.shape[:2]).mean(dim=1)  # type: ignore[no-any-return]

    def features(self, pixels: Tensor) -> Float[Tensor, "B D"]:
        """The pooled output for a batch of clips or of frames."""
        features: Tensor = self.last_norm(self.family.pool(self._output(pixels)))
        if features.ndim != 2 or features.shape[1] != self.dim:
            raise BackboneError(
                f"{type(self.trunk).__name__} gives features {tuple(features.shape)}, "
                f"its config says {self.dim}"
            )
        return features


def entry(name: str) -> BackboneEntry:
    """The registry's line for `hf:<folder or name>`, read from the model's own files."""
    model = name.removeprefix(PREFIX)
    folder = find_folder(model)
    config = _read_config(folder)
    family = find_family(config)
    vision = getattr(config, "vision_config", config)
    wanted = read_preprocessing(folder)
    try:
        frames = _native_frames(vision) if family.video else IMAGE_FRAMES
        size = wanted.size or _native_size(vision)
    except (AttributeError, TypeError, ValueError, IndexError, OverflowError):
        raise BackboneError(
            f"{folder / 'config.json'} does not say how many frames of which size it takes"
        ) from None
    spec = BackboneSpec(
        name=name,
        dim=_dim(vision, folder),
        frames=frames,
        stride=family.stride,
        size=size,
        mean=wanted.mean,
        std=wanted.std,
        pooling=family.pooling,
        weights=Weights(
            file=" or ".join(WEIGHTS),
            licence=read_licence(folder),
            source=model if Path(model).expanduser().is_dir() else f"huggingface.co/{model}",
        ),
        paper=f"{config.model_type} of Hugging Face transformers",
    )
    return BackboneEntry(spec=spec, find_weights=lambda: find_weights(model), make=make)


def make(spec: BackboneSpec, path: Path) -> HuggingFaceBackbone:
    """The model in the folder of `path`, every weight of which must be in the file."""
    if path.name not in WEIGHTS:
        raise BackboneError(f"the weights of {spec.name} must be one of {', '.join(WEIGHTS)}")
    config = _read_config(path.parent)
    family = find_family(config)
    vision = getattr(config, "vision_config", config)
    call = _fit(spec, family, vision)
    model = _load(family, config, path)
    if family.resize == "after":
        _set_native(model.config, spec)
    network = HuggingFaceBackbone(family, model, spec.dim, call).eval()
    if family is OTHER:
        _check_runs(network, spec)
    return network


def _find_blocks(trunk: nn.Module) -> nn.ModuleList:
    """The list of the model's layers; an empty one if it has none of the length it says."""
    count = getattr(trunk.config, "num_hidden_layers", 0)
    lists = (each for each in trunk.modules() if isinstance(each, nn.ModuleList))
    return next((each for each in lists if len(each) == count), nn.ModuleList())


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise BackboneError(
            "models of Hugging Face need transformers; install it: pip install 'clipset[hf]'"
        ) from None
    return transformers


def _read_config(folder: Path) -> Any:
    config_class, path = _transformers().AutoConfig, folder / "config.json"
    _refuse_layers(read_json(path), path)
    try:
        config = config_class.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers raises many kinds, all about this file
        raise BackboneError(f"{path} is refused: {_first_line(error)}") from None
    for each in (config, getattr(config, "vision_config", config)):
        kernel = getattr(each, "_attn_implementation", None)
        if "/" in str(kernel):  # transformers would download and run it
            raise BackboneError(
                f"{path} is refused: it names code of the hub, the kernel {kernel!r}; "
                f"remove attn_implementation from it"
            )
    return config


def _refuse_layers(content: Any, path: Path) -> None:
    """Refuse counts of layers that no network has: transformers would make them all."""
    for name, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, dict):
            _refuse_layers(value, path)
        elif "layers" in name and isinstance(value, int) and not 0 <= value <= MOST_LAYERS:
            raise BackboneError(f"{path}: {name} must be 0 to {MOST_LAYERS}, got {value}")


def _dim(config: Any, folder: Path) -> int:
    dim = (
        getattr(config, "hidden_size", None)
        or (getattr(config, "hidden_sizes", None) or [None])[-1]
    )
    if not isinstance(dim, int):
        raise BackboneError(f"the config.json in {folder} does not say how wide its features are")
    return dim


def _native_frames(config: Any) -> int:
    return int(getattr(config, "num_frames", None) or config.frames_per_clip)


def _native_size(config: Any) -> int:
    size = getattr(config, "image_size", None) or getattr(config, "crop_size", None) or 224
    return int(size if isinstance(size, int) else size[0])


def _set_native(config: Any, spec: BackboneSpec) -> None:
    """Tell the model about another frame count and size than its config has."""
    for name, value in (
        ("num_frames", spec.frames),
        ("frames_per_clip", spec.frames),
        ("image_size", spec.size),
        ("crop_size", spec.size),
    ):
        if hasattr(config, name):
            setattr(config, name, value)


def _fit(spec: BackboneSpec, family: Family, config: Any) -> dict[str, Any]:
    """What the call needs besides the pixels; refuses sizes that the model cannot take."""
    patch = getattr(config, "patch_size", None) or getattr(config, "tubelet_size", None) or 1
    patch = patch if isinstance(patch, int) else patch[-1]
    if spec.size % patch:
        raise BackboneError(f"{spec.name} needs a multiple of {patch} pixels, got {spec.size}")
    sized = spec.size == _native_size(config)
    timed = not family.video or spec.frames == _native_frames(config)
    if family.resize == "before":
        _set_native(config, spec)
    if family.resize in ("free", "before", "after") or family is OTHER or (sized and timed):
        return {}
    if family.resize == "flag":
        return {"interpolate_pos_encoding": True}
    raise BackboneError(
        f"{spec.name} takes {_native_frames(config)} frames of {_native_size(config)} pixels only, "
        f"got {spec.frames} of {spec.size}"
    )


def _load(family: Family, config: Any, path: Path) -> nn.Module:
    """The model of transformers with every weight from the file."""
    transformers = _transformers()
    check_file(path)
    with _quiet(transformers):
        try:
            model, found = getattr(transformers, family.loads).from_pretrained(
                path.parent,
                config=getattr(config, "vision_config", config) if family.tower else config,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=path.name != "pytorch_model.bin",
                weights_only=True,
                ignore_mismatched_sizes=True,  # so that they are in `found`, where we refuse them
                dtype=torch.float32,
                output_loading_info=True,
                **family.options,
            )
        except Exception as error:  # transformers raises many kinds, all about these files
            raise BackboneError(f"{path} cannot be loaded: {_first_line(error)}") from None
    _check_keys(found, family, path)
    check_finite(model.state_dict(), path)
    return model  # type: ignore[no-any-return]


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bars and no reports: what they say is an error or is of no interest."""
    bars = transformers.utils.logging.is_progress_bar_enabled()
    level = transformers.logging.get_verbosity()
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()


def _check_keys(found: dict[str, Any], family: Family, path: Path) -> None:
    """Every weight of the model is in the file; every other key is dropped by name."""
    unknown = sorted(key for key in found["unexpected_keys"] if not re.fullmatch(family.drops, key))
    shapes = [f"{key}: {tuple(a)} instead of {tuple(b)}" for key, a, b in found["mismatched_keys"]]
    problems = [
        f"{len(keys)} {word} ({listed(keys)})"
        for word, keys in (
            ("missing", sorted(found["missing_keys"])),
            ("unknown", unknown),
            ("of another shape", shapes),
        )
        if keys
    ]
    if problems:
        raise BackboneError(f"{path} does not fit its config.json: keys {', '.join(problems)}")


def _check_runs(network: HuggingFaceBackbone, spec: BackboneSpec) -> None:
    """A model of a type that clipset does not know must give the same feature twice."""
    frame = torch.zeros(1, 1, 3, spec.size, spec.size)
    try:
        with torch.inference_mode():
            first, second = network(frame), network(frame)
    except BackboneError:
        raise
    except Exception as error:  # the model wants something else than pixels
        raise BackboneError(
            f"{spec.name} cannot be fed with frames: {_first_line(error)}"
        ) from None
    if not torch.equal(first, second):
        raise BackboneError(f"{spec.name} gives another feature each time; it is no backbone")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
