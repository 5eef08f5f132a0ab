"""Pre-training that goes on while its transformer is trained for something else."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from clipset.features.store import FeatureStore
from clipset.model.encoder import SetEncoder
from clipset.model.scale import ScaleModel
from clipset.sets.sampling import SetPair
from clipset.training.config import PretrainConfig
from clipset.training.data import ClipSource, tensors_of
from clipset.training.distributed import Ranks
from clipset.training.pretrain import open_source, videos_to_learn_from, with_dims

ALONE = Ranks(0, 1, torch.device("cpu"))


@dataclass(frozen=True, slots=True)
class Pretraining:
    """What a model was pre-trained on, and how: enough to go on."""

    store: FeatureStore
    config: PretrainConfig

    def reopen(self, model: ScaleModel, *, batch: int) -> Rehearsed:
        """Read the clips again, to be shown in batches of at most `batch` videos."""
        config = with_dims(self.config, self.store)
        config = replace(config, batch=min(batch, config.batch))
        videos = videos_to_learn_from(self.store, config, ALONE)
        return Rehearsed(open_source(self.store, videos, config), config, model)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """Clips to go on learning from, without labels, and the model that learned from them."""

    source: ClipSource
    config: PretrainConfig
    model: ScaleModel

    def go_on(self, encoder: SetEncoder, seed: int) -> Rehearsal:
        """For an encoder that began as the model's own."""
        return Rehearsal(self, encoder, seed)


class Rehearsal:
    """The losses of pre-training, batch by batch, of an encoder that others train, too.

    The encoder is theirs; the heads that only pre-training needs are copies of the model's own.
    """

    def __init__(self, rehearsed: Rehearsed, encoder: SetEncoder, seed: int) -> None:
        self.rehearsed = rehearsed
        self.model = copy.deepcopy(rehearsed.model).train()
        self.model.encoder = encoder
        self.pairs = self._draw(Generator().manual_seed(seed))

    @property
    def heads(self) -> list[nn.Parameter]:
        """What learns beside the encoder."""
        named = self.model.named_parameters()
        return [p for name, p in named if p.requires_grad and not name.startswith("encoder.")]

    def loss(self) -> Float[Tensor, ""]:
        """The loss of the next batch."""
        inputs: dict[str, Any] = tensors_of(next(self.pairs), ALONE.device)
        return self.model.losses(**inputs).total

    def _draw(self, generator: Generator) -> Iterator[SetPair]:
        """Batch after batch, epoch after epoch."""
        rehearsed = self.rehearsed
        while True:
            for _, pair in rehearsed.source.batches(rehearsed.config, generator, ALONE):
                yield pair
