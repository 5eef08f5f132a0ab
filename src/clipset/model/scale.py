"""ScaleModel: the set encoder with the heads that train it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder, SetEncoding
from clipset.model.info_nce import one_way_info_nce
from clipset.model.losses import (
    Gather,
    OneRank,
    ScaleLosses,
    Scores,
    contrast_clips,
    count_before,
    set_contrastive_loss,
)
from clipset.model.teacher import Centred, Clusters, Teacher


@dataclass(frozen=True, slots=True)
class _Batch:
    """Two sets of each video; first sets before second ones where both share a dimension."""

    features: Float[Tensor, "2 B V D"]  # standardised
    boxes: Float[Tensor, "2 B V X"]
    masked: Bool[Tensor, "2 B V"]
    valid: Bool[Tensor, "2 B V"] | None
    gather: Gather
    videos: int  # of all ranks

    @property
    def stands(self) -> Bool[Tensor, "2 B V"]:
        """Where there is a clip and no filler."""
        return torch.ones_like(self.masked) if self.valid is None else self.valid


class ScaleModel(nn.Module):
    """Encodes sets of clips (`encode`), and learns to by two pseudo-tasks (`losses`)."""

    def __init__(self, dim: int, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = make_encoder(dim, config)
        if config.losses != "set":
            self.predict_clip = projection_head(config.width, config, config.projected)
            self.project_clip = target_head(dim, config)
        if config.losses != "masked":
            self.project_set = projection_head(config.width, config, config.projected)
        if config.losses != "masked" and config.set_loss != "contrast":
            self.teacher = Teacher(self.encoder, self.project_set)
        if config.losses != "masked" and config.set_loss == "clustering":
            self.clusters = Clusters(config.projected, config.prototypes)
        if config.losses != "masked" and config.set_loss == "regression":
            self.predict_set = projection_head(config.projected, config, config.projected)
            self.centred = Centred(config.projected)

    def encode(
        self,
        features: Float[Tensor, "B V D"],
        boxes: Float[Tensor, "B V X"],
        valid: Bool[Tensor, "B V"] | None = None,
    ) -> SetEncoding:
        """Represent sets of clips."""
        return self.encoder(features, boxes, None, valid)  # type: ignore[no-any-return]

    def losses(
        self,
        features: Float[Tensor, "2 B V D"],
        boxes: Float[Tensor, "2 B V X"],
        masked: Bool[Tensor, "2 B V"],
        valid: Bool[Tensor, "2 B V"] | None = None,
        gather: Gather | None = None,
    ) -> ScaleLosses:
        """The losses of a minibatch: two disjoint sets of each video, some clips of each hidden.

        With `gather`, the minibatch of all ranks; the mean over the ranks is the whole. A teacher,
        if there is one, takes its step here, towards what the last step made of the student.
        """
        gather = gather or OneRank()
        seen = self.encoder.standardise(features)
        _, videos = count_before(masked[0], gather)
        batch = _Batch(seen, boxes, masked, valid, gather, videos)
        wanted = self._wanted(batch)
        tokens, set_token = self._encode(self.encoder, batch, masked, wanted)
        nothing = Scores(seen.new_zeros(()), seen.new_zeros(()))
        clips = sets = nothing
        if self.config.losses != "set":
            clips = self._masked_clips(batch, tokens, wanted)
        if self.config.losses != "masked":
            sets = self._sets(batch, set_token.unflatten(0, (2, -1)))
        both = self.config.average and self.config.losses == "both"
        return ScaleLosses(
            total=(clips.loss + sets.loss) / (2 if both else 1),
            masked_clip=clips.loss,
            set_contrast=sets.loss,
            masked_clip_accuracy=clips.found,
            set_accuracy=sets.found,
        )

    def _encode(
        self,
        encoder: SetEncoder,
        batch: _Batch,
        masked: Bool[Tensor, "2 B V"],
        wanted: Bool[Tensor, "2 B V"],
    ) -> tuple[Float[Tensor, "K H"], Float[Tensor, "S H"]]:
        """The tokens of the wanted clips, and those of all sets."""
        return encoder.encode_some(
            batch.features.flatten(0, 1),
            batch.boxes.flatten(0, 1),
            masked.flatten(0, 1),
            wanted.flatten(0, 1),
            None if batch.valid is None else batch.valid.flatten(0, 1),
        )

    def _asked(self, batch: _Batch) -> Bool[Tensor, "2 B V"]:
        """The clips that are to be predicted."""
        return batch.masked & batch.stands

    def _wanted(self, batch: _Batch) -> Bool[Tensor, "2 B V"]:
        """The clips whose predictions somebody looks at."""
        if self.config.losses == "set":
            return torch.zeros_like(batch.masked)
        all_stand = self.config.symmetric and self.config.rivals == "all"
        return batch.stands if all_stand else self._asked(batch)

    def _masked_clips(
        self, batch: _Batch, tokens: Float[Tensor, "K H"], wanted: Bool[Tensor, "2 B V"]
    ) -> Scores:
        asked, config = self._asked(batch), self.config
        predicted = self.predict_clip(tokens)  # (K, P)
        return contrast_clips(
            predicted,
            self._targets(batch),
            _places(asked, wanted),
            _places(asked, batch.stands),
            config.temperature,
            videos=batch.videos,
            symmetric=config.symmetric,
            average=config.average,
            gather=batch.gather,
        )

    def _targets(self, batch: _Batch) -> Float[Tensor, "N P"]:
        """The projected features of all valid clips."""
        valid = batch.valid
        features = batch.features.flatten(0, 2) if valid is None else batch.features[valid]
        return self.project_clip(features)  # type: ignore[no-any-return]

    def _sets(self, batch: _Batch, set_token: Float[Tensor, "2 B H"]) -> Scores:
        config, gather = self.config, batch.gather
        projected = self.project_set(set_token)  # (2, B, P)
        if config.set_loss == "contrast":
            one, two = projected
            return Scores(
                *set_contrastive_loss(
                    one, two, config.temperature, average=config.average, gather=gather
                )
            )
        taught = self._taught(batch)
        if config.set_loss == "clustering":
            loss = self.clusters.loss(
                projected,
                taught,
                student_temperature=config.cluster_temperature,
                teacher_temperature=config.teacher_temperature,
                learning=self.training,
                gather=gather,
            )
        else:
            loss = self.centred.loss(
                self.predict_set(projected), taught, learning=self.training, gather=gather
            )
        found = _pairs_found(projected.detach(), gather)
        return Scores(loss / 2 if config.average else loss, found)

    @torch.no_grad()
    def _taught(self, batch: _Batch) -> Float[Tensor, "2 B P"]:
        """What the teacher makes of the same sets, with nothing hidden."""
        teacher = self.teacher
        if self.training:
            teacher.follow(self.encoder, self.project_set, self.config.teacher_momentum)
        nothing = torch.zeros_like(batch.masked)
        _, set_token = self._encode(teacher.encoder, batch, nothing, nothing)
        return teacher.project_set(set_token).unflatten(0, (2, -1))  # type: ignore[no-any-return]


def _places(some: Bool[Tensor, "2 B V"], among: Bool[Tensor, "2 B V"]) -> Int[Tensor, " M"]:
    """Where the clips of a part stand in a larger part."""
    return (among.flatten().cumsum(0) - 1)[some.flatten()]


@torch.no_grad()
def _pairs_found(projected: Float[Tensor, "2 B P"], gather: Gather) -> Float[Tensor, ""]:
    """How often the other set of a video is the nearest of all."""
    one, two = F.normalize(projected, dim=-1)
    before, videos = count_before(one, gather)
    answer = torch.arange(len(one), device=one.device) + before
    _, found = one_way_info_nce(one, gather(two), answer, 1.0)
    return found * (gather.world_size / videos)


def make_encoder(dim: int, config: ModelConfig) -> SetEncoder:
    """The encoder alone, without the heads that only training needs."""
    return SetEncoder(
        dim,
        config.width,
        config.layers,
        box_numbers=config.box_numbers,
        heads=config.width // config.head_channels,
        expansion=config.expansion,
        dropout=config.dropout,
        boxes=config.boxes,
    )


def target_head(dim: int, config: ModelConfig) -> nn.Module:
    """The projection head of clip features."""
    width = config.target_width or config.head_width
    layers = config.target_layers or config.head_layers
    return mlp(dim, width, layers, config.projected)


def projection_head(dim: int, config: ModelConfig, out: int) -> nn.Sequential:
    """The projection head of predictions or sets."""
    return mlp(dim, config.head_width, config.head_layers, out)


def mlp(dim: int, hidden: int, layers: int, out: int) -> nn.Sequential:
    """Linear layers without biases and normalisation, GELU between them."""
    widths = [dim, *[hidden] * (layers - 1), out]
    parts: list[nn.Module] = []
    for before, after in pairwise(widths):
        parts += [nn.Linear(before, after, bias=False), nn.GELU()]
    return nn.Sequential(*parts[:-1])
