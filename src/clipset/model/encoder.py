"""The predictor network of the paper: an encoder-only transformer over the clips of one set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clipset.errors import ModelError
from clipset.model.box_embedding import BoxEmbedding
from clipset.model.dropout import Dropout, drop


@dataclass(frozen=True, slots=True)
class SetEncoding:
    """What the encoder says about a set: one token for each clip, and one for the whole."""

    clip_tokens: Float[Tensor, "B V H"]
    set_token: Float[Tensor, "B H"]


class SetEncoder(nn.Module):
    """Clip features and their boxes in, refined clip tokens and a set token out.

    The order in which clips are given does not matter: what tells them apart is the box.
    `boxes` and `box_numbers` say which boxes it was made for.
    """

    def __init__(
        self,
        dim: int,
        width: int,
        layers: int,
        *,
        box_numbers: int,
        heads: int,
        expansion: int,
        dropout: float,
        boxes: Literal["paper", "official"] = "paper",
    ) -> None:
        super().__init__()
        if width % heads:
            raise ModelError(f"the width {width} cannot be shared by {heads} attention heads")
        self.boxes: Literal["paper", "official"] = boxes
        self.box_numbers = box_numbers
        self.register_buffer("feature_mean", torch.zeros(dim))
        self.register_buffer("feature_std", torch.ones(dim))
        self.project = nn.Linear(dim, width)
        self.embed_box = BoxEmbedding(box_numbers, width)
        self.mask_token = nn.Parameter(torch.zeros(width))
        self.set_token = nn.Parameter(torch.zeros(width))
        self.blocks = nn.ModuleList(Block(width, heads, expansion, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.apply(_initialise)
        self.embed_box.spread_out()
        nn.init.trunc_normal_(self.mask_token, std=0.02)
        nn.init.trunc_normal_(self.set_token, std=0.02)

    def standardise_by(self, mean: Float[Tensor, " D"], std: Float[Tensor, " D"]) -> None:
        """Fix how features are centred and scaled before anything else is done to them."""
        self.get_buffer("feature_mean").copy_(mean)
        self.get_buffer("feature_std").copy_(std)

    def standardise(self, features: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """The features as the network sees them."""
        return (features - self.get_buffer("feature_mean")) / self.get_buffer("feature_std")

    def forward(
        self,
        features: Float[Tensor, "B V D"],
        boxes: Float[Tensor, "B V X"],
        masked: Bool[Tensor, "B V"] | None = None,
        valid: Bool[Tensor, "B V"] | None = None,
    ) -> SetEncoding:
        """Encode sets of clips; the features of masked clips are replaced and never looked at.

        Clips that are not valid are filler, which no token sees.
        """
        seen = self.standardise(features)
        tokens = self.embed(seen, boxes, masked, valid)  # (B, 1 + V, H)
        for block in self.blocks:
            tokens = block(tokens, valid)
        tokens = self.norm(tokens)
        return SetEncoding(clip_tokens=tokens[:, 1:], set_token=tokens[:, 0])

    def encode_some(
        self,
        seen: Float[Tensor, "B V D"],
        boxes: Float[Tensor, "B V X"],
        masked: Bool[Tensor, "B V"],
        wanted: Bool[Tensor, "B V"],
        valid: Bool[Tensor, "B V"] | None = None,
    ) -> tuple[Float[Tensor, "M H"], Float[Tensor, "B H"]]:
        """The tokens of wanted clips, in their order, and the set tokens, of standardised features.

        The same numbers as `forward` gives, but the last layer leaves out what nobody asks for.
        """
        tokens = self.embed(seen, boxes, masked, valid)  # (B, 1 + V, H)
        *first, last = self.blocks
        for block in first:
            tokens = block(tokens, valid)
        count, length = wanted.shape[0], wanted.shape[1] + 1
        whole = torch.arange(count, device=seen.device) * length  # (B,)
        rows = F.pad(wanted, (1, 0)).flatten().nonzero().squeeze(1)  # (M,)
        found = self.norm(last(tokens, valid, torch.cat([whole, rows])))  # (B + M, H)
        return found[count:], found[:count]

    def embed(
        self,
        seen: Float[Tensor, "B V D"],
        boxes: Float[Tensor, "B V X"],
        masked: Bool[Tensor, "B V"] | None,
        valid: Bool[Tensor, "B V"] | None,
    ) -> Float[Tensor, "B L H"]:
        """What the first layer is given: the set token, then a token for each clip."""
        if boxes.shape[-1] != self.box_numbers:
            raise ModelError(
                f"this model takes boxes of {self.box_numbers} numbers ({self.boxes}), "
                f"got {boxes.shape[-1]}; read the clips with its boxes and box_numbers"
            )
        clips = self.project(seen)  # (B, V, H)
        if masked is not None:
            clips = torch.where(masked[..., None], self.mask_token, clips)
        clips = clips + self.embed_box(boxes)
        if valid is not None:
            clips = torch.where(valid[..., None], clips, torch.zeros((), device=clips.device))
        whole = self.set_token.expand(len(clips), 1, -1)
        return torch.cat([whole, clips], dim=1)


class Block(nn.Module):
    """Pre-norm attention over the set, then a two-layer MLP, each added to what came in."""

    def __init__(self, width: int, heads: int, expansion: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, expansion * width),
            nn.GELU(),
            Dropout(dropout),
            nn.Linear(expansion * width, width),
            Dropout(dropout),
        )

    def forward(
        self,
        tokens: Float[Tensor, "B L H"],
        valid: Bool[Tensor, "B V"] | None = None,
        rows: Int[Tensor, " M"] | None = None,
    ) -> Float[Tensor, "B L H"] | Float[Tensor, "M H"]:
        """All tokens, or some rows of them counted through the batch."""
        seen = self.attend(self.norm1(tokens), valid)
        if rows is not None:
            tokens, seen = tokens.flatten(0, 1)[rows], seen.flatten(0, 1)[rows]
        tokens = tokens + drop(self.out(seen), self.dropout, self.training)
        return tokens + self.mlp(self.norm2(tokens))  # type: ignore[no-any-return]

    def attend(
        self, tokens: Float[Tensor, "B L H"], valid: Bool[Tensor, "B V"] | None
    ) -> Float[Tensor, "B L H"]:
        """Every token looks at every token of its set that is not filler."""
        batch, length, width = tokens.shape
        qkv = self.qkv(tokens).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, L, H / heads)
        mask = None if valid is None else F.pad(valid, (1, 0), value=True)[:, None, None]
        if self.training and self.dropout:
            seen = attend_dropping(query, key, value, mask, self.dropout)
        else:
            seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return seen.transpose(1, 2).reshape(batch, length, width)


def attend_dropping(
    query: Float[Tensor, "B G L E"],
    key: Float[Tensor, "B G L E"],
    value: Float[Tensor, "B G L E"],
    mask: Bool[Tensor, "B 1 1 L"] | None,
    chance: float,
) -> Float[Tensor, "B G L E"]:
    """Attention that drops some of its weights."""
    weights = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)  # (B, G, L, L)
    if mask is not None:
        weights = weights.masked_fill(~mask, float("-inf"))
    return drop(weights.softmax(dim=-1), chance, True) @ value


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
