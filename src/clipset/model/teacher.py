"""Set losses without negatives: clustering (DINO) and regression (BYOL), with a slow teacher."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clipset.model.encoder import SetEncoder
from clipset.model.losses import Gather, row_offset

CENTRE_MOMENTUM = 0.9
STUDENT_TEMPERATURE = 0.1  # of cluster assignments
TEACHER_TEMPERATURE = 0.04  # sharper than the student


class Teacher(nn.Module):
    """An exponential moving average of the student, without gradients."""

    def __init__(self, encoder: SetEncoder, project_set: nn.Module) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder)
        self.project_set = copy.deepcopy(project_set)
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> Teacher:  # noqa: ARG002
        """Stay in evaluation mode, without dropout."""
        super().train(False)
        return self

    @torch.no_grad()
    def follow(self, encoder: SetEncoder, project_set: nn.Module, momentum: float) -> None:
        """Move towards the student by 1 - momentum."""
        for teacher, student in ((self.encoder, encoder), (self.project_set, project_set)):
            for own, other in zip(teacher.parameters(), student.parameters(), strict=True):
                own.lerp_(other, 1 - momentum)
            for buffer, source in zip(teacher.buffers(), student.buffers(), strict=True):
                buffer.copy_(source)


class ClusterLoss(nn.Module):
    """Cross-entropy to the teacher's assignments to prototypes, which are centred and sharpened."""

    centre: Tensor

    def __init__(self, projection_dim: int, num_prototypes: int) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(num_prototypes, projection_dim))
        self.register_buffer("centre", torch.zeros(num_prototypes))

    def forward(self, projections: Float[Tensor, "*B P"]) -> Float[Tensor, "*B K"]:
        """Cosines between sets and prototypes."""
        return F.linear(F.normalize(projections, dim=-1), F.normalize(self.prototypes, dim=-1))

    def loss(
        self,
        student: Float[Tensor, "2 B P"],
        teacher: Float[Tensor, "2 B P"],
        *,
        training: bool,
        gather: Gather,
    ) -> Float[Tensor, ""]:
        """The assignment of each set follows the teacher's assignment of the video's other set."""
        with torch.no_grad():
            cosines = self(teacher)  # (2, B, K)
            targets = ((cosines - self.centre) / TEACHER_TEMPERATURE).softmax(dim=-1).flip(0)
            if training:
                mean = gather(cosines.transpose(0, 1).contiguous()).mean(dim=(0, 1))
                self.centre.lerp_(mean, 1 - CENTRE_MOMENTUM)
        log_probabilities = (self(student) / STUDENT_TEMPERATURE).log_softmax(dim=-1)
        _, num_videos = row_offset(student[0], gather)
        loss: Tensor = -(targets * log_probabilities).sum() * (gather.world_size / num_videos)
        return loss


class RegressionLoss(nn.Module):
    """Regression onto the teacher's projections, less their running mean.

    Without the centre, and without batch normalisation in the heads, a model that gives every set
    the same vector would minimise the loss.
    """

    centre: Tensor

    def __init__(self, projection_dim: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(projection_dim))

    def loss(
        self,
        predictions: Float[Tensor, "2 B P"],
        teacher: Float[Tensor, "2 B P"],
        *,
        training: bool,
        gather: Gather,
    ) -> Float[Tensor, ""]:
        """Each set predicts the direction of the teacher's projection of the video's other set."""
        unit = F.normalize(teacher, dim=-1)
        with torch.no_grad():
            targets = (unit - self.centre).flip(0)
            if training:
                mean = gather(unit.transpose(0, 1).contiguous()).mean(dim=(0, 1))
                self.centre.lerp_(mean, 1 - CENTRE_MOMENTUM)
        _, num_videos = row_offset(predictions[0], gather)
        cosine = F.cosine_similarity(predictions, targets, dim=-1)  # (2, B)
        return (2 - 2 * cosine).sum() * (gather.world_size / num_videos)
