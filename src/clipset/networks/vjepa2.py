"""V-JEPA 2: the encoder, a video transformer with rotary positions on three axes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clipset.networks.layers import LayeredNetwork
from clipset.networks.vit_blocks import TubeletEmbed, ViTBlock, ViTConfig


class VJEPA2(LayeredNetwork):
    """Normalised clips to the mean of all tokens after the last norm; takes any grid."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.patch_embed = TubeletEmbed(config.embed_dim, config.tubelet_size, config.patch_size)
        self.blocks = nn.ModuleList(ViTBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.embed_dim, eps=config.norm_eps)

    def forward(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B D"]:
        return self.tokens(clips).mean(dim=1)

    def tokens(self, clips: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, "B N D"]:
        """All tokens after the last norm."""
        token_map = self.patch_embed(clips)  # (B, D, t, h, w)
        axes = [torch.arange(length, device=token_map.device) for length in token_map.shape[2:]]
        positions = torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)  # (3, N)
        tokens = token_map.flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens, positions)
        return self.norm(tokens)  # type: ignore[no-any-return]
