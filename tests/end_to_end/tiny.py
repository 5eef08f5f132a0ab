"""A tiny video transformer as a backbone file, and settings to match."""

from pathlib import Path

import torch

from clipset.backbones.registry import KINETICS, BackboneSpec, Weights
from clipset.backbones.trained import BackboneHeader, write_backbone
from clipset.clips.config import Sampling
from clipset.features.config import ExtractConfig
from clipset.model.config import ModelConfig
from clipset.networks.video_transformers import VideoMAE, VideoMAEConfig
from clipset.training.config import PretrainConfig

NETWORK = VideoMAEConfig(
    embed_dim=32, depth=2, num_heads=2, mlp_dim=64, patch_size=8, frames=4, size=32
)  # 32 tokens
SPEC = BackboneSpec(
    name="tiny_vit", dim=32, frames=4, stride=2, size=32, mean=KINETICS.mean, std=KINETICS.std,
    pooling="last norm, then mean of all tokens", paper="none",
    weights=Weights(file="vit.safetensors", licence="none", source="drawn at random"),
)  # fmt: skip
TINY = PretrainConfig(
    model=ModelConfig(
        width=32, num_layers=1, projection_hidden=(32, 32), projection_dim=16, dropout=0.0
    ),
    epochs=2,
    batch_size=5,
    clips_per_set=4,
    precision="float32",  # exact comparisons, also where a processor has bfloat16
)


def make_network() -> VideoMAE:
    """The transformer with random weights, always the same."""
    torch.manual_seed(0)
    return VideoMAE(NETWORK)


def write_vit(folder: Path) -> Path:
    """The transformer as a backbone file."""
    path = folder / "vit.safetensors"
    write_backbone(path, make_network(), BackboneHeader(network=NETWORK, spec=SPEC))
    return path


def cutting(backbone: Path, workers: int = 0) -> ExtractConfig:
    """Clips for two sets of four."""
    sampling = Sampling(num_clips=8, num_times=2, num_crops=1, flip=False)
    return ExtractConfig(
        backbone=str(backbone), sampling=sampling, dtype="float32", engine="torch", workers=workers
    )
