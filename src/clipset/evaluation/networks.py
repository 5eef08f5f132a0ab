"""The networks that probes train: clips of a set in, class logits of each clip out."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clipset.model.encoder import SetEncoder
from clipset.representation import concat_parts
from clipset.sets.batch import ClipBatch


class ClipProbe(nn.Module):
    """Looks at each clip alone: a linear layer, or an MLP whose output joins the feature."""

    def __init__(
        self, dim: int, classes: int, *, hidden: int = 0, out: int = 0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(dim, affine=False)
        self.mlp = (
            nn.Sequential(
                nn.Linear(dim, hidden),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(hidden, hidden),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(hidden, out),
            )
            if hidden
            else None
        )
        self.classify = nn.Linear(dim + (out if hidden else 0), classes)

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B V C"]:
        features = self.norm(clips.features.flatten(0, 1)).view_as(clips.features)
        if self.mlp is not None:
            features = torch.cat([features, self.mlp(features)], dim=-1)
        return self.classify(features)  # type: ignore[no-any-return]


class SetProbe(nn.Module):
    """Looks at all clips of a set together: a linear layer on clip feature ⊕ set token.

    With `set_only`, on the set token alone: one answer for the whole set.
    """

    def __init__(
        self, encoder: SetEncoder, classes: int, *, frozen: bool, set_only: bool = False
    ) -> None:
        super().__init__()
        self.encoder = encoder.requires_grad_(not frozen)
        self.frozen, self.set_only = frozen, set_only
        project = encoder.project
        dim = project.out_features + (0 if set_only else project.in_features)
        self.norm = nn.BatchNorm1d(dim, affine=False)
        self.classify = nn.Linear(dim, classes)

    def train(self, mode: bool = True) -> SetProbe:
        """A frozen encoder stays as it is used: without dropout."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B V C"]:
        with torch.set_grad_enabled(not self.frozen and torch.is_grad_enabled()):
            if self.set_only:
                joined = concat_parts(self.encoder, clips, ("set",))[:, :1]  # (B, 1, H)
            else:
                joined = concat_parts(self.encoder, clips)  # (B, V, D + H)
        joined = self.norm(joined.flatten(0, 1)).view_as(joined)
        return self.classify(joined)  # type: ignore[no-any-return]
