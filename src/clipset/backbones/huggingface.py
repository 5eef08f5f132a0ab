"""Any vision or video model of Hugging Face, by folder or by name: `hf:<folder>`, `hf:<name>`.

Video models take the whole clip; image models take each frame and are averaged over the frames.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import index
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clipset.backbones.checkpoints import check_file, check_finite, describe_mismatch
from clipset.backbones.huggingface_files import (
    WEIGHT_FILES,
    find_folder,
    find_weights,
    read_licence,
    read_preprocessing,
)
from clipset.backbones.registry import BackboneEntry, BackboneSpec, Weights
from clipset.config import read_json
from clipset.errors import BackboneError, error_line
from clipset.networks.video_transformers import LayeredNetwork

MAX_LAYERS = 1000
IMAGE_FRAMES = 16  # frames of a clip for an image model

# Patterns of keys that a file may hold beyond what is loaded.
HEADS = r"(.*\.)?(classifier|cls_classifier|distillation_classifier|head|decoder|pooler)\..*"
TEXT = r"(text_model|text_projection|visual_projection)\..*|logit_scale|logit_bias"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """How the models of one type are loaded, fed and pooled.

    `resize` says how they take other sizes and frame counts: "no", by themselves ("free"), with a
    flag in the call ("flag"), or by the config "before" or "after" the weights are loaded.
    """

    model_class: str
    pool: Literal["first", "mean", "pooler", "any"]  # class token, mean token, the model's pooler
    pooling: str
    video: bool = False
    stride: int = 4
    input_name: str = "pixel_values"
    resize: Literal["no", "free", "flag", "before", "after"] = "no"
    vision_tower: bool = False  # the vision part of a model of images and text is loaded alone
    trunk: str = ""  # the part of the loaded model that runs; empty for all of it
    method: str = ""  # of that part, which is called; empty for the part itself
    last_norm: str = ""  # a norm of the loaded model that comes after the pooling
    width: str = ""  # where the config says how wide the features are, if not in `hidden_size`
    ignored_keys: str = HEADS
    layer_token: Literal["", "first", "mean"] = ""  # the feature of a layer; no layers if empty
    model_options: dict[str, Any] = field(default_factory=dict)


_CLASS = "class token after the last norm"
_FRAMES = ", mean over frames"
_VIDEOS = "pixel_values_videos"
_NO_POOLER = {"add_pooling_layer": False}

MODEL_FAMILIES = {
    "videomae": ModelFamily(
        model_class="VideoMAEModel", pool="mean", video=True, layer_token="mean",
        pooling="last norm, then mean of all tokens",
        ignored_keys=HEADS + r"|encoder_to_decoder\.weight|mask_token",
    ),
    "videomae, fine-tuned": ModelFamily(
        model_class="VideoMAEForVideoClassification", pool="mean", video=True,
        layer_token="mean", pooling="mean of all tokens, then fc_norm",
        trunk="videomae", last_norm="fc_norm",
    ),
    "timesformer": ModelFamily(
        model_class="TimesformerModel", pool="first", pooling=_CLASS, video=True,
        layer_token="first", stride=32, resize="after",
    ),
    "vivit": ModelFamily(
        model_class="VivitModel", pool="first", pooling=_CLASS, video=True,
        layer_token="first", stride=2, model_options=_NO_POOLER,
    ),
    "vjepa2": ModelFamily(
        model_class="VJEPA2Model", pool="mean", video=True, layer_token="mean",
        pooling="last norm, then mean of all tokens of the encoder",
        input_name=_VIDEOS, resize="before", trunk="encoder",
    ),
    "videoprism_vision_model": ModelFamily(
        model_class="VideoPrismVisionModel", pool="mean", video=True,
        pooling="last norm, then mean of all tokens", input_name=_VIDEOS, resize="flag",
        ignored_keys=HEADS + r"|(auxiliary_layers|head_layernorm)\..*",
    ),
    "videoprism": ModelFamily(
        model_class="VideoPrismClipModel", pool="pooler", video=True,
        pooling="attention pooling of the video tower", input_name=_VIDEOS, resize="flag",
        trunk="video_model",
    ),
    "dinov2": ModelFamily(
        model_class="Dinov2Model", pool="pooler", pooling=_CLASS + _FRAMES, layer_token="first",
        resize="free",
    ),
    "clip": ModelFamily(
        model_class="CLIPVisionModel", pool="pooler", layer_token="first", resize="flag",
        pooling=_CLASS + ", before the projection" + _FRAMES,
        vision_tower=True, ignored_keys=f"{HEADS}|{TEXT}",
    ),
    "siglip": ModelFamily(
        model_class="SiglipVisionModel", pool="pooler", layer_token="mean", resize="flag",
        pooling="attention pooling of the vision tower" + _FRAMES,
        vision_tower=True, ignored_keys=f"{HEADS}|{TEXT}",
    ),
    "xclip": ModelFamily(
        model_class="XCLIPModel", pool="pooler", video=True, method="get_video_features",
        pooling="multi-frame transformer of the video tower", width="projection_dim",
    ),
    "vit": ModelFamily(
        model_class="ViTModel", pool="first", pooling=_CLASS + _FRAMES, layer_token="first",
        resize="flag", model_options=_NO_POOLER,
    ),
}  # fmt: skip
MODEL_FAMILIES |= {
    "dinov2_with_registers": replace(
        MODEL_FAMILIES["dinov2"], model_class="Dinov2WithRegistersModel"
    ),
    "dinov3_vit": replace(MODEL_FAMILIES["dinov2"], model_class="DINOv3ViTModel"),
    "metaclip_2": replace(MODEL_FAMILIES["clip"], model_class="MetaClip2VisionModel"),
    "clip_vision_model": MODEL_FAMILIES["clip"],
    "siglip_vision_model": MODEL_FAMILIES["siglip"],
}  # fmt: skip
OTHER_FAMILY = ModelFamily(
    model_class="AutoModel",
    pool="any",
    pooling="pooler of the model, else mean of all positions" + _FRAMES,
)


class HuggingFaceNetwork(LayeredNetwork):
    """Normalised clips to features, through a model of transformers."""

    def __init__(
        self, family: ModelFamily, model: nn.Module, dim: int, call_options: dict[str, Any]
    ) -> None:
        super().__init__()
        self.trunk = model.get_submodule(family.trunk)
        has_norm = bool(family.last_norm)
        self.last_norm = model.get_submodule(family.last_norm) if has_norm else nn.Identity()
        self.family, self.dim, self.call_options = family, dim, call_options
        depth = getattr(self.trunk.config, "num_hidden_layers", 0) if family.layer_token else 0
        lists = (module for module in self.trunk.modules() if isinstance(module, nn.ModuleList))
        candidates = (modules for modules in lists if depth and len(modules) == depth)
        self.blocks = next(candidates, nn.ModuleList())

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D"]:
        if self.family.video:
            return self.pooled_output(clips)
        features = self.pooled_output(clips.flatten(0, 1))  # (B T, D)
        return features.unflatten(0, clips.shape[:2]).mean(dim=1)  # type: ignore[no-any-return]

    def pooled_output(self, pixels: Tensor) -> Float[Tensor, "B D"]:
        """The pooled output for a batch of clips or of frames."""
        run = getattr(self.trunk, self.family.method) if self.family.method else self.trunk
        output = run(**{self.family.input_name: pixels}, **self.call_options)
        pool, pooler_output = self.family.pool, getattr(output, "pooler_output", None)
        if pool == "pooler" or (pool == "any" and pooler_output is not None):
            features = output.pooler_output.flatten(1)
        elif pool == "first":
            features = output.last_hidden_state[:, 0]
        else:  # of tokens (B, N, D), or of feature maps (B, D, h, w)
            state = output.last_hidden_state
            features = state.mean(dim=1) if state.ndim == 3 else state.flatten(2).mean(dim=2)
        features = self.last_norm(features)
        if features.ndim != 2 or features.shape[1] != self.dim:
            raise BackboneError(
                f"{type(self.trunk).__name__} gives features {tuple(features.shape)}, "
                f"its config says {self.dim}"
            )
        return features  # type: ignore[no-any-return]

    def pool_block(self, output: Any) -> Float[Tensor, "N D"]:
        """The first token of a block, or the mean of all."""
        tokens: Tensor = output[0] if isinstance(output, tuple) else output
        return tokens[:, 0] if self.family.layer_token == "first" else tokens.mean(dim=1)


def huggingface_entry(backbone_name: str) -> BackboneEntry:
    """The registry entry of `hf:<folder or name>`, read from the model's own files."""
    model_name = backbone_name.removeprefix("hf:")
    model_folder = find_folder(model_name)
    config = read_hub_config(model_folder)
    family = _find_family(config)
    vision_config = getattr(config, "vision_config", config)
    mean, std, size = read_preprocessing(model_folder)
    try:
        frames = _native_frames(vision_config) if family.video else IMAGE_FRAMES
        size = size or _native_size(vision_config)
        sizes = getattr(vision_config, "hidden_sizes", None) or [None]
        hidden_size = getattr(vision_config, "hidden_size", None) or sizes[-1]
        dim = index(getattr(config, family.width) if family.width else hidden_size)
    except (AttributeError, TypeError, ValueError, IndexError, OverflowError):
        raise BackboneError(
            f"{model_folder / 'config.json'} does not say how many frames of which size it takes, "
            "or how wide its features are"
        ) from None
    is_folder = Path(model_name).expanduser().is_dir()
    weights = Weights(
        file=" or ".join(WEIGHT_FILES),
        licence=read_licence(model_folder),
        source=model_name if is_folder else f"huggingface.co/{model_name}",
    )
    spec = BackboneSpec(
        name=backbone_name, dim=dim, frames=frames, stride=family.stride, size=size,
        mean=mean, std=std, pooling=family.pooling, weights=weights,
        paper=f"{config.model_type} of Hugging Face transformers", is_image=not family.video,
    )  # fmt: skip
    return BackboneEntry(spec=spec, locate=lambda: find_weights(model_name), load=load_huggingface)


