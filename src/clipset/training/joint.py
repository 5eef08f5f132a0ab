"""Joint training: the pre-training losses of an encoder beside its supervised loss."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Generator, Tensor, nn

from clipset.features.store import FeatureStore
from clipset.model.encoder import SetEncoder
from clipset.sets.sampling import SetPair
from clipset.training.checkpoint import ScaleModel
from clipset.training.config import PretrainConfig
from clipset.training.data import ClipSource, tensors_of
from clipset.training.distributed import SINGLE_PROCESS
from clipset.training.pretrain import open_clip_source, training_videos


@dataclass(frozen=True, slots=True)
class PretrainingSetup:
    """The store and the settings that a model was pre-trained with."""

    store: FeatureStore
    config: PretrainConfig

    def open(self, model: ScaleModel, *, batch_size: int) -> JointPretraining:
        """Read the clips of the training videos, for batches of at most `batch_size` videos."""
        config = replace(self.config, batch_size=min(batch_size, self.config.batch_size))
        videos = training_videos(self.store, config, SINGLE_PROCESS)
        return JointPretraining(open_clip_source(self.store, videos, config), config, model)


@dataclass(frozen=True, slots=True)
class JointPretraining:
    """Unlabelled clips and the model that was pre-trained on them."""

    source: ClipSource
    config: PretrainConfig
    model: ScaleModel

    def start(self, encoder: SetEncoder, seed: int) -> JointLoss:
        """The auxiliary loss of an encoder that starts as the model's own."""
        return JointLoss(self, encoder, seed)


class JointLoss:
    """The pre-training loss of an encoder that a supervised loss trains, too.

    The encoder is shared; the projection heads are copies of the model's own.
    """

    def __init__(self, joint: JointPretraining, encoder: SetEncoder, seed: int) -> None:
        self.model = copy.deepcopy(joint.model).train()
        self.model.encoder = encoder
        generator = Generator().manual_seed(seed)
        self.batches: Iterator[SetPair] = (  # batch after batch, epoch after epoch
            pair
            for _ in itertools.count()
            for _, pair in joint.source.batches(joint.config, generator, SINGLE_PROCESS)
        )

    @property
    def heads(self) -> list[nn.Parameter]:
        """The trained parameters outside the encoder."""
        named = self.model.named_parameters()
        return [p for name, p in named if p.requires_grad and not name.startswith("encoder.")]

    def loss(self) -> Float[Tensor, ""]:
        """The loss of the next batch."""
        inputs: dict[str, Any] = tensors_of(next(self.batches), SINGLE_PROCESS.device)
        return self.model.losses(**inputs).total
