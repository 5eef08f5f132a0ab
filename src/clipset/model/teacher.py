"""Set losses without negatives: clusters (DINO) and regression (BYOL), with a slow teacher."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clipset.model.encoder import SetEncoder
from clipset.model.losses import Gather, count_before

CENTRE_MOMENTUM = 0.9


class Teacher(nn.Module):
    """A copy of the student that follows it slowly and gets no gradients."""

    def __init__(self, encoder: SetEncoder, project_set: nn.Module) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder)
        self.project_set = copy.deepcopy(project_set)
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> Teacher:  # noqa: ARG002
        """A teacher drops nothing, whatever the student does."""
        super().train(False)
        return self

    @torch.no_grad()
    def follow(self, encoder: SetEncoder, project_set: nn.Module, momentum: float) -> None:
        """Take a step towards the student."""
        for mine, theirs in ((self.encoder, encoder), (self.project_set, project_set)):
            for slow, fast in zip(mine.parameters(), theirs.parameters(), strict=True):
                slow.lerp_(fast, 1 - momentum)
            for fixed, given in zip(mine.buffers(), theirs.buffers(), strict=True):
                fixed.copy_(given)


class Clusters(nn.Module):
    """Prototypes to which sets are assigned; the teacher's assignments are centred and sharp."""

    centre: Tensor

    def __init__(self, projected: int, prototypes: int) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(prototypes, projected))
        self.register_buffer("centre", torch.zeros(prototypes))

    def forward(self, projected: Float[Tensor, "*B P"]) -> Float[Tensor, "*B K"]:
        """Cosines between sets and prototypes."""
        return F.linear(F.normalize(projected, dim=-1), F.normalize(self.prototypes, dim=-1))

    def loss(
        self,
        student: Float[Tensor, "2 B P"],
        teacher: Float[Tensor, "2 B P"],
        *,
        student_temperature: float,
        teacher_temperature: float,
        learning: bool,
        gather: Gather,
    ) -> Float[Tensor, ""]:
        """Each set is to be assigned as the teacher assigns the video's other set."""
        with torch.no_grad():
            cosines = self(teacher)  # (2, B, K)
            wanted = ((cosines - self.centre) / teacher_temperature).softmax(dim=-1).flip(0)
            if learning:
                seen = gather(cosines.transpose(0, 1).contiguous()).mean(dim=(0, 1))
                self.centre.lerp_(seen, 1 - CENTRE_MOMENTUM)
        given = (self(student) / student_temperature).log_softmax(dim=-1)
        _, videos = count_before(student[0], gather)
        loss: Tensor = -(wanted * given).sum() * (gather.world_size / videos)
        return loss


class Centred(nn.Module):
    """Regression onto what the teacher makes of a set, less what it makes of all.

    A model that gives every set the same vector has nothing to regress onto: without the centre,
    and without batch normalisation in the heads, that is where regression ends.
    """

    centre: Tensor

    def __init__(self, projected: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(projected))

    def loss(
        self,
        predicted: Float[Tensor, "2 B P"],
        teacher: Float[Tensor, "2 B P"],
        *,
        learning: bool,
        gather: Gather,
    ) -> Float[Tensor, ""]:
        """Each set predicts, up to length, what the teacher makes of the video's other set."""
        seen = F.normalize(teacher, dim=-1)
        with torch.no_grad():
            wanted = (seen - self.centre).flip(0)
            if learning:
                mean = gather(seen.transpose(0, 1).contiguous()).mean(dim=(0, 1))
                self.centre.lerp_(mean, 1 - CENTRE_MOMENTUM)
        _, videos = count_before(predicted[0], gather)
        cosine = F.cosine_similarity(predicted, wanted, dim=-1)  # (2, B)
        return (2 - 2 * cosine).sum() * (gather.world_size / videos)