def load_huggingface(spec: BackboneSpec, weights_path: Path) -> HuggingFaceNetwork:
    """The model in the folder of `path`, every weight of which must be in the file."""
    if weights_path.name not in WEIGHT_FILES:
        raise BackboneError(f"the weights of {spec.name} must be one of {', '.join(WEIGHT_FILES)}")
    config = read_hub_config(weights_path.parent)
    family = _find_family(config)
    call_options = _fit_size(spec, family, getattr(config, "vision_config", config))
    loaded_model = load_hub_model(family, config, weights_path)
    if family.resize == "after":
        _set_native_size(loaded_model.config, spec)
    network = HuggingFaceNetwork(family, loaded_model, spec.dim, call_options).eval()
    if family is OTHER_FAMILY:
        _check_repeatable(network, spec)
    return network


def _find_family(config: Any) -> ModelFamily:
    if config.model_type == "videomae" and config.use_mean_pooling:
        return MODEL_FAMILIES["videomae, fine-tuned"]
    return MODEL_FAMILIES.get(config.model_type, OTHER_FAMILY)


def import_transformers() -> Any:
    """The module; an error that says how to install it."""
    try:
        import transformers
    except ImportError:
        raise BackboneError(
            "models of Hugging Face need transformers; install it: pip install 'clipset[hf]'"
        ) from None
    return transformers


