"""Vision transformers for video: SVT, VideoMAE and V-JEPA 2, and the blocks that they share.

Modules have the names of the authors' checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from clipset.networks import named_sequential


@dataclass(frozen=True, slots=True, kw_only=True)
class ViTConfig:
    """The shape of a vision transformer; ViT-B/16 by default.

    `frames` and `size` are those of its table of positions, if it has one.
    """

    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_dim: int = 3072
    patch_size: int = 16
    tubelet_size: int = 2
    norm_eps: float = 1e-6
    frames: int = 16
    size: int = 224


class LayeredNetwork(nn.Module):
    """A network whose blocks' outputs can be pooled to features, too; no blocks: only its own."""

    blocks: nn.ModuleList

    def pool_block(self, output: Any) -> Float[Tensor, "N D"]:
        """A feature of each clip or frame from the output of a block, before any last norm.

        By default the mean of all tokens; pooled as the network pools its last output.
        """
        return output.mean(dim=1)  # type: ignore[no-any-return]


class SelectedLayers(nn.Module):
    """The pooled outputs of some blocks of a network, side by side, in one forward pass."""

    def __init__(self, network: LayeredNetwork, layers: Sequence[int]) -> None:
        super().__init__()
        self.network, self.layers = network, tuple(layers)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B E"]:
        block_outputs: dict[nn.Module, Any] = {}
        blocks = [self.network.blocks[layer] for layer in self.layers]

        def record(block: nn.Module, _inputs: Any, output: Any) -> None:
            block_outputs[block] = output

        hooks = [block.register_forward_hook(record) for block in blocks]
        try:
            self.network(clips)
        finally:
            for hook in hooks:
                hook.remove()
        features = [self.network.pool_block(block_outputs[block]) for block in blocks]
        by_clip = [feature.unflatten(0, (len(clips), -1)) for feature in features]  # (B, 1 or T, D)
        return torch.cat([feature.mean(dim=1) for feature in by_clip], dim=1)


def tubelet_embed(config: ViTConfig) -> nn.Sequential:
    """Clips (B, 3, T, H, W) to a map of tokens that are a few frames deep."""
    kernel = (config.tubelet_size, config.patch_size, config.patch_size)
    return named_sequential(proj=nn.Conv3d(3, config.embed_dim, kernel, stride=kernel))


