"""How each type of Hugging Face model is loaded, fed and pooled: one line for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

# Patterns of keys that a file may hold beyond what is loaded.
HEADS = r"(.*\.)?(classifier|cls_classifier|distillation_classifier|head|decoder|pooler)\..*"
TEXT = r"(text_model|text_projection|visual_projection)\..*|logit_scale|logit_bias"


def first_token(output: Any) -> Tensor:
    """The class token."""
    return output.last_hidden_state[:, 0]  # type: ignore[no-any-return]


def mean_token(output: Any) -> Tensor:
    """The mean of all tokens."""
    return output.last_hidden_state.mean(dim=1)  # type: ignore[no-any-return]


def pooler(output: Any) -> Tensor:
    """What the model itself makes of its tokens."""
    return output.pooler_output.flatten(1)  # type: ignore[no-any-return]


def pooler_or_mean(output: Any) -> Tensor:
    """What the model itself makes of its tokens, else the mean over all places."""
    if getattr(output, "pooler_output", None) is not None:
        return pooler(output)
    hidden = output.last_hidden_state
    return hidden.mean(dim=1) if hidden.ndim == 3 else hidden.flatten(2).mean(dim=2)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How the models of one type are loaded, fed and pooled.

    `resize` says how they meet other sizes and frame counts: "no", by themselves ("free"), with a
    flag in the call ("flag"), or by the config "before" or "after" the weights are loaded.
    """

    loads: str
    pool: Callable[[Any], Tensor]
    pooling: str
    video: bool = False
    stride: int = 4
    pixels: str = "pixel_values"
    resize: Literal["no", "free", "flag", "before", "after"] = "no"
    tower: bool = False  # the vision part of a model of images and text is loaded alone
    trunk: str = ""  # the part of the loaded model that runs; empty for all of it
    last_norm: str = ""  # a norm of the loaded model that comes after the pooling
    drops: str = HEADS
    layer: Literal["", "first", "mean"] = ""  # which token of a layer is kept; none if empty
    in_time: bool = False  # video models: the tokens stand in the order of time
    options: dict[str, Any] = field(default_factory=dict)


_CLASS = "class token after the last norm"
_FRAMES = ", mean over frames"
_VIDEOS = "pixel_values_videos"
_NO_POOLER = {"add_pooling_layer": False}

FAMILIES = {
    "videomae": Family(
        layer="mean",
        in_time=True,
        loads="VideoMAEModel",
        pool=mean_token,
        pooling="last norm, then mean of all tokens",
        video=True,
        drops=HEADS + r"|encoder_to_decoder\.weight|mask_token",
    ),
    "videomae, fine-tuned": Family(
        layer="mean",
        in_time=True,
        loads="VideoMAEForVideoClassification",
        pool=mean_token,
        pooling="mean of all tokens, then fc_norm",
        video=True,
        trunk="videomae",
        last_norm="fc_norm",
    ),
    "timesformer": Family(
        layer="first",
        loads="TimesformerModel",
        pool=first_token,
        pooling=_CLASS,
        video=True,
        stride=32,
        resize="after",
    ),
    "vivit": Family(
        layer="first",
        loads="VivitModel",
        pool=first_token,
        pooling=_CLASS,
        video=True,
        stride=2,
        options=_NO_POOLER,
    ),
    "vjepa2": Family(
        layer="mean",
        in_time=True,
        loads="VJEPA2Model",
        pool=mean_token,
        pooling="last norm, then mean of all tokens of the encoder",
        video=True,
        pixels=_VIDEOS,
        resize="before",
        trunk="encoder",
    ),
    "videoprism_vision_model": Family(
        loads="VideoPrismVisionModel",
        pool=mean_token,
        pooling="last norm, then mean of all tokens",
        video=True,
        pixels=_VIDEOS,
        resize="flag",
        drops=HEADS + r"|(auxiliary_layers|head_layernorm)\..*",
    ),
    "videoprism": Family(
        loads="VideoPrismClipModel",
        pool=pooler,
        pooling="attention pooling of the video tower",
        video=True,
        pixels=_VIDEOS,
        resize="flag",
        trunk="video_model",
    ),
    "dinov2": Family(
        layer="first", loads="Dinov2Model", pool=pooler, pooling=_CLASS + _FRAMES, resize="free"
    ),
    "dinov2_with_registers": Family(
        layer="first",
        loads="Dinov2WithRegistersModel",
        pool=pooler,
        pooling=_CLASS + _FRAMES,
        resize="free",
    ),
    "dinov3_vit": Family(
        layer="first", loads="DINOv3ViTModel", pool=pooler, pooling=_CLASS + _FRAMES, resize="free"
    ),
    "clip": Family(
        layer="first",
        loads="CLIPVisionModel",
        pool=pooler,
        pooling=_CLASS + ", before the projection" + _FRAMES,
        resize="flag",
        tower=True,
        drops=f"{HEADS}|{TEXT}",
    ),
    "siglip": Family(
        layer="mean",
        loads="SiglipVisionModel",
        pool=pooler,
        pooling="attention pooling of the vision tower" + _FRAMES,
        resize="flag",
        tower=True,
        drops=f"{HEADS}|{TEXT}",
    ),
    "vit": Family(
        layer="first",
        loads="ViTModel",
        pool=first_token,
        pooling=_CLASS + _FRAMES,
        resize="flag",
        options=_NO_POOLER,
    ),
}
FAMILIES["clip_vision_model"] = FAMILIES["clip"]
FAMILIES["siglip_vision_model"] = FAMILIES["siglip"]
OTHER = Family(
    loads="AutoModel",
    pool=pooler_or_mean,
    pooling="pooler of the model, else mean of all places" + _FRAMES,
)


def find_family(config: Any) -> Family:
    """The line for a model's config."""
    if config.model_type == "videomae" and config.use_mean_pooling:
        return FAMILIES["videomae, fine-tuned"]
    return FAMILIES.get(config.model_type, OTHER)