def read_hub_config(model_folder: Path) -> Any:
    """The config of a model; one that would run code or make a huge network is refused."""
    config_class, config_path = import_transformers().AutoConfig, model_folder / "config.json"
    _check_layer_counts(read_json(config_path), config_path)
    try:
        config = config_class.from_pretrained(
            model_folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers raises many kinds, all about this file
        raise BackboneError(f"{config_path} is refused: {error_line(error)}") from None
    sections = [getattr(config, f"{name}_config", config) for name in ("vision", "text")]
    for section in (config, *sections):
        kernel = getattr(section, "_attn_implementation", None)
        if "/" in str(kernel):  # transformers would download and run it
            raise BackboneError(
                f"{config_path} is refused: it names code of the hub, the kernel {kernel!r}; "
                f"remove attn_implementation from it"
            )
    return config


def _check_layer_counts(content: Any, config_path: Path) -> None:
    """Refuse counts of layers that no network has: transformers would make them all."""
    for name, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, dict):
            _check_layer_counts(value, config_path)
        elif "layers" in name and isinstance(value, int) and not 0 <= value <= MAX_LAYERS:
            raise BackboneError(f"{config_path}: {name} must be 0 to {MAX_LAYERS}, got {value}")


def _native_frames(config: Any) -> int:
    return int(getattr(config, "num_frames", None) or config.frames_per_clip)