class Attention(nn.Module):
    """Self-attention with one fused projection to queries, keys and values."""

    def __init__(self, embed_dim: int, num_heads: int, qkv_bias: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_bias)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def project_qkv(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B N E"]:
        """Queries, keys and values side by side."""
        return self.qkv(tokens)  # type: ignore[no-any-return]

    def forward(
        self, tokens: Float[Tensor, "B N D"], positions: Int[Tensor, "3 N"] | None = None
    ) -> Float[Tensor, "B N D"]:
        """Attention among all tokens; with positions, queries and keys are rotated by them."""
        heads = self.project_qkv(tokens).unflatten(-1, (3, self.num_heads, -1))
        queries, keys, values = heads.permute(2, 0, 3, 1, 4).unbind()  # (B, A, N, K) each
        if positions is not None:
            queries, keys = rotate(queries, positions), rotate(keys, positions)
        attended = F.scaled_dot_product_attention(queries, keys, values)
        return self.proj(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class QueryValueBiasAttention(Attention):
    """Attention with a bias of queries and values and none of keys."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__(embed_dim, num_heads, qkv_bias=False)
        self.q_bias = nn.Parameter(torch.zeros(embed_dim))
        self.v_bias = nn.Parameter(torch.zeros(embed_dim))

    def project_qkv(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B N E"]:
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        return F.linear(tokens, self.qkv.weight, bias)


def two_layer_mlp(config: ViTConfig) -> nn.Sequential:
    """Two linear layers with an exact GELU in between."""
    return named_sequential(
        fc1=nn.Linear(config.embed_dim, config.mlp_dim),
        gelu=nn.GELU(),
        fc2=nn.Linear(config.mlp_dim, config.embed_dim),
    )


class ViTBlock(nn.Module):
    """Attention, then MLP, each after a layer norm and with a residual."""

    def __init__(self, config: ViTConfig, attention: type[Attention] = Attention) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.embed_dim, eps=config.norm_eps)
        self.attn = attention(config.embed_dim, config.num_heads)
        self.norm2 = nn.LayerNorm(config.embed_dim, eps=config.norm_eps)
        self.mlp = two_layer_mlp(config)

    def forward(
        self, tokens: Float[Tensor, "B N D"], positions: Int[Tensor, "3 N"] | None = None
    ) -> Float[Tensor, "B N D"]:
        tokens = tokens + self.attn(self.norm1(tokens), positions)
        return tokens + self.mlp(self.norm2(tokens))  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoMAEConfig(ViTConfig):
    """The shape of a VideoMAE; its last norm is applied to each token, or to the mean of tokens.

    Pre-trained networks have the norm of "tokens", fine-tuned ones that of the "mean".
    """

    norm: Literal["tokens", "mean"] = "tokens"


class VideoMAE(LayeredNetwork):
    """Normalised clips to the mean of all tokens, normed before or after.

    The encoder: a plain video transformer with a fixed table of positions.
    """

    table: Tensor

    def __init__(self, config: VideoMAEConfig) -> None:
        super().__init__()
        self.config = config
        dim, grid_side = config.embed_dim, config.size // config.patch_size
        self.grid = (config.frames // config.tubelet_size, grid_side, grid_side)
        self.patch_embed = tubelet_embed(config)
        self.blocks = nn.ModuleList(
            ViTBlock(config, QueryValueBiasAttention) for _ in range(config.depth)
        )
        last_norm, identity = nn.LayerNorm(dim, eps=config.norm_eps), nn.Identity()
        on_tokens = config.norm == "tokens"
        self.norm: nn.Module = last_norm if on_tokens else identity
        self.fc_norm: nn.Module = identity if on_tokens else last_norm
        num_tokens = self.grid[0] * grid_side * grid_side
        self.register_buffer("table", sinusoid_table(num_tokens, dim), persistent=False)

    def forward(
        self, clips: Float[Tensor, "B T 3 H W"], visible: Int[Tensor, "B K"] | None = None
    ) -> Float[Tensor, "B D"]:
        return self.fc_norm(self.tokens(clips, visible).mean(dim=1))  # type: ignore[no-any-return]

    def tokens(
        self, clips: Float[Tensor, "B T 3 H W"], visible: Int[Tensor, "B K"] | None = None
    ) -> Float[Tensor, "B N D"]:
        """Tokens after the last block (normed if the network was pre-trained only).

        With the indices of the `visible` tokens, all others are dropped before the first block.
        """
        token_map = self.patch_embed(clips.transpose(1, 2))  # (B, D, t, h, w)
        grid = (int(token_map.shape[2]), int(token_map.shape[3]), int(token_map.shape[4]))
        tokens = token_map.flatten(2).transpose(1, 2) + self.positions(grid).flatten(0, 2)
        if visible is not None:
            tokens = tokens.gather(1, visible[:, :, None].expand(-1, -1, tokens.shape[2]))
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)  # type: ignore[no-any-return]

    def positions(self, grid: tuple[int, int, int]) -> Float[Tensor, "t h w D"]:
        """The fixed table of the native grid, resized to `grid`; not computed anew for it."""
        return resize_trilinear(self.table.unflatten(0, self.grid), grid)


class VJEPA2(LayeredNetwork):
    """Normalised clips to the mean of all tokens after the last norm; takes any grid.

    The encoder: a video transformer with rotary positions on three axes.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.patch_embed = tubelet_embed(config)
        self.blocks = nn.ModuleList(ViTBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.embed_dim, eps=config.norm_eps)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D"]:
        token_map = self.patch_embed(clips.transpose(1, 2))  # (B, D, t, h, w)
        axes = [torch.arange(length, device=token_map.device) for length in token_map.shape[2:]]
        positions = torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)  # (3, N)
        tokens = token_map.flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens, positions)
        return self.norm(tokens).mean(dim=1)  # type: ignore[no-any-return]


