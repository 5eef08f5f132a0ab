"""SVT: a video transformer with divided space-time attention, self-supervised on Kinetics-400."""

from __future__ import annotations

from pathlib import Path

from clipset.backbones.checkpoints import CheckpointLayout, network_from_state, read_state
from clipset.backbones.registry import KINETICS, BackboneSpec, Weights, downloaded_entry
from clipset.networks.svt import SVT, SVTConfig

# The released file is the teacher, flat; a training checkpoint has it under "teacher".
LAYOUT = CheckpointLayout(
    levels=("teacher",), prefixes=("backbone.", ""), ignored_keys=(r"head\..*",)
)


def load_svt(path: Path, config: SVTConfig) -> SVT:
    """The teacher of an SVT checkpoint, released or of a training run."""
    return network_from_state(lambda: SVT(config), read_state(path, LAYOUT), LAYOUT, path)


ENTRIES = (
    downloaded_entry(
        BackboneSpec(  # 16 frames at stride 4 as in the SCALE paper (SVT: 8 at stride 32)
            name="svt_vitb16", dim=768, frames=16, stride=4, size=224,
            mean=KINETICS.mean, std=KINETICS.std,
            pooling="class token after the last norm; teacher; positions resized trilinearly",
            weights=Weights(
                file="kinetics400_vitb_ssl.pth", licence="not stated by its authors",
                source="the releases of github.com/kahnchana/svt (v1.0)",
            ),
            paper="Self-supervised Video Transformer (Ranasinghe et al., CVPR 2022)",
        ),
        lambda _, path: load_svt(path, SVTConfig()),
        patch_size=16,
    ),
)  # fmt: skip
