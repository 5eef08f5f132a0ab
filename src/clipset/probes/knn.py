"""k-NN on the mean vector of each video: nothing is trained, so nothing is searched."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clipset.model.encoder import SetEncoder
from clipset.model.knn import knn_probabilities, knn_regression
from clipset.probes.base import (
    CHUNK_SIZE,
    ClassifierShape,
    ClipInputs,
    Probe,
    Selection,
    Tensors,
    own_tensors,
    register_tensors,
)
from clipset.probes.clips import Clips, equal_chunks
from clipset.probes.config import KNNScaling
from clipset.sets.batch import ClipBatch, feature_statistics, mean_over_clips

K = 20  # neighbours that vote, as in the paper


@dataclass(frozen=True, slots=True, kw_only=True)
class KNNSettings:
    """The number of neighbours, and how vectors are scaled before they are normalised."""

    k: int = K
    scaling: KNNScaling = "raw"


class VideoInputs(nn.Module):
    """One vector of each video: the mean over its clips."""

    def __init__(self, encoder: SetEncoder | None) -> None:
        super().__init__()
        self.clip_inputs = ClipInputs(encoder)

    def forward(self, clips: ClipBatch) -> Float[Tensor, "N R"]:
        return mean_over_clips(self.clip_inputs(clips), clips.valid)

    def all_vectors(self, clips: Clips) -> Float[Tensor, "N R"]:
        """The vectors of many videos, read chunk by chunk."""
        vectors = torch.zeros(len(clips), self(clips.read(slice(0, 1))).shape[1])
        for videos, chunk in equal_chunks(clips, CHUNK_SIZE):
            vectors[videos] = self(chunk)
        return vectors


class KNNClassifier(nn.Module):
    """Scaled training vectors (`bank`) with their labels, which vote."""

    def __init__(self, tensors: Tensors, inputs: VideoInputs, num_outputs: int) -> None:
        super().__init__()
        register_tensors(self, tensors)
        self.inputs, self.num_outputs = inputs, num_outputs

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B 1 C"]:
        bank, labels = self.get_buffer("bank"), self.get_buffer("labels")
        queries = (self.inputs(clips) - self.get_buffer("mean")) / self.get_buffer("std")
        if labels.is_floating_point():
            return knn_regression(bank, labels, queries, k=K)[:, None]
        votes = knn_probabilities(bank, labels, queries, num_classes=self.num_outputs, k=K)
        return votes.clamp_min(1e-12).log()[:, None]


def scaling_statistics(
    vectors: Float[Tensor, "N R"], scaling: KNNScaling
) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
    """What is subtracted from each channel, and what it is divided by."""
    mean, std = feature_statistics(vectors)
    if scaling == "raw":
        return torch.zeros_like(mean), torch.ones_like(std)
    return mean, torch.ones_like(std) if scaling == "centred" else std


class KNNProbe(Probe):
    """k nearest neighbours by cosine similarity; both rows scale their vectors alike."""

    kind = "knn"
    is_seeded = False

    def search_space(self) -> list[KNNSettings]:
        return [KNNSettings(scaling=self.setup.config.knn_scaling)]

    def search(self) -> Selection:
        return Selection(settings=self.search_space()[0])

    def fit(self, selection: Selection, videos: Int[Tensor, " B"], seed: int) -> KNNClassifier:  # noqa: ARG002
        train, inputs = self.setup.task.train.select(videos), VideoInputs(self.encoder)
        vectors = inputs.all_vectors(train.regular)
        settings: KNNSettings = selection.settings
        mean, std = scaling_statistics(vectors, settings.scaling)
        bank = vectors.sub_(mean).div_(std)
        tensors = {"bank": bank, "labels": train.labels, "mean": mean, "std": std}
        return KNNClassifier(tensors, inputs, self.setup.task.num_outputs).eval()

    @classmethod
    def rebuild(cls, state: Tensors, shape: ClassifierShape) -> KNNClassifier:
        return KNNClassifier(own_tensors(state), VideoInputs(shape.encoder), shape.num_outputs)
