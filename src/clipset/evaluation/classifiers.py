"""What a fitted row is: a network that says of a video's clips what they show, and can be kept."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor, nn

from clipset.errors import ProbeError
from clipset.evaluation.config import EvaluateConfig, ProbeTraining
from clipset.evaluation.inputs import placed
from clipset.evaluation.networks import SetProbe
from clipset.evaluation.results import ProbeKey
from clipset.evaluation.stacks import AttentiveStack, LinearStack, MakeStack, MLPStack, Weights
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.model.knn import knn_probabilities, knn_regression
from clipset.representation import VectorPart, encode_clips
from clipset.sets.batch import ClipBatch, mean_over_clips

K = 20  # neighbours that vote
NUM_QUERIES = 4  # of an attentive head
KEPT = "kept_"  # before the names of a classifier's own tensors


def rows_of(row: ProbeKey, clips: ClipBatch, encoder: SetEncoder | None) -> Float[Tensor, "M W R"]:
    """What a head sees of each clip."""
    attentive = row.probe == "attentive"
    if row.features == "backbone":
        return placed(clips) if attentive else clips.features
    assert encoder is not None  # rows on clipset's features have one
    parts: tuple[VectorPart, ...] = ("clip", "token" if attentive else "set")
    return encode_clips(encoder, clips, parts)


def vectors_of(row: ProbeKey, clips: ClipBatch, encoder: SetEncoder | None) -> Float[Tensor, "N R"]:
    """What is seen of each video as a whole: its regular clips in order, or their mean."""
    if row.probe == "ordered":
        return clips.features.flatten(1)
    if row.features == "backbone":
        return mean_over_clips(clips.features, clips.valid)
    assert encoder is not None
    return mean_over_clips(encode_clips(encoder, clips), clips.valid)


class Classifier(nn.Module):
    """A few tensors on frozen features, with or without a set encoder before them."""

    def __init__(self, row: ProbeKey, tensors: Weights, encoder: SetEncoder | None) -> None:
        super().__init__()
        self.row, self.encoder = row, encoder if row.features == "scale" else None
        for name, value in tensors.items():
            self.register_buffer(KEPT + name, value)

    def kept(self, name: str) -> Tensor:
        """One of the tensors."""
        return self.get_buffer(KEPT + name)


class HeadClassifier(Classifier):
    """A head that was trained as one of a stack, behind the norm of the training videos."""

    def __init__(
        self, row: ProbeKey, tensors: Weights, encoder: SetEncoder | None, config: EvaluateConfig
    ) -> None:
        super().__init__(row, tensors, encoder)
        self.names = [name for name in tensors if name not in ("mean", "std")]
        sizes = len(tensors["mean"]), len(tensors["bias"])
        self.stack = stack_of(row, config)(1, *sizes, Generator())

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B L C"]:
        rows = (rows_of(self.row, clips, self.encoder) - self.kept("mean")) / self.kept("std")
        self.stack.weights = {name: self.kept(name)[None] for name in self.names}
        return self.stack.answer(rows, None)[0]


class SolvedClassifier(Classifier):
    """A linear layer on the whole video that was solved for."""

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B 1 C"]:
        vectors, mean = vectors_of(self.row, clips, self.encoder), self.kept("mean")
        missing = len(mean) - vectors.shape[1]
        if missing < 0:
            raise ProbeError("a video has more clips than those that were learned from in order")
        known = (F.pad(vectors, (0, missing)) - mean) / self.kept("scale")
        return torch.addmm(self.kept("bias"), known, self.kept("weight"))[:, None]


class KNNClassifier(Classifier):
    """The training videos themselves, which vote."""

    def __init__(
        self, row: ProbeKey, tensors: Weights, encoder: SetEncoder | None, outputs: int, k: int
    ) -> None:
        super().__init__(row, tensors, encoder)
        self.outputs, self.k = outputs, k

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B 1 C"]:
        vectors = vectors_of(self.row, clips, self.encoder)
        queries = (vectors - self.kept("mean")) / self.kept("std")
        bank, wanted = self.kept("bank"), self.kept("wanted")
        if wanted.is_floating_point():
            return knn_regression(bank, wanted, queries, k=self.k)[:, None]
        votes = knn_probabilities(bank, wanted, queries, num_classes=self.outputs, k=self.k)
        return votes.clamp_min(1e-12).log()[:, None]


def stack_of(row: ProbeKey, config: EvaluateConfig) -> MakeStack:
    """How the heads of a row are made."""
    if row.probe == "mlp":
        return partial(MLPStack, hidden=config.mlp_hidden)
    if row.probe == "attentive":
        return partial(AttentiveStack, queries=NUM_QUERIES)
    return LinearStack


def set_probe(encoder: SetEncoder, outputs: int, config: ProbeTraining) -> SetProbe:
    """A transformer that is trained as a whole, with the head that is configured."""
    return SetProbe(encoder, outputs, frozen=False, set_only=config.set_token_only)


def rebuild(
    row: ProbeKey, state: dict[str, Tensor], config: EvaluateConfig, *, outputs: int, dim: int,
    model: ModelConfig,
) -> nn.Module:  # fmt: skip
    """The classifier of a row from what `state_dict` gave."""
    if row.probe in ("transformer", "finetune"):
        network: nn.Module = set_probe(SetEncoder(dim, model), outputs, config.training)
    else:
        encoder = SetEncoder(dim, model) if row.features == "scale" else None
        own = {name.removeprefix(KEPT): each for name, each in state.items() if KEPT in name}
        if row.probe == "knn":
            network = KNNClassifier(row, own, encoder, outputs, K)
        elif row.probe == "ordered":
            network = SolvedClassifier(row, own, encoder)
        else:
            network = HeadClassifier(row, own, encoder, config)
    network.load_state_dict(state)
    return network.eval()
