"""The set transformer of the paper: an encoder-only transformer over the clips of a set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from clipset.errors import ModelError
from clipset.model.config import BoxCoordinates, ModelConfig

RESOLUTION = 1 << 16  # the probability of dropout is rounded to a multiple of 1 / RESOLUTION


@dataclass(frozen=True, slots=True)
class SetEncoding:
    """The encoder's output: a token for each clip and a token for the set."""

    clip_tokens: Float[Tensor, "B V H"]
    set_token: Float[Tensor, "B H"]


class SetEncoder(nn.Module):
    """Clip features and boxes in, clip tokens and a set token out.

    The order of the clips does not matter: boxes tell them apart.
    """

    def __init__(self, dim: int, config: ModelConfig) -> None:
        super().__init__()
        width = config.width
        self.box_coordinates: BoxCoordinates = config.box_coordinates
        self.box_dim = config.box_dim
        self.register_buffer("feature_mean", torch.zeros(dim))
        self.register_buffer("feature_std", torch.ones(dim))
        self.project = nn.Linear(dim, width)
        self.embed_box = BoxEmbedding(config.box_dim, width)
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.set_token = nn.Parameter(torch.zeros(width))
        self.blocks = nn.ModuleList(
            Block(width, width // config.head_dim, config.mlp_ratio, config.dropout)
            for _ in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.apply(_init_linear)
        self.embed_box.init_weights()
        nn.init.trunc_normal_(self.mask_token, std=0.02)
        nn.init.trunc_normal_(self.set_token, std=0.02)

    def set_statistics(self, mean: Float[Tensor, " D"], std: Float[Tensor, " D"]) -> None:
        """Set the mean and standard deviation by which features are standardised."""
        self.get_buffer("feature_mean").copy_(mean)
        self.get_buffer("feature_std").copy_(std)

    def standardise(self, features: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Centre and scale each channel."""
        return (features - self.get_buffer("feature_mean")) / self.get_buffer("feature_std")

    def forward(
        self,
        features: Float[Tensor, "B V D"],
        boxes: Float[Tensor, "B V X"],
        masked: Bool[Tensor, "B V"] | None = None,
        valid: Bool[Tensor, "B V"] | None = None,
    ) -> SetEncoding:
        """Encode sets of clips; a mask token replaces the features of masked clips.

        No token attends to padding, where `valid` is False.
        """
        tokens = self.embed(self.standardise(features), boxes, masked, valid)  # (B, 1 + V, H)
        for block in self.blocks:
            tokens = block(tokens, valid)
        tokens = self.norm(tokens)
        return SetEncoding(clip_tokens=tokens[:, 1:], set_token=tokens[:, 0])

    def encode_subset(
        self,
        standardised: Float[Tensor, "B V D"],
        boxes: Float[Tensor, "B V X"],
        masked: Bool[Tensor, "B V"],
        needed: Bool[Tensor, "B V"],
        valid: Bool[Tensor, "B V"] | None = None,
    ) -> tuple[Float[Tensor, "M H"], Float[Tensor, "B H"]]:
        """The tokens of the needed clips, in their order, and all set tokens.

        The same numbers as `forward`, but the last layer computes only these tokens.
        """
        tokens = self.embed(standardised, boxes, masked, valid)  # (B, 1 + V, H)
        *first_blocks, last_block = self.blocks
        for block in first_blocks:
            tokens = block(tokens, valid)
        num_sets, length = needed.shape[0], needed.shape[1] + 1
        set_rows = torch.arange(num_sets, device=tokens.device) * length  # (B,)
        clip_rows = F.pad(needed, (1, 0)).flatten().nonzero().squeeze(1)  # (M,)
        rows = torch.cat([set_rows, clip_rows])
        tokens = self.norm(last_block(tokens, valid, rows))  # (B + M, H)
        return tokens[num_sets:], tokens[:num_sets]

    def embed(
        self,
        standardised: Float[Tensor, "B V D"],
        boxes: Float[Tensor, "B V X"],
        masked: Bool[Tensor, "B V"] | None,
        valid: Bool[Tensor, "B V"] | None,
    ) -> Float[Tensor, "B L H"]:
        """The input of the first layer: the set token, then a token for each clip."""
        if boxes.shape[-1] != self.box_dim:
            raise ModelError(
                f"this model takes {self.box_coordinates} boxes of {self.box_dim} coordinates, "
                f"got {boxes.shape[-1]}; read the clips with the model's box_coordinates"
            )
        clips = self.project(standardised)  # (B, V, H)
        if masked is not None:
            clips = torch.where(masked[..., None], self.mask_token, clips)
        clips = clips + self.embed_box(boxes)
        if valid is not None:
            clips = torch.where(valid[..., None], clips, torch.zeros((), device=clips.device))
        set_token = self.set_token.expand(len(clips), 1, -1)
        return torch.cat([set_token, clips], dim=1)


class Block(nn.Module):
    """A pre-norm transformer layer: attention over the set, then a two-layer MLP."""

    def __init__(self, width: int, num_heads: int, mlp_ratio: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, mlp_ratio * width),
            nn.GELU(),
            Dropout(dropout),
            nn.Linear(mlp_ratio * width, width),
            Dropout(dropout),
        )

    def forward(
        self,
        tokens: Float[Tensor, "B L H"],
        valid: Bool[Tensor, "B V"] | None = None,
        rows: Int[Tensor, " M"] | None = None,
    ) -> Float[Tensor, "B L H"] | Float[Tensor, "M H"]:
        """All tokens, or some of them by their index in the flattened batch."""
        attended = self.attend(self.norm1(tokens), valid)
        if rows is not None:
            tokens, attended = tokens.flatten(0, 1)[rows], attended.flatten(0, 1)[rows]
        tokens = tokens + dropout(self.out(attended), self.dropout, self.training)
        return tokens + self.mlp(self.norm2(tokens))  # type: ignore[no-any-return]

    def attend(
        self, tokens: Float[Tensor, "B L H"], valid: Bool[Tensor, "B V"] | None
    ) -> Float[Tensor, "B L H"]:
        """Multi-head attention of every token to the valid tokens of its set."""
        batch, length, width = tokens.shape
        qkv = self.qkv(tokens).view(batch, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, L, H / heads)
        mask = None if valid is None else F.pad(valid, (1, 0), value=True)[:, None, None]
        if self.training and self.dropout:
            attended = attention_with_dropout(query, key, value, mask, self.dropout)
        else:
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return attended.transpose(1, 2).reshape(batch, length, width)


def attention_with_dropout(
    query: Float[Tensor, "B G L E"],
    key: Float[Tensor, "B G L E"],
    value: Float[Tensor, "B G L E"],
    mask: Bool[Tensor, "B 1 1 L"] | None,
    p: float,
) -> Float[Tensor, "B G L E"]:
    """Scaled dot-product attention with dropout of its weights."""
    logits = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)  # (B, G, L, L)
    if mask is not None:
        logits = logits.masked_fill(~mask, float("-inf"))
    return dropout(logits.softmax(dim=-1), p, True) @ value


def _init_linear(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class BoxEmbedding(nn.Module):
    """The MLP of equation 5: box coordinates to a vector."""

    def __init__(self, box_dim: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(box_dim, 2 * width)
        self.last = nn.Linear(2 * width, width)

    def forward(self, boxes: Float[Tensor, "*B X"]) -> Float[Tensor, "*B H"]:
        return self.last(F.relu(self.first(boxes)))  # type: ignore[no-any-return]

    @torch.no_grad()
    def init_weights(self) -> None:
        """Start with embeddings that differ between positions, of about the size of clip tokens.

        The kink of each hidden unit lies inside the unit cube of box coordinates. Small weights
        would make all positions look alike, and temporal order could hardly be learned from few
        videos.
        """
        nn.init.normal_(self.first.weight, std=2.0)
        kinks = torch.rand_like(self.first.weight)  # (2H, X): a point of the cube for each unit
        self.first.bias.copy_(-(self.first.weight * kinks).sum(dim=1))
        positions = torch.rand(1024, self.first.in_features)
        self.last.weight.div_(self(positions).std(dim=0).mean())


def dropout(values: Float[Tensor, "*S"], p: float, training: bool) -> Float[Tensor, "*S"]:
    """Zero values with probability `p` and scale the others so that the mean stays."""
    if not training or p == 0.0:
        return values
    if values.device.type != "cpu":
        return F.dropout(values, p, True)
    return _Dropout.apply(values, p)  # type: ignore[no-any-return, no-untyped-call]


def draw_keep_mask(shape: torch.Size, p: float) -> Bool[Tensor, "*S"]:
    """False with probability `p`: 16 random bits for each value, four values to one draw."""
    count = shape.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[:count].view(shape)
    return bits >= round(p * RESOLUTION) - RESOLUTION // 2


class _Dropout(torch.autograd.Function):
    """Saves one byte of each value for the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, p: float) -> Tensor:
        keep_mask = draw_keep_mask(values.shape, p)
        ctx.scale = RESOLUTION / (RESOLUTION - round(p * RESOLUTION))
        ctx.save_for_backward(keep_mask)
        return keep_mask.to(values.dtype).mul_(ctx.scale).mul_(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep_mask,) = ctx.saved_tensors
        return keep_mask.to(gradient.dtype).mul_(ctx.scale).mul_(gradient), None


class Dropout(nn.Module):
    """`dropout` as a layer."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, values: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return dropout(values, self.p, self.training)
