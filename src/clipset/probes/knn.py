"""k-NN on the vectors of videos: nothing is trained, so nothing is searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clipset.model.knn import knn_probabilities, knn_regression
from clipset.probes.base import (
    CHUNK_SIZE,
    ClassifierShape,
    Probe,
    Selection,
    Tensors,
    VideoInputs,
    own_tensors,
    register_tensors,
)
from clipset.probes.config import KNNVectors
from clipset.sets.batch import ClipBatch

K = 20  # neighbours that vote, as in the paper
TEMPERATURE = 0.07  # of the votes, as in the paper
COURSE_TEMPERATURE = TEMPERATURE / 2  # the cosine of time courses is the mean of two cosines


@dataclass(frozen=True, slots=True, kw_only=True)
class KNNSettings:
    """The number of neighbours, and the vectors that are compared."""

    k: int = K
    vectors: KNNVectors | Literal["time_course"] = "mean"


class KNNClassifier(nn.Module):
    """The vectors of the training videos (`bank`) and their labels, which vote."""

    def __init__(self, tensors: Tensors, inputs: VideoInputs, num_outputs: int) -> None:
        super().__init__()
        register_tensors(self, tensors)
        self.inputs, self.num_outputs = inputs, num_outputs

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B 1 C"]:
        bank, labels = self.get_buffer("bank"), self.get_buffer("labels")
        queries = self.inputs(clips) - self.get_buffer("mean")
        temperature = COURSE_TEMPERATURE if self.inputs.has_course else TEMPERATURE
        if labels.is_floating_point():
            return knn_regression(bank, labels, queries, k=K, temperature=temperature)[:, None]
        votes = knn_probabilities(
            bank, labels, queries, num_classes=self.num_outputs, k=K, temperature=temperature
        )
        return votes.clamp_min(1e-12).log()[:, None]


class KNNProbe(Probe):
    """k nearest neighbours by cosine similarity."""

    kind = "knn"
    is_seeded = False
    has_course: ClassVar[bool] = False

    def search_space(self) -> list[KNNSettings]:
        return [KNNSettings(vectors=self.setup.config.knn_vectors)]

    def search(self) -> Selection:
        return Selection(settings=self.search_space()[0])

    def fit(self, selection: Selection, videos: Int[Tensor, " B"], seed: int) -> KNNClassifier:  # noqa: ARG002
        train = self.setup.task.train.select(videos)
        settings: KNNSettings = selection.settings
        inputs = VideoInputs(self.encoder, has_course=self.has_course)
        vectors = inputs.all_vectors(train.regular)
        mean = torch.zeros(vectors.shape[1])
        if settings.vectors == "centred":
            mean = vectors.mean(dim=0, dtype=torch.float32)
            for block in vectors.split(CHUNK_SIZE):  # at once it would be a copy in float32
                block.sub_(mean)
        tensors = {"bank": vectors, "labels": train.labels, "mean": mean}
        return KNNClassifier(tensors, inputs, self.setup.task.num_outputs).eval()

    @classmethod
    def rebuild(cls, state: Tensors, shape: ClassifierShape) -> KNNClassifier:
        inputs = VideoInputs(shape.encoder, has_course=cls.has_course)
        return KNNClassifier(own_tensors(state), inputs, shape.num_outputs)


class CourseKNNProbe(KNNProbe):
    """k-NN on time courses: of the backbone's features, or of refined tokens, too."""

    kind = "course_knn"
    has_course = True

    def search_space(self) -> list[KNNSettings]:
        return [KNNSettings(vectors="time_course")]
