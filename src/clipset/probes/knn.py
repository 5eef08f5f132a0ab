"""k-NN on the vectors of videos: nothing is trained, so nothing is searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clipset.model.encoder import SetEncoder
from clipset.model.knn import knn_probabilities, knn_regression
from clipset.probes.base import Probe, Selection, TensorClassifier, Tensors, own_tensors
from clipset.probes.config import EvaluateConfig, KNNVectors
from clipset.probes.inputs import CHUNK_SIZE, VideoInputs, set_token_weight
from clipset.sets.batch import ClipBatch

K = 20  # neighbours that vote, as in the paper
TEMPERATURE = 0.07  # of the votes, as published
COURSE_TEMPERATURE = TEMPERATURE / 2  # the cosine of time courses is the mean of two cosines


@dataclass(frozen=True, slots=True, kw_only=True)
class KNNSettings:
    """The number of neighbours, and the vectors that are compared."""

    k: int = K
    vectors: KNNVectors | Literal["time_course"] = "balanced"


class KNNClassifier(TensorClassifier):
    """The vectors of the training videos (`bank`) and their labels, which vote."""

    def __init__(self, tensors: Tensors, inputs: VideoInputs, num_outputs: int) -> None:
        super().__init__(tensors, inputs)
        self.num_outputs = num_outputs
        self.temperature = COURSE_TEMPERATURE if inputs.has_course else TEMPERATURE

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B 1 C"]:
        bank, labels = self.get_buffer("bank"), self.get_buffer("labels")
        queries, temperature = self.inputs(clips) - self.get_buffer("mean"), self.temperature
        if labels.is_floating_point():
            return knn_regression(bank, labels, queries, k=K, temperature=temperature)[:, None]
        class_votes = knn_probabilities(
            bank, labels, queries, num_classes=self.num_outputs, k=K, temperature=temperature
        )
        return class_votes.clamp_min(1e-12).log()[:, None]


class KNNProbe(Probe):
    """k nearest neighbours by cosine similarity."""

    kind = "knn"
    is_seeded = False

    def search_space(self) -> list[KNNSettings]:
        return [KNNSettings(vectors=self.setup.config.knn_vectors)]

    def search(self) -> Selection:
        return Selection(settings=self.search_space()[0])

    def fit(
        self, selection: Selection, video_index: Int[Tensor, " B"], seed: int  # noqa: ARG002
    ) -> KNNClassifier:  # fmt: skip
        train = self.setup.task.train.select(video_index)
        settings: KNNSettings = selection.settings
        video_inputs = VideoInputs(self.encoder, has_course=self.has_course)
        if settings.vectors == "balanced":
            token_weight = set_token_weight(self.setup.model)
            train_vectors = video_inputs.balanced_vectors(train.regular, token_weight)
        else:
            train_vectors = video_inputs.all_vectors(train.regular)
        vector_mean = torch.zeros(train_vectors.shape[1])
        if settings.vectors == "centred":
            vector_mean = train_vectors.mean(dim=0, dtype=torch.float32)
            for block in train_vectors.split(CHUNK_SIZE):  # at once it would be a copy in float32
                block.sub_(vector_mean)
        tensors = {"bank": train_vectors, "labels": train.labels, "mean": vector_mean}
        return KNNClassifier(tensors, video_inputs, self.setup.task.num_outputs).eval()

    @classmethod
    def rebuild(
        cls, state: Tensors, config: EvaluateConfig, num_outputs: int, encoder: SetEncoder | None  # noqa: ARG003
    ) -> KNNClassifier:  # fmt: skip
        video_inputs = VideoInputs(encoder, has_course=cls.has_course)
        return KNNClassifier(own_tensors(state), video_inputs, num_outputs)


class CourseKNNProbe(KNNProbe):
    """k-NN on time courses: of the backbone's features, or of refined tokens, too."""

    kind = "course_knn"
    has_course = True

    def search_space(self) -> list[KNNSettings]:
        return [KNNSettings(vectors="time_course")]
