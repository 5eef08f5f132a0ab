"""A video transformer and a set transformer that are trained together; most tokens are dropped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from clipset.backbones.registry import BackboneSpec
from clipset.backbones.runtime import NormalisedNetwork
from clipset.errors import BackboneError, TrainingError
from clipset.model.encoder import SetEncoding
from clipset.model.losses import Gather, ScaleLosses
from clipset.model.scale import ScaleNetwork, SetModel
from clipset.networks.video_transformers import VideoMAE

CHUNK_TOKENS = 4096  # tokens of the clips that the backbone encodes at once
MAX_DROP = 0.95  # as in the paper


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
        shape = pixels.shape[:-4]
        clips = pixels.flatten(0, -5)  # (C, T, 3, S, S)
        tokens = None if visible is None else visible.flatten(0, -2)  # (C, K)
        if len(clips) == 0:
            return torch.zeros((*shape, self.dim), device=clips.device)
        frames, size = clips.shape[1], clips.shape[3]
        num_tokens = count_tokens(self.vit, frames, size) if tokens is None else tokens.shape[1]
        chunk = clips_at_once(num_tokens)
        with torch.set_grad_enabled(self.is_trained and torch.is_grad_enabled()):
            if tokens is None:
                features = [self._encode(part, None) for part in clips.split(chunk)]
            else:
                parts = zip(clips.split(chunk), tokens.split(chunk), strict=True)
                features = [self._encode(part, own_tokens) for part, own_tokens in parts]
        encoded = torch.cat(features).float()
        return encoded.unflatten(0, shape)  # type: ignore[no-any-return]

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


def require_vit(spec: BackboneSpec, network: Any) -> VideoMAE:
    """The network, if its tokens can be dropped."""
    if not isinstance(network, VideoMAE):
        raise BackboneError(
            f"{spec.name} cannot be trained end to end: it is no video transformer whose tokens "
            f"can be dropped; name one with --backbone: videomae_b, or a file vit.safetensors of "
            f"`clipset pretrain-backbone`"
        )
    return network


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
