"""The predictor network of the paper: an encoder-only transformer over the clips of one set."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from clipset.errors import ModelError


@dataclass(frozen=True, slots=True)
class SetEncoding:
    """What the encoder says about a set: one token for each clip, and one for the whole."""

    clip_tokens: Float[Tensor, "B V H"]
    set_token: Float[Tensor, "B H"]


class SetEncoder(nn.Module):
    """Clip features and their boxes in, refined clip tokens and a set token out.

    The order in which clips are given does not matter: what tells them apart is the box.
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
    ) -> None:
        super().__init__()
        if width % heads:
            raise ModelError(f"the width {width} cannot be shared by {heads} attention heads")
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
    ) -> SetEncoding:
        """Encode sets of clips; the features of masked clips are replaced and never looked at."""
        clips = self.project(self.standardise(features))  # (B, V, H)
        if masked is not None:
            clips = torch.where(masked[..., None], self.mask_token, clips)
        clips = clips + self.embed_box(boxes)
        whole = self.set_token.expand(len(clips), 1, -1)
        tokens = torch.cat([whole, clips], dim=1)  # (B, 1 + V, H)
        for block in self.blocks:
            tokens = block(tokens)
        tokens = self.norm(tokens)
        return SetEncoding(clip_tokens=tokens[:, 1:], set_token=tokens[:, 0])


class BoxEmbedding(nn.Module):
    """The MLP of equation 5: where a clip is, as a vector."""

    def __init__(self, box_numbers: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(box_numbers, 2 * width)
        self.last = nn.Linear(2 * width, width)

    def forward(self, boxes: Float[Tensor, "*B X"]) -> Float[Tensor, "*B H"]:
        return self.last(F.relu(self.first(boxes)))  # type: ignore[no-any-return]

    @torch.no_grad()
    def spread_out(self) -> None:
        """Start out able to tell places apart, about as loud as the clips that they are added to.

        Each hidden unit bends somewhere inside the unit cube, where boxes live. Small weights would
        make all places look alike, and what happens when could hardly be learned from few videos.
        """
        nn.init.normal_(self.first.weight, std=2.0)
        bends = torch.rand_like(self.first.weight)  # (2H, X): a point of the cube for each unit
        self.first.bias.copy_(-(self.first.weight * bends).sum(dim=1))
        places = torch.rand(1024, self.first.in_features)
        self.last.weight.div_(self(places).std(dim=0).mean())


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
            nn.Dropout(dropout),
            nn.Linear(expansion * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, tokens: Float[Tensor, "B L H"]) -> Float[Tensor, "B L H"]:
        tokens = tokens + self.attend(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))  # type: ignore[no-any-return]

    def attend(self, tokens: Float[Tensor, "B L H"]) -> Float[Tensor, "B L H"]:
        """Every token looks at every token of its set."""
        batch, length, width = tokens.shape
        qkv = self.qkv(tokens).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, L, H / heads)
        chance = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=chance)
        mixed = self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return F.dropout(mixed, self.dropout, self.training)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
