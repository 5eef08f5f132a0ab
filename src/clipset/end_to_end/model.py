"""A video transformer and a set transformer that are trained together; most tokens are dropped.

How much memory a step needs is known before the first one. The model of activations counts the
tensors that the backward pass keeps, in single precision; mixed precision needs less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import repeat

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from clipset.backbones.registry import BackboneSpec
from clipset.backbones.runtime import NormalisedNetwork
from clipset.errors import TrainingError
from clipset.model.encoder import SetEncoding
from clipset.model.losses import Gather, ScaleLosses
from clipset.model.scale import ScaleNetwork, SetModel
from clipset.networks.video_transformers import VideoMAE
from clipset.training.data import available_memory

CHUNK_TOKENS = 4096  # tokens of the clips that the backbone encodes at once
MAX_DROP = 0.95  # as in the paper
FLOAT_BYTES = 4
OPTIMIZER_COPIES = 4  # of each trained weight: itself, its gradient, two moments
BATCHES_IN_MEMORY = 3  # the one of this step, the next one, and videos that are ready too early


@dataclass(frozen=True, slots=True, kw_only=True)
class EndToEndConfig:
    """How the backbone is trained."""

    drop: float = 0.9
    """fraction of the tokens of each clip that is dropped before the first block"""
    checkpointing: bool = True
    """compute activations again in the backward pass instead of keeping them"""

    def __post_init__(self) -> None:
        if not 0 <= self.drop <= MAX_DROP:
            raise TrainingError(
                f"drop must lie between 0 and {MAX_DROP}, got {self.drop}: some tokens must remain"
            )


class EndToEndModel(SetModel):
    """Two sets of clips as pixels → backbone → features → the losses of the set transformer.

    The backbone encodes a few clips at a time. With `checkpointing`, only the features are kept,
    and the backward pass computes the activations of these few clips again.
    """

    def __init__(
        self,
        spec: BackboneSpec,
        network: VideoMAE,
        scale: ScaleNetwork,
        *,
        is_trained: bool,
        checkpointing: bool,
    ) -> None:
        super().__init__()
        self.backbone = NormalisedNetwork(spec, network).requires_grad_(is_trained)
        self.scale, self.dim = scale, spec.dim
        self.is_trained, self.checkpointing = is_trained, checkpointing

    def features(
        self, pixels: UInt8[Tensor, "*N T 3 S S"], visible: Int[Tensor, "*N K"] | None = None
    ) -> Float[Tensor, "*N D"]:
        """The features of clips; of each clip only the visible tokens are encoded."""
        *shape, frames, _, size, _ = pixels.shape
        clips = pixels.flatten(0, -5)  # (C, T, 3, S, S)
        if len(clips) == 0:
            return torch.zeros((*shape, self.dim), device=clips.device)
        num_tokens = count_tokens(self.vit, frames, size) if visible is None else visible.shape[-1]
        chunk = clips_at_once(num_tokens)
        tokens = repeat(None) if visible is None else visible.flatten(0, -2).split(chunk)
        with torch.set_grad_enabled(self.is_trained and torch.is_grad_enabled()):
            inputs = zip(clips.split(chunk), tokens, strict=False)
            features = torch.cat([self._encode(*some) for some in inputs])
        return features.float().unflatten(0, shape)  # type: ignore[no-any-return]

    @property
    def vit(self) -> VideoMAE:
        """The network of the backbone, without the normalisation of pixels."""
        network = self.backbone.network
        assert isinstance(network, VideoMAE)
        return network

    def _encode(
        self, clips: UInt8[Tensor, "C T 3 S S"], visible: Int[Tensor, "C K"] | None
    ) -> Float[Tensor, "C D"]:
        if not self.checkpointing or not torch.is_grad_enabled():
            return self.backbone(clips, visible)  # type: ignore[no-any-return]
        return checkpoint(  # type: ignore[no-any-return]
            self.backbone, clips, visible, use_reentrant=False, preserve_rng_state=False
        )

    def encode(
        self,
        pixels: UInt8[Tensor, "B V T 3 S S"],
        boxes: Float[Tensor, "B V X"],
        visible: Int[Tensor, "B V K"] | None = None,
    ) -> SetEncoding:
        """Clip tokens and set tokens of sets of clips."""
        return self.scale.encode(self.features(pixels, visible), boxes)

    def losses(
        self,
        pixels: UInt8[Tensor, "2 B V T 3 S S"],
        boxes: Float[Tensor, "2 B V X"],
        masked: Bool[Tensor, "2 B V"],
        visible: Int[Tensor, "2 B V K"] | None = None,
        gather: Gather | None = None,
    ) -> ScaleLosses:
        """Equation 8 for a minibatch of pixels."""
        features = self.features(pixels, visible)
        return self.scale.losses(features, boxes, masked, gather=gather)


def count_tokens(network: VideoMAE, frames: int, size: int) -> int:
    """The tokens of a clip, none dropped."""
    config = network.config
    return (frames // config.tubelet_size) * (size // config.patch_size) ** 2


def count_kept_tokens(num_tokens: int, drop: float) -> int:
    """The tokens of a clip that remain: at least one."""
    return max(1, num_tokens - math.floor(drop * num_tokens))


def clips_at_once(num_tokens: int) -> int:
    """The clips that the backbone encodes at once."""
    return max(1, CHUNK_TOKENS // num_tokens)


def clip_bytes(network: VideoMAE, spec: BackboneSpec, num_tokens: int) -> int:
    """What the backward pass keeps of one clip.

    Its pixels; of every token in every block the inputs of both norms and of all linear layers,
    queries, keys, values and the output of the attention; and the last norm.
    """
    config = network.config
    pixels = spec.frames * 3 * spec.size**2
    block = 8 * config.embed_dim + 2 * config.mlp_dim + config.num_heads + 4
    last_norm = 2 * config.embed_dim
    return FLOAT_BYTES * (pixels + num_tokens * (config.depth * block + last_norm))


def check_memory(
    model: EndToEndModel,
    spec: BackboneSpec,
    *,
    num_videos: int,
    num_clips: int,
    drop: float,
    device: torch.device,
) -> None:
    """Refuse batches (of one rank) of so many videos with so many clips, if they do not fit."""
    vit = model.vit
    num_visible = count_kept_tokens(count_tokens(vit, spec.frames, spec.size), drop)
    of_clip = clip_bytes(vit, spec, num_visible)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    weights = sum(p.numel() for p in model.parameters()) + (OPTIMIZER_COPIES - 1) * trained
    fixed = FLOAT_BYTES * weights + clips_at_once(num_visible) * of_clip
    keeps_all = model.is_trained and not model.checkpointing
    activations = num_clips * of_clip if keeps_all else 0
    pixels = num_clips * spec.frames * 3 * spec.size**2
    if device.type == "cuda":
        free, num_batches = torch.cuda.mem_get_info(device)[0], 1
    else:
        free, num_batches = available_memory(), BATCHES_IN_MEMORY
    of_video = num_batches * pixels + activations
    needed = fixed + num_videos * of_video
    if needed > free:
        fitting = max(0, free - fixed) // of_video
        raise TrainingError(
            f"batches of {num_videos} videos ({num_videos * num_clips} clips of {spec.frames} × "
            f"{spec.size} × {spec.size} pixels, {num_visible} tokens each) need about "
            f"{needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; "
            f"batch_size {fitting} would fit, or drop more tokens or use smaller clips"
        )
