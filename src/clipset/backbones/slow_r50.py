"""Slow-R50: the slow pathway of SlowFast, trained by ρBYOL on Kinetics-400."""

from __future__ import annotations

from pathlib import Path

from clipset.backbones.checkpoints import CheckpointLayout, load_checkpoint
from clipset.backbones.registry import KINETICS, BackboneEntry, BackboneSpec, Weights
from clipset.networks.slow_r50 import SlowR50

LAYOUT = CheckpointLayout(  # the momentum copy, which the SCALE paper uses
    levels=("model_state",),
    prefixes=("backbone_hist.",),
    ignored_keys=(
        *(r"ptr", r"queue_x", r"iter", r"knn_mem\.memory"),
        *(r"backbone\..*", r"backbone_hist\.(head|ssl_\d+)\..*"),
    ),
)


def load_slow_r50(path: Path, width: int = 64) -> SlowR50:
    """The momentum copy of the network in a PySlowFast contrastive checkpoint."""
    return load_checkpoint(lambda: SlowR50(width), LAYOUT, path)


ENTRIES = (
    BackboneEntry(
        spec=BackboneSpec(
            name="rbyol_slow_r50", dim=2048, frames=16, stride=4, size=224,
            mean=KINETICS.mean, std=KINETICS.std,
            pooling="mean over time and space of the last stage; momentum copy",
            weights=Weights(
                file="BYOL_SlowR50_16x4_T4_epoch_00200.pyth",
                licence="Apache-2.0 (repository facebookresearch/SlowFast)",
                source="projects/contrastive_ssl in github.com/facebookresearch/SlowFast",
            ),
            paper="A Large-Scale Study on Unsupervised Spatiotemporal Representation Learning "
            "(Feichtenhofer et al., CVPR 2021)",
        ),
        load=lambda _, path: load_slow_r50(path),
    ),
)  # fmt: skip