class DividedBlock(nn.Module):
    """Attention over time at each position, then over space in each frame, then an MLP."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        dim = config.embed_dim
        self.norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.attn = Attention(dim, config.num_heads)
        self.temporal_norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.temporal_attn = Attention(dim, config.num_heads)
        self.temporal_fc = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mlp = two_layer_mlp(config)

    def forward(
        self, cls: Float[Tensor, "B 1 D"], patches: Float[Tensor, "B T N D"]
    ) -> tuple[Float[Tensor, "B 1 D"], Float[Tensor, "B T N D"]]:
        batch, frames, positions, _ = patches.shape
        tracks = patches.transpose(1, 2).flatten(0, 1)  # (B N, T, D)
        tracks = self.temporal_fc(self.temporal_attn(self.temporal_norm1(tracks)))
        patches = patches + tracks.unflatten(0, (batch, positions)).transpose(1, 2)
        copies = cls[:, None].expand(-1, frames, -1, -1)  # the class token attends in each frame
        tokens = torch.cat([copies, patches], dim=2).flatten(0, 1)  # (B T, 1 + N, D)
        tokens = self.attn(self.norm1(tokens)).unflatten(0, (batch, frames))
        cls, patches = cls + tokens[:, :, :1].mean(dim=1), patches + tokens[:, :, 1:]
        return cls + self.mlp(self.norm2(cls)), patches + self.mlp(self.norm2(patches))


class SVT(LayeredNetwork):
    """Normalised clips to the class token after the last norm.

    A video transformer with divided space-time attention.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        dim, patch, side = config.embed_dim, config.patch_size, config.size // config.patch_size
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + side * side, dim))
        self.time_embed = nn.Parameter(torch.zeros(1, config.frames, dim))
        self.patch_embed = named_sequential(proj=nn.Conv2d(3, dim, patch, stride=patch))
        self.blocks = nn.ModuleList(DividedBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(dim, eps=config.norm_eps)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D"]:
        batch, frames = clips.shape[:2]
        token_map = self.patch_embed(clips.flatten(0, 1))  # (B T, D, h, w)
        grid = (int(frames), int(token_map.shape[2]), int(token_map.shape[3]))
        patches = token_map.flatten(2).transpose(1, 2).unflatten(0, (batch, frames))  # (B, T, N, D)
        patches = patches + self.positions(grid).flatten(1, 2)
        cls = (self.cls_token + self.pos_embed[:, :1]).expand(batch, -1, -1)
        for block in self.blocks:
            cls, patches = block(cls, patches)
        return self.norm(cls)[:, 0]  # type: ignore[no-any-return]

    def pool_block(self, output: Any) -> Float[Tensor, "N D"]:
        """The class token."""
        return output[0][:, 0]  # type: ignore[no-any-return]

    def positions(self, grid: tuple[int, int, int]) -> Float[Tensor, "T h w D"]:
        """The position embedding of each patch on a grid of frames, rows and columns.

        Time and space are added and resized at once, as in the code of the SCALE paper.
        """
        side = self.config.size // self.config.patch_size
        space = self.pos_embed[0, 1:].unflatten(0, (side, side))  # (h, w, D)
        time = self.time_embed[0]  # (T, D)
        return resize_trilinear(space[None] + time[:, None, None], grid)


def rotate(
    vectors: Float[Tensor, "B A N K"], positions: Int[Tensor, "3 N"]
) -> Float[Tensor, "B A N K"]:
    """Rotate a third of the channels by time, a third by row, a third by column; the rest stays."""
    third = 2 * (vectors.shape[-1] // 3 // 2)
    *axes, rest = vectors.split([third, third, third, vectors.shape[-1] - 3 * third], dim=-1)
    rotated = [rotate_axis(axis, index) for axis, index in zip(axes, positions, strict=True)]
    return torch.cat([*rotated, rest], dim=-1)


def rotate_axis(
    vectors: Float[Tensor, "B A N K"], positions: Int[Tensor, " N"]
) -> Float[Tensor, "B A N K"]:
    """Rotate neighbouring channels as pairs.

    The angles are laid out half after half, so that the two channels of a pair rotate by different
    angles: this is how the released weights of V-JEPA 2 were trained.
    """
    half_dim = vectors.shape[-1] // 2
    steps = torch.arange(half_dim, device=vectors.device, dtype=vectors.dtype) / half_dim
    angles = positions[:, None] * 10000**-steps  # (N, K / 2)
    angles = torch.cat([angles, angles], dim=-1)
    pairs = vectors.unflatten(-1, (half_dim, 2))
    swapped = torch.stack([-pairs[..., 1], pairs[..., 0]], dim=-1).flatten(-2)
    return vectors * angles.cos() + swapped * angles.sin()


def resize_trilinear(
    table: Float[Tensor, "t h w D"], grid: tuple[int, int, int]
) -> Float[Tensor, "T H W D"]:
    """A table of positions over time, height and width on another grid (corners not aligned).

    Space first, then time, each only if it changes: the same as all three at once, which OpenVINO
    gets wrong where one of them stays.
    """
    if tuple(table.shape[1:3]) != grid[1:]:
        frames = table.movedim(-1, 1)  # (t, D, h, w)
        frames = F.interpolate(frames, size=grid[1:], mode="bilinear", align_corners=False)
        table = frames.movedim(1, -1)
    if table.shape[0] != grid[0]:
        tracks = table.flatten(1).T[None]  # (1, H W D, t)
        tracks = F.interpolate(tracks, size=grid[0], mode="linear", align_corners=False)
        table = tracks[0].T.unflatten(1, table.shape[1:])
    return table


def sinusoid_table(count: int, embed_dim: int) -> Float[Tensor, "N D"]:
    """Sines on even and cosines on odd channels of the angles p / 10000^(2⌊j/2⌋/D)."""
    positions = torch.arange(count, dtype=torch.float64, device="cpu")[:, None]
    channels = torch.arange(embed_dim, dtype=torch.float64, device="cpu")
    angles = positions / 10000 ** (2 * (channels // 2) / embed_dim)  # (N, D)
    even = channels % 2 == 0
    return torch.where(even, angles.sin(), angles.cos()).float()
