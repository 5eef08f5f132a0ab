"""ScaleNetwork: the set encoder with the heads that train it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder, SetEncoding
from clipset.model.losses import (
    Gather,
    LossTerm,
    ScaleLosses,
    SingleRank,
    masked_clip_loss,
    row_offset,
    set_contrastive_loss,
    set_pair_accuracy,
)
from clipset.model.teacher import ClusterLoss, RegressionLoss, Teacher

PART_SIZE = 4096  # clips: larger batches are compared in parts of this size or more


@dataclass(frozen=True, slots=True)
class _Batch:
    """Two sets of each video; first sets before second ones in flattened tensors."""

    features: Float[Tensor, "2 B V D"]  # standardised
    boxes: Float[Tensor, "2 B V X"]
    masked: Bool[Tensor, "2 B V"]
    valid: Bool[Tensor, "2 B V"] | None
    gather: Gather
    first_video: int  # its index among the videos of all ranks
    num_videos: int  # of all ranks
    num_masked: int  # clips to predict of all ranks

    @property
    def num_clips(self) -> int:
        """The clips of all ranks, with padding."""
        return 2 * self.num_videos * self.masked.shape[2]

    @property
    def valid_mask(self) -> Bool[Tensor, "2 B V"]:
        """False for padding."""
        return torch.ones_like(self.masked) if self.valid is None else self.valid

    @property
    def masked_clips(self) -> Bool[Tensor, "2 B V"]:
        """The clips to predict."""
        return self.masked & self.valid_mask


class SetModel(nn.Module, ABC):
    """What pre-training trains: it encodes sets and has the losses of two sets of each video."""

    @abstractmethod
    def encode(self, *inputs: Any, **named_inputs: Any) -> SetEncoding:
        """Clip tokens and set tokens of sets of clips."""

    @abstractmethod
    def losses(self, *inputs: Any, **named_inputs: Any) -> ScaleLosses:
        """The losses of a minibatch: two disjoint sets of each video, some clips masked."""


class ScaleNetwork(SetModel):
    """Encodes sets of clips (`encode`) and computes the pre-training losses (`losses`)."""

    def __init__(self, dim: int, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = SetEncoder(dim, config)
        width, hidden, out = config.width, config.projection_hidden, config.projection_dim
        if config.losses != "set":
            self.predict_clip = mlp(width, hidden, out)
            self.project_clip = mlp(dim, config.target_hidden, out)
        if config.losses != "masked":
            self.project_set = mlp(width, hidden, out)
        if config.losses != "masked" and config.set_loss != "contrast":
            self.teacher = Teacher(self.encoder, self.project_set)
        if config.losses != "masked" and config.set_loss == "clustering":
            self.clusters = ClusterLoss(out, config.prototypes)
        if config.losses != "masked" and config.set_loss == "regression":
            self.predict_set = mlp(out, hidden, out)
            self.centred = RegressionLoss(out)

    def encode(
        self,
        features: Float[Tensor, "B V D"],
        boxes: Float[Tensor, "B V X"],
        valid: Bool[Tensor, "B V"] | None = None,
    ) -> SetEncoding:
        """Clip tokens and set tokens of sets of clips."""
        return self.encoder(features, boxes, None, valid)  # type: ignore[no-any-return]

    def losses(
        self,
        features: Float[Tensor, "2 B V D"],
        boxes: Float[Tensor, "2 B V X"],
        masked: Bool[Tensor, "2 B V"],
        valid: Bool[Tensor, "2 B V"] | None = None,
        gather: Gather | None = None,
    ) -> ScaleLosses:
        """Equation 8 for a minibatch: two disjoint sets of each video, some clips of each masked.

        With `gather`, the minibatch of all ranks; the mean over the ranks is that of the whole. In
        training mode, a teacher follows the student here, one step behind it.
        """
        gather = gather or SingleRank()
        first_video, num_videos = row_offset(masked[0], gather)
        to_predict = masked if valid is None else masked & valid
        _, num_masked = row_offset(to_predict.flatten().nonzero(), gather)
        batch = _Batch(
            self.encoder.standardise(features),
            boxes,
            masked,
            valid,
            gather=gather,
            first_video=first_video,
            num_videos=num_videos,
            num_masked=num_masked,
        )
        predicted = self._predicted_clips(batch)
        tokens, set_token = _encode(self.encoder, batch, masked, predicted)
        zero = batch.features.new_zeros(())
        clip_term = set_term = LossTerm(zero, zero)
        if self.config.losses != "set":
            clip_term = self._masked_clip_loss(batch, tokens, predicted)
        if self.config.losses != "masked":
            set_term = self._set_loss(batch, set_token.unflatten(0, (2, -1)))
        averaged = self.config.average and self.config.losses == "both"
        return ScaleLosses(
            total=(clip_term.loss + set_term.loss) / (2 if averaged else 1),
            masked_clip=clip_term.loss,
            set_contrast=set_term.loss,
            masked_clip_accuracy=clip_term.accuracy,
            set_accuracy=set_term.accuracy,
        )

    def _predicted_clips(self, batch: _Batch) -> Bool[Tensor, "2 B V"]:
        """The clips whose predictions the losses use: masked clips, and negatives if all are."""
        if self.config.losses == "set":
            return torch.zeros_like(batch.masked)
        if self.config.symmetric and self.config.negatives == "all":
            return batch.valid_mask
        return batch.masked_clips

    def _masked_clip_loss(
        self, batch: _Batch, tokens: Float[Tensor, "K H"], predicted: Bool[Tensor, "2 B V"]
    ) -> LossTerm:
        predictions = self.predict_clip(tokens)  # (K, P)
        if self.config.negatives == "masked" and batch.num_clips > PART_SIZE:
            return self._masked_clip_loss_in_parts(batch, predictions)
        if batch.valid is None:
            clip_features = batch.features.flatten(0, 2)  # (N, D)
        else:
            clip_features = batch.features[batch.valid]
        return self._compare(
            batch,
            predictions,
            self.project_clip(clip_features),  # (N, P)
            _index_within(batch.masked_clips, predicted),
            _index_within(batch.masked_clips, batch.valid_mask),
        )

    def _masked_clip_loss_in_parts(
        self, batch: _Batch, predictions: Float[Tensor, "M P"]
    ) -> LossTerm:
        """Masked clips are compared with those of every n-th video.

        So the cost of a video does not grow with the batch.
        """
        masked, num_parts = batch.masked_clips, batch.num_clips // PART_SIZE
        targets = self.project_clip(batch.features[masked])  # (M, P)
        video_index = torch.arange(masked.shape[1], device=masked.device) + batch.first_video
        part_of_clip = (video_index % num_parts)[:, None].expand_as(masked)[masked]  # (M,)
        terms = []
        for part in range(num_parts):
            rows = (part_of_clip == part).nonzero().squeeze(1)
            own_index = torch.arange(len(rows), device=rows.device)
            terms.append(
                self._compare(batch, predictions[rows], targets[rows], own_index, own_index)
            )
        return LossTerm(
            loss=torch.stack([term.loss for term in terms]).sum(),
            accuracy=torch.stack([term.accuracy for term in terms]).sum(),
        )

    def _compare(
        self,
        batch: _Batch,
        predictions: Float[Tensor, "K P"],
        targets: Float[Tensor, "N P"],
        prediction_index: Int[Tensor, " M"],
        target_index: Int[Tensor, " M"],
    ) -> LossTerm:
        return masked_clip_loss(
            predictions,
            targets,
            prediction_index,
            target_index,
            self.config.temperature,
            num_videos=batch.num_videos,
            num_masked=batch.num_masked,
            symmetric=self.config.symmetric,
            average=self.config.average,
            gather=batch.gather,
        )

    def _set_loss(self, batch: _Batch, set_token: Float[Tensor, "2 B H"]) -> LossTerm:
        config, gather = self.config, batch.gather
        projections = self.project_set(set_token)  # (2, B, P)
        if config.set_loss == "contrast":
            first, second = projections
            return set_contrastive_loss(
                first, second, config.temperature, average=config.average, gather=gather
            )
        targets = self._teacher_projections(batch)
        if config.set_loss == "clustering":
            loss = self.clusters.loss(
                projections,
                targets,
                training=self.training,
                gather=gather,
            )
        else:
            predictions = self.predict_set(projections)
            loss = self.centred.loss(predictions, targets, training=self.training, gather=gather)
        accuracy = set_pair_accuracy(projections.detach(), gather)
        return LossTerm(loss / 2 if config.average else loss, accuracy)

    @torch.no_grad()
    def _teacher_projections(self, batch: _Batch) -> Float[Tensor, "2 B P"]:
        """The teacher's projections of the same sets, nothing masked."""
        teacher = self.teacher
        if self.training:
            teacher.follow(self.encoder, self.project_set, self.config.teacher_momentum)
        nothing = torch.zeros_like(batch.masked)
        _, set_token = _encode(teacher.encoder, batch, nothing, nothing)
        return teacher.project_set(set_token).unflatten(0, (2, -1))  # type: ignore[no-any-return]