def _native_size(config: Any) -> int:
    size = getattr(config, "image_size", None) or getattr(config, "crop_size", None) or 224
    return int(size if isinstance(size, int) else size[0])


def _set_native_size(config: Any, spec: BackboneSpec) -> None:
    """Change the frame count and size in the model's config."""
    frames, size = spec.frames, spec.size
    values = {
        "num_frames": frames,
        "frames_per_clip": frames,
        "image_size": size,
        "crop_size": size,
    }
    for name, value in values.items():
        if hasattr(config, name):
            setattr(config, name, value)


def _fit_size(spec: BackboneSpec, family: ModelFamily, config: Any) -> dict[str, Any]:
    """Options of the call for this size; sizes that the model cannot take are refused."""
    patch_size = getattr(config, "patch_size", None) or getattr(config, "tubelet_size", None) or 1
    patch_size = patch_size if isinstance(patch_size, int) else patch_size[-1]
    if spec.size % patch_size:
        raise BackboneError(f"{spec.name} needs a multiple of {patch_size} pixels, got {spec.size}")
    is_native = spec.size == _native_size(config) and (
        not family.video or spec.frames == _native_frames(config)
    )
    if family.resize == "before":
        _set_native_size(config, spec)
    if is_native or family.resize in ("free", "before", "after") or family is OTHER_FAMILY:
        return {}
    if family.resize == "flag":
        return {"interpolate_pos_encoding": True}
    raise BackboneError(
        f"{spec.name} takes {_native_frames(config)} frames of {_native_size(config)} pixels only, "
        f"got {spec.frames} of {spec.size}"
    )


def load_hub_model(family: ModelFamily, config: Any, weights_path: Path) -> nn.Module:
    """The model of transformers with every weight from the file."""
    transformers = import_transformers()
    check_file(weights_path)
    with quiet(transformers):
        try:
            loaded_model, info = getattr(transformers, family.model_class).from_pretrained(
                weights_path.parent,
                config=getattr(config, "vision_config", config) if family.vision_tower else config,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=weights_path.name != "pytorch_model.bin",
                weights_only=True,
                ignore_mismatched_sizes=True,  # so that they are in `info`, where we refuse them
                dtype=torch.float32,
                output_loading_info=True,
                **family.model_options,
            )
        except Exception as error:  # transformers raises many kinds, all about these files
            raise BackboneError(f"{weights_path} cannot be loaded: {error_line(error)}") from None
    unexpected_keys = sorted(info["unexpected_keys"])
    problems = describe_mismatch(
        missing=sorted(info["missing_keys"]),
        unknown=[key for key in unexpected_keys if not re.fullmatch(family.ignored_keys, key)],
        shapes=[
            f"{key}: {tuple(a)} instead of {tuple(b)}" for key, a, b in info["mismatched_keys"]
        ],
    )
    if problems:
        raise BackboneError(f"{weights_path} does not fit its config.json: {problems}")
    check_finite(loaded_model.state_dict(), weights_path)
    return loaded_model  # type: ignore[no-any-return]


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """No progress bars and no reports: what they say is an error or is of no interest."""
    has_bars = transformers.utils.logging.is_progress_bar_enabled()
    log_level = transformers.logging.get_verbosity()
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(log_level)
        if has_bars:
            transformers.utils.logging.enable_progress_bar()


def _check_repeatable(network: HuggingFaceNetwork, spec: BackboneSpec) -> None:
    """A model of an unknown type must take frames and give the same feature twice."""
    frame = torch.zeros(1, 1, 3, spec.size, spec.size)
    try:
        with torch.inference_mode():
            first, second = network(frame), network(frame)
    except BackboneError:
        raise
    except Exception as error:  # the model needs something else than pixels
        raise BackboneError(f"{spec.name} cannot run on frames: {error_line(error)}") from None
    if not torch.equal(first, second):
        raise BackboneError(f"{spec.name} gives another feature each time; it is not a backbone")
