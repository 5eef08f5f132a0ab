"""VideoMAE: plain video transformers, pre-trained by masking or fine-tuned to recognise actions.

Reads the authors' checkpoints and the same weights as Hugging Face stores them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clipset.backbones.checkpoints import Layout, State, load_network, read_state
from clipset.backbones.layers import Parted, bin_means, outputs_of
from clipset.backbones.registry import BackboneEntry, BackboneSpec, InWeightsFolder, Weights
from clipset.backbones.transformer import (
    Attention,
    Block,
    TubePatches,
    check_grid,
    resize_trilinear,
    sinusoid_table,
)
from clipset.errors import BackboneError

LAYOUT = Layout(
    nests=("model", "module"),
    keeps=("encoder.", ""),
    drops=(r"decoder\..*", r"encoder_to_decoder\.weight", r"mask_token", r"head\.(weight|bias)"),
)

# What Hugging Face calls a part, and its official name.
HUGGING_FACE = (
    (r"embeddings\.patch_embeddings\.projection\.", r"patch_embed.proj."),
    (r"encoder\.layer\.(\d+)\.layernorm_before\.", r"blocks.\1.norm1."),
    (r"encoder\.layer\.(\d+)\.layernorm_after\.", r"blocks.\1.norm2."),
    (r"encoder\.layer\.(\d+)\.attention\.attention\.(q|v)_bias", r"blocks.\1.attn.\2_bias"),
    (r"encoder\.layer\.(\d+)\.attention\.attention\.(q)uery\.bias", r"blocks.\1.attn.\2_bias"),
    (r"encoder\.layer\.(\d+)\.attention\.attention\.(v)alue\.bias", r"blocks.\1.attn.\2_bias"),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"blocks.\1.attn.proj."),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense\.", r"blocks.\1.mlp.fc1."),
    (r"encoder\.layer\.(\d+)\.output\.dense\.", r"blocks.\1.mlp.fc2."),
    (r"layernorm\.", r"norm."),
    (r"classifier\.", r"head."),
)
SPLIT = re.compile(r"encoder\.layer\.(\d+)\.attention\.attention\.(query|key|value)\.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoMAEConfig:
    """The shape of the network; `frames` and `size` are those of its table of positions.

    `norm` says where the last norm stands: on the "tokens" before their mean (pre-trained), or on
    the "mean" of the tokens (fine-tuned). `classes` is the size of the head that is left out.
    """

    width: int = 768
    depth: int = 12
    heads: int = 12
    hidden: int = 3072
    patch: int = 16
    tubelet: int = 2
    frames: int = 16
    size: int = 224
    eps: float = 1e-6
    norm: Literal["tokens", "mean"] = "tokens"
    classes: int | None = None


BASE = VideoMAEConfig()
LARGE = VideoMAEConfig(width=1024, depth=24, heads=16, hidden=4096)
BASE_K400 = replace(BASE, norm="mean", classes=400)
BASE_SSV2 = replace(BASE, norm="mean", classes=174)


class QueryValueBiasAttention(Attention):
    """Attention whose queries and values have a bias and whose keys have none."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(width))
        self.v_bias = nn.Parameter(torch.zeros(width))

    def fused(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B N E"]:
        """Queries, keys and values side by side."""
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        return F.linear(tokens, self.qkv.weight, bias)


class VideoMAE(Parted):
    """Normalised clips to the mean of all tokens, normed before or after."""

    table: Tensor

    def __init__(self, config: VideoMAEConfig) -> None:
        super().__init__()
        self.grid = (config.frames // config.tubelet,) + (config.size // config.patch,) * 2
        self.tubelet = config.tubelet
        width = config.width
        self.patch_embed = TubePatches(width, config.tubelet, config.patch)
        self.blocks = nn.ModuleList(
            Block(width, QueryValueBiasAttention(width, config.heads), config.hidden, config.eps)
            for _ in range(config.depth)
        )
        if config.norm == "tokens":
            self.norm: nn.Module = nn.LayerNorm(width, eps=config.eps)
            self.fc_norm: nn.Module = nn.Identity()
        else:
            self.norm = nn.Identity()
            self.fc_norm = nn.LayerNorm(width, eps=config.eps)
        count = self.grid[0] * self.grid[1] * self.grid[2]
        self.register_buffer("table", sinusoid_table(count, width), persistent=False)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D"]:
        return self.fc_norm(self.tokens(clips).mean(dim=1))  # type: ignore[no-any-return]

    @property
    def depth(self) -> int:
        """The blocks."""
        return len(self.blocks)

    def steps(self, frames: int) -> int:
        """A token is a few frames deep."""
        return frames // self.tubelet

    def parts(
        self, clips: Float[Tensor, "B T 3 H W"], layers: tuple[int, ...], bins: int
    ) -> Float[Tensor, "B L N D"]:
        """The mean of each layer's tokens in each time bin."""
        steps = self.steps(int(clips.shape[1]))
        if not layers:
            means = bin_means(self.tokens(clips).unflatten(1, (steps, -1)), bins)
            return self.fc_norm(means)[:, None]  # type: ignore[no-any-return]
        found = outputs_of(self.blocks, layers, lambda: self.tokens(clips))
        return torch.stack([bin_means(e.unflatten(1, (steps, -1)), bins) for e in found], dim=1)

    def tokens(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B N D"]:
        """All tokens after the last block (normed if the network was pre-trained only)."""
        maps = self.patch_embed(clips)  # (B, D, t, h, w)
        grid = (int(maps.shape[2]), int(maps.shape[3]), int(maps.shape[4]))
        tokens = maps.flatten(2).transpose(1, 2) + self.positions(grid).flatten(0, 2)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)  # type: ignore[no-any-return]

    def positions(self, grid: tuple[int, int, int]) -> Float[Tensor, "t h w D"]:
        """The fixed table of the native grid, resized to `grid`; not computed anew for it."""
        return resize_trilinear(self.table.unflatten(0, self.grid), grid)


def load_videomae(path: Path, config: VideoMAEConfig) -> VideoMAE:
    """The encoder of a VideoMAE checkpoint, pre-trained or fine-tuned, official or Hugging Face."""
    state = read_state(path, LAYOUT)
    if any("embeddings.patch_embeddings." in key for key in state):
        state = from_hugging_face(state)
    _check_classes(state, config, path)
    return load_network(lambda: VideoMAE(config), state, LAYOUT, path)


def from_hugging_face(state: State) -> State:
    """The same tensors under their official names; unknown keys stay as they are."""
    official: State = {}
    split: dict[str, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        key = key.removeprefix("videomae.")
        if part := SPLIT.fullmatch(key):
            split.setdefault(part[1], {})[part[2]] = tensor
        else:
            official[_official_name(key)] = tensor
    for block, parts in split.items():
        fused = [parts[name] for name in ("query", "key", "value") if name in parts]
        official[f"blocks.{block}.attn.qkv.weight"] = torch.cat(fused)
    return official


def _official_name(key: str) -> str:
    for theirs, ours in HUGGING_FACE:
        if found := re.match(theirs, key):
            return found.expand(ours) + key[found.end() :]
    return key


def _check_classes(state: State, config: VideoMAEConfig, path: Path) -> None:
    """Tell apart files that differ in nothing but what they were fine-tuned to recognise."""
    head = state.get("head.weight")
    if head is not None and config.classes is not None and head.shape[0] != config.classes:
        raise BackboneError(
            f"{path} was fine-tuned on {head.shape[0]} classes, expected {config.classes}: "
            "400 is Kinetics-400 (videomae_b_k400), 174 is SSv2 (videomae_b_ssv2)"
        )


ZOO = "MODEL_ZOO.md of github.com/MCG-NJU/VideoMAE"


def _entry(name: str, config: VideoMAEConfig, stride: int, row: str, hub: str) -> BackboneEntry:
    """Fed as in the paper: mean 0.45, deviation 0.225 (the authors: ImageNet's)."""
    norm_first = "last norm, then mean of all tokens"
    spec = BackboneSpec(
        name=name,
        dim=config.width,
        frames=16,
        stride=stride,
        size=224,
        mean=(114.75, 114.75, 114.75),
        std=(57.375, 57.375, 57.375),
        pooling=norm_first if config.norm == "tokens" else "mean of all tokens, then fc_norm",
        weights=Weights(
            file=f"{name}.pth",
            licence="CC-BY-NC-4.0",
            source=f"{ZOO} ({row}; keep as {name}.pth) or model.safetensors of "
            f"huggingface.co/MCG-NJU/{hub} (keep as {name}.safetensors)",
        ),
        paper="VideoMAE (Tong et al., NeurIPS 2022)",
    )

    def make(spec: BackboneSpec, path: Path) -> VideoMAE:
        check_grid(spec.name, spec.frames, spec.size, tubelet=config.tubelet, patch=config.patch)
        return load_videomae(path, config)

    return BackboneEntry(spec=spec, find_weights=InWeightsFolder(spec.weights.file), make=make)


ENTRIES = (
    _entry("videomae_b", BASE, 4, "K400, ViT-B, 1600, pre-train", "videomae-base"),
    _entry("videomae_l", LARGE, 4, "K400, ViT-L, 1600, pre-train", "videomae-large"),
    _entry(
        "videomae_b_k400",
        BASE_K400,
        4,
        "K400, ViT-B, 1600, fine-tune",
        "videomae-base-finetuned-kinetics",
    ),
    _entry(
        "videomae_b_ssv2",
        BASE_SSV2,
        2,
        "SSv2, ViT-B, 2400, fine-tune",
        "videomae-base-finetuned-ssv2",
    ),
)
