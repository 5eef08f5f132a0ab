"""Video networks whose authors released the weights, to be downloaded by hand.

SVT, ρBYOL, VideoMAE (also as Hugging Face stores it) and V-JEPA 2. The first three are normalised
as in the SCALE paper: mean 0.45, deviation 0.225.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from clipset.backbones.checkpoints import (
    CheckpointLayout,
    State,
    load_checkpoint,
    network_from_state,
    read_state,
)
from clipset.backbones.registry import IMAGENET, KINETICS, BackboneEntry, BackboneSpec, Weights
from clipset.errors import BackboneError
from clipset.networks.convolutional import SlowR50
from clipset.networks.video_transformers import SVT, VJEPA2, VideoMAE, VideoMAEConfig, ViTConfig

# The released file is the teacher, flat; a training checkpoint has it under "teacher".
SVT_LAYOUT = CheckpointLayout(
    levels=("teacher",), prefixes=("backbone.", ""), ignored_keys=(r"head\..*",)
)
SLOW_R50_LAYOUT = CheckpointLayout(  # the momentum copy, which the SCALE paper uses
    levels=("model_state",),
    prefixes=("backbone_hist.",),
    ignored_keys=(
        *(r"ptr", r"queue_x", r"iter", r"knn_mem\.memory"),
        *(r"backbone\..*", r"backbone_hist\.(head|ssl_\d+)\..*"),
    ),
)
VIDEOMAE_LAYOUT = CheckpointLayout(
    levels=("model", "module"),
    prefixes=("encoder.", ""),
    ignored_keys=(
        *(r"decoder\..*", r"encoder_to_decoder\.weight"),
        *(r"mask_token", r"head\.(weight|bias)"),
    ),
)
VJEPA2_LAYOUT = CheckpointLayout(  # the averaged copy, which the authors' frozen evaluations use
    levels=("target_encoder",),
    prefixes=("backbone.", ""),
    ignored_keys=(r"(backbone\.)?pos_embed",),
)
BASE = VideoMAEConfig()
LARGE = VideoMAEConfig(embed_dim=1024, depth=24, num_heads=16, mlp_dim=4096)
TUNED = replace(BASE, norm="mean")
SVT_BASE = ViTConfig(frames=8)

HUGGING_FACE = (  # parts of VideoMAE's keys and their official names, replaced in this order
    ("videomae.", ""),
    ("embeddings.patch_embeddings.projection.", "patch_embed.proj."),
    ("encoder.layer.", "blocks."),
    ("layernorm_before.", "norm1."),
    ("layernorm_after.", "norm2."),
    ("layernorm.", "norm."),
    ("attention.output.dense.", "attn.proj."),
    ("intermediate.dense.", "mlp.fc1."),
    ("output.dense.", "mlp.fc2."),
    ("attention.attention.", "attn."),
    ("attn.query.bias", "attn.q_bias"),
    ("attn.value.bias", "attn.v_bias"),
    ("classifier.", "head."),
)


def load_videomae(path: Path, config: VideoMAEConfig, classes: int | None = None) -> VideoMAE:
    """The encoder of a VideoMAE checkpoint, pre-trained or fine-tuned, official or Hugging Face.

    Files of other `classes` are refused: fine-tuned ones differ in nothing else.
    """
    state = read_state(path, VIDEOMAE_LAYOUT)
    if any("embeddings.patch_embeddings." in key for key in state):
        state = from_hugging_face(state)
    head_weight = state.get("head.weight")
    if head_weight is not None and classes is not None and head_weight.shape[0] != classes:
        raise BackboneError(
            f"{path} was fine-tuned on {head_weight.shape[0]} classes, expected {classes}: "
            "400 is Kinetics-400 (videomae_b_k400), 174 is SSv2 (videomae_b_ssv2)"
        )
    return network_from_state(lambda: VideoMAE(config), state, VIDEOMAE_LAYOUT, path)


def from_hugging_face(state: State) -> State:
    """The same tensors under their official names; queries, keys and values are joined."""
    official_state: State = {}
    split_qkv: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in state.items():
        for name, official_name in HUGGING_FACE:
            key = key.replace(name, official_name)
        if match := re.fullmatch(r"(blocks\.\d+\.attn\.)(query|key|value)\.weight", key):
            split_qkv[match[1]][match[2]] = tensor
        else:
            official_state[key] = tensor
    for attention, tensors in split_qkv.items():
        qkv = [tensors[name] for name in ("query", "key", "value") if name in tensors]
        official_state[f"{attention}qkv.weight"] = torch.cat(qkv)
    return official_state


def _videomae_entry(
    name: str,
    config: VideoMAEConfig,
    *,
    zoo_row: str,
    hub_name: str,
    stride: int = 4,
    classes: int | None = None,
) -> BackboneEntry:
    is_tuned = config.norm == "mean"
    spec = BackboneSpec(
        name=name, dim=config.embed_dim, frames=16, stride=stride, size=224,
        mean=KINETICS.mean, std=KINETICS.std,
        pooling="mean of all tokens, then fc_norm" if is_tuned
        else "last norm, then mean of all tokens",
        weights=Weights(
            file=f"{name}.pth", licence="CC-BY-NC-4.0",
            source=f"MODEL_ZOO.md of github.com/MCG-NJU/VideoMAE ({zoo_row}), or "
            f"{name}.safetensors from huggingface.co/MCG-NJU/{hub_name} (there: model.safetensors)",
        ),
        paper="VideoMAE (Tong et al., NeurIPS 2022)",
    )  # fmt: skip
    return BackboneEntry(
        spec=spec,
        load=lambda _, path: load_videomae(path, config, classes),
        tubelet_size=config.tubelet_size,
        patch_size=config.patch_size,
    )


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
        load=lambda _, path: load_checkpoint(lambda: SVT(SVT_BASE), SVT_LAYOUT, path),
        patch_size=16,
    ),
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
        load=lambda _, path: load_checkpoint(SlowR50, SLOW_R50_LAYOUT, path),
    ),
    _videomae_entry(
        "videomae_b", BASE, zoo_row="K400, ViT-B, 1600, pre-train", hub_name="videomae-base",
    ),
    _videomae_entry(
        "videomae_l", LARGE, zoo_row="K400, ViT-L, 1600, pre-train", hub_name="videomae-large",
    ),
    _videomae_entry(
        "videomae_b_k400", TUNED, classes=400, zoo_row="K400, ViT-B, 1600, fine-tune",
        hub_name="videomae-base-finetuned-kinetics",
    ),
    _videomae_entry(
        "videomae_b_ssv2", TUNED, classes=174, stride=2, zoo_row="SSv2, ViT-B, 2400, fine-tune",
        hub_name="videomae-base-finetuned-ssv2",
    ),
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
        load=lambda _, path: load_checkpoint(lambda: VJEPA2(LARGE), VJEPA2_LAYOUT, path),
        tubelet_size=2,
        patch_size=16,
    ),
)  # fmt: skip
