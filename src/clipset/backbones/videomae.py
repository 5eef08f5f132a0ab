"""VideoMAE: plain video transformers, pre-trained by masking or fine-tuned to recognise actions.

Reads the authors' checkpoints and the same weights as Hugging Face stores them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from clipset.backbones.checkpoints import CheckpointLayout, State, network_from_state, read_state
from clipset.backbones.registry import KINETICS, BackboneEntry, BackboneSpec, Weights
from clipset.errors import BackboneError
from clipset.networks.video_transformers import VideoMAE, VideoMAEConfig

LAYOUT = CheckpointLayout(
    levels=("model", "module"),
    prefixes=("encoder.", ""),
    ignored_keys=(
        *(r"decoder\..*", r"encoder_to_decoder\.weight"),
        *(r"mask_token", r"head\.(weight|bias)"),
    ),
)
BASE = VideoMAEConfig()
LARGE = VideoMAEConfig(embed_dim=1024, depth=24, num_heads=16, mlp_dim=4096)
TUNED = replace(BASE, norm="mean")

# Names of Hugging Face and the official ones.
HUGGING_FACE = (
    (r"embeddings\.patch_embeddings\.projection\.", r"patch_embed.proj."),
    (r"encoder\.layer\.(\d+)\.layernorm_before\.", r"blocks.\1.norm1."),
    (r"encoder\.layer\.(\d+)\.layernorm_after\.", r"blocks.\1.norm2."),
    (
        r"encoder\.layer\.(\d+)\.attention\.attention\.(q|v)(?:_|uery\.|alue\.)bias",
        r"blocks.\1.attn.\2_bias",
    ),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"blocks.\1.attn.proj."),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense\.", r"blocks.\1.mlp.fc1."),
    (r"encoder\.layer\.(\d+)\.output\.dense\.", r"blocks.\1.mlp.fc2."),
    (r"layernorm\.", r"norm."),
    (r"classifier\.", r"head."),
)
SPLIT_QKV = re.compile(r"encoder\.layer\.(\d+)\.attention\.attention\.(query|key|value)\.weight")


def load_videomae(path: Path, config: VideoMAEConfig, classes: int | None = None) -> VideoMAE:
    """The encoder of a VideoMAE checkpoint, pre-trained or fine-tuned, official or Hugging Face.

    Files of other `classes` are refused: fine-tuned ones differ in nothing else.
    """
    state = read_state(path, LAYOUT)
    if any("embeddings.patch_embeddings." in key for key in state):
        state = from_hugging_face(state)
    head_weight = state.get("head.weight")
    if head_weight is not None and classes is not None and head_weight.shape[0] != classes:
        raise BackboneError(
            f"{path} was fine-tuned on {head_weight.shape[0]} classes, expected {classes}: "
            "400 is Kinetics-400 (videomae_b_k400), 174 is SSv2 (videomae_b_ssv2)"
        )
    return network_from_state(lambda: VideoMAE(config), state, LAYOUT, path)


def from_hugging_face(state: State) -> State:
    """The same tensors under their official names; unknown keys stay as they are."""
    official_state: State = {}
    split_qkv: dict[str, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        key = key.removeprefix("videomae.")
        if match := SPLIT_QKV.fullmatch(key):
            split_qkv.setdefault(match[1], {})[match[2]] = tensor
        else:
            official_state[_official_name(key)] = tensor
    for block, tensors in split_qkv.items():
        qkv = [tensors[name] for name in ("query", "key", "value") if name in tensors]
        official_state[f"blocks.{block}.attn.qkv.weight"] = torch.cat(qkv)
    return official_state


def _official_name(key: str) -> str:
    for pattern, name in HUGGING_FACE:
        if match := re.match(pattern, key):
            return match.expand(name) + key[match.end() :]
    return key


def _videomae_entry(
    name: str,
    config: VideoMAEConfig,
    *,
    zoo_row: str,
    hub_name: str,
    stride: int = 4,
    classes: int | None = None,
) -> BackboneEntry:
    """Normalised as in the SCALE paper: mean 0.45, deviation 0.225 (the authors: ImageNet's)."""
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
)  # fmt: skip
