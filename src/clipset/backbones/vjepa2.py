"""V-JEPA 2: a video transformer with rotary positions, from the authors' checkpoint."""

from __future__ import annotations

from pathlib import Path

from clipset.backbones.checkpoints import CheckpointLayout, load_checkpoint
from clipset.backbones.registry import IMAGENET, BackboneEntry, BackboneSpec, Weights
from clipset.networks.video_transformers import VJEPA2, ViTConfig

LAYOUT = CheckpointLayout(  # the averaged copy, which the authors' frozen evaluations use
    levels=("target_encoder",),
    prefixes=("backbone.", ""),
    ignored_keys=(r"(backbone\.)?pos_embed",),
)
LARGE = ViTConfig(embed_dim=1024, depth=24, num_heads=16, mlp_dim=4096)


def load_vjepa2(path: Path, config: ViTConfig) -> VJEPA2:
    """The averaged encoder of an official V-JEPA 2 checkpoint."""
    return load_checkpoint(lambda: VJEPA2(config), LAYOUT, path)


ENTRIES = (
    BackboneEntry(
        spec=BackboneSpec(
            name="vjepa2_vitl", dim=1024, frames=64, stride=4, size=256,
            mean=IMAGENET.mean, std=IMAGENET.std,
            pooling="last norm, then mean of all tokens; averaged copy of the encoder",
            weights=Weights(
                file="vitl.pt", licence="MIT",
                source="the README of github.com/facebookresearch/vjepa2 (V-JEPA 2, ViT-L/16)",
            ),
            paper="V-JEPA 2 (Assran et al., 2025)",
        ),
        load=lambda _, path: load_vjepa2(path, LARGE),
        tubelet_size=2,
        patch_size=16,
    ),
)  # fmt: skip
