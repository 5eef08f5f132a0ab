"""SVT: a video transformer with divided space-time attention, self-supervised on Kinetics-400."""

from __future__ import annotations

from pathlib import Path

from clipset.backbones.checkpoints import CheckpointLayout, load_checkpoint
from clipset.backbones.registry import KINETICS, BackboneEntry, BackboneSpec, Weights
from clipset.networks.video_transformers import SVT, SVTConfig

# The released file is the teacher, flat; a training checkpoint has it under "teacher".
LAYOUT = CheckpointLayout(
    levels=("teacher",), prefixes=("backbone.", ""), ignored_keys=(r"head\..*",)
)


def load_svt(path: Path, config: SVTConfig) -> SVT:
    """The teacher of an SVT checkpoint, released or of a training run."""
    return load_checkpoint(lambda: SVT(config), LAYOUT, path)


ENTRIES = (
    BackboneEntry(
        spec=BackboneSpec(  # 16 frames at stride 4 as in the SCALE paper (SVT: 8 at stride 32)
            name="svt_vitb16", dim=768, frames=16, stride=4, size=224,
            mean=KINETICS.mean, std=KINETICS.std,
            pooling="class token after the last norm; teacher; positions resized trilinearly",
            weights=Weights(
                file="kinetics400_vitb_ssl.pth", licence="not stated by its authors",
                source="the releases of github.com/kahnchana/svt (v1.0)",
            ),
            paper="Self-supervised Video Transformer (Ranasinghe et al., CVPR 2022)",
        ),
        load=lambda _, path: load_svt(path, SVTConfig()),
        patch_size=16,
    ),
)  # fmt: skip