def _encode(
    encoder: SetEncoder,
    batch: _Batch,
    masked: Bool[Tensor, "2 B V"],
    needed: Bool[Tensor, "2 B V"],
) -> tuple[Float[Tensor, "K H"], Float[Tensor, "S H"]]:
    """The tokens of the needed clips, and all set tokens."""
    return encoder.encode_subset(
        batch.features.flatten(0, 1),
        batch.boxes.flatten(0, 1),
        masked.flatten(0, 1),
        needed.flatten(0, 1),
        None if batch.valid is None else batch.valid.flatten(0, 1),
    )


def _index_within(
    subset: Bool[Tensor, "2 B V"], superset: Bool[Tensor, "2 B V"]
) -> Int[Tensor, " M"]:
    """The index of each clip of a subset among the clips of a superset."""
    return (superset.flatten().cumsum(0) - 1)[subset.flatten()]


def mlp(dim: int, hidden: tuple[int, ...], out: int) -> nn.Sequential:
    """A projection head: linear layers without biases and normalisation, GELU between them."""
    layers: list[nn.Module] = []
    for in_width, out_width in pairwise([dim, *hidden, out]):
        layers += [nn.Linear(in_width, out_width, bias=False), nn.GELU()]
    return nn.Sequential(*layers[:-1])
