"""Transformer probe: the set encoder from a random start, trained as a whole with the labels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from clipset.model.encoder import SetEncoder
from clipset.probes.base import (
    ClassifierShape,
    Selection,
    Tensors,
    TrainedProbe,
    predict_videos,
)
from clipset.probes.clips import StoredClips
from clipset.probes.config import ProbeTraining
from clipset.probes.grid import TransformerSettings, middle_transformer, transformer_grid
from clipset.probes.search import Score, Trainings, ValidationSplit, count_epochs, score_outputs
from clipset.probes.task import LabelledVideos
from clipset.representation import concat_parts
from clipset.sets.batch import ClipBatch, RunningStatistics
from clipset.sets.sampling import draw_batches, draw_subset, mix_means
from clipset.training.data import STATISTICS_CHUNK, prefetch
from clipset.training.joint import JointPretraining
from clipset.training.optim import Optimization, decay_groups


class SetClassifier(nn.Module):
    """A linear layer on each clip's feature next to the set token, or on the set token alone."""

    def __init__(
        self,
        encoder: SetEncoder,
        num_outputs: int,
        *,
        set_token_only: bool = False,
        batch_norm: bool = True,
    ) -> None:
        super().__init__()
        self.encoder, self.set_token_only = encoder, set_token_only
        project = encoder.project
        dim = project.out_features + (0 if set_token_only else project.in_features)
        self.norm = nn.BatchNorm1d(dim, affine=False) if batch_norm else nn.Identity()
        self.classify = nn.Linear(dim, num_outputs)

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B V C"]:
        if self.set_token_only:
            vectors = concat_parts(self.encoder, clips, ("set",))[:, :1]  # (B, 1, H)
        else:
            vectors = concat_parts(self.encoder, clips)  # (B, V, D + H)
        vectors = self.norm(vectors.flatten(0, 1)).view_as(vectors)
        return self.classify(vectors)  # type: ignore[no-any-return]


class TransformerTraining:
    """One transformer in training, epoch by epoch, optionally with joint pre-training."""

    def __init__(
        self,
        network: SetClassifier,
        train: LabelledVideos,
        config: ProbeTraining,
        settings: TransformerSettings,
        *,
        num_epochs: int,
        seed: int,
        joint: JointPretraining | None = None,
    ) -> None:
        self.network, self.train, self.config, self.seed = network.train(), train, config, seed
        self.batch_size = settings.batch_size
        init_head(network.classify, Generator().manual_seed(seed))
        encoder, decay = network.encoder, settings.weight_decay
        groups = [
            *decay_groups(network.classify, decay),
            *decay_groups(encoder, decay, lr_scale=settings.encoder_lr_scale),
        ]
        self.joint_loss = None if joint is None else joint.start(encoder, seed)
        if self.joint_loss is not None:
            heads = self.joint_loss.heads
            groups.append({"params": heads, "weight_decay": decay, "lr_scale": 1.0})
        self.optimization = Optimization(
            network,
            groups,
            learning_rate=settings.learning_rate,
            num_steps=num_epochs * -(-len(train) // settings.batch_size),
            optimizer=settings.optimizer,
        )
        self.generator = Generator().manual_seed(seed)

    def run_epoch(self) -> None:
        """Train on every video once."""
        # Dropout does not depend on other trainings in between.
        torch.manual_seed(self.seed * 1_000_003 + self.optimization.num_done)
        self.network.train()
        batches = self._draw_batches()
        if isinstance(self.train.random, StoredClips):
            batches = prefetch(batches)
        for videos, clips in batches:
            loss = clip_loss(self.network(clips), self.train.labels[videos])
            if self.joint_loss is not None:
                loss = loss + self.config.joint_weight * self.joint_loss.loss()
            self.optimization.step(loss)
        self.network.eval()

    def _draw_batches(self) -> Iterator[tuple[Int[Tensor, " B"], ClipBatch]]:
        for videos in draw_batches(len(self.train), self.batch_size, self.generator):
            batch = self.train.random.read(videos)
            clips = draw_subset(batch, self.config.num_clips, self.generator)
            yield videos, mix_means(clips, self.generator) if self.config.mix_means else clips


class TransformerTrainings(Trainings):
    """Several transformers in training, by the numbers of their candidates."""

    def __init__(
        self, trainings: dict[int, TransformerTraining], validation: LabelledVideos
    ) -> None:
        self.trainings, self.validation = trainings, validation

    def run_epoch(self) -> None:
        for training in self.trainings.values():
            training.run_epoch()

    def score(self) -> dict[int, Score]:
        clips, labels = self.validation.regular, self.validation.labels
        is_regression = labels.is_floating_point()
        return {
            number: score_outputs(
                predict_videos(training.network, clips, is_regression=is_regression), labels
            )
            for number, training in self.trainings.items()
        }

    def keep(self, candidates: set[int]) -> None:
        self.trainings = {n: t for n, t in self.trainings.items() if n in candidates}


def init_head(layer: nn.Linear, generator: Generator) -> None:
    """Initial weights as those of `torch.nn.Linear`, whatever was drawn for the encoder before."""
    bound = layer.in_features**-0.5
    with torch.no_grad():
        for parameter in (layer.weight, layer.bias):
            parameter.uniform_(-bound, bound, generator=generator)


def clip_loss(
    logits: Float[Tensor, "B L C"], labels: Int[Tensor, " B"] | Float[Tensor, " B"]
) -> Float[Tensor, ""]:
    """The mean cross-entropy (or squared error) over videos and clips."""
    batch, length, num_classes = logits.shape
    if labels.is_floating_point():
        return ((logits[..., 0] - labels[:, None]) ** 2).sum() / (batch * length)
    expanded = labels[:, None].expand(batch, length).flatten()
    total = F.cross_entropy(logits.reshape(-1, num_classes), expanded, reduction="sum")
    return total / (batch * length)


class TransformerProbe(TrainedProbe):
    """The architecture of the pre-trained model, from a random start."""

    kind = "transformer"

    @property
    def num_epochs(self) -> int:
        config = self.setup.config.training
        return count_epochs(len(self.setup.task.train), config, config.max_steps)

    def search_space(self) -> tuple[TransformerSettings, ...]:
        return transformer_grid(self.setup.config.training)

    def default_settings(self) -> TransformerSettings:
        return middle_transformer(self.setup.config.training)

    def training_bytes(self, settings: TransformerSettings) -> int:
        """Weights, gradients and two moments; the activations are those of one candidate."""
        parameters = self.make_classifier(settings.batch_norm).parameters()
        return 4 * 4 * sum(parameter.numel() for parameter in parameters)

    def start(
        self, candidates: dict[int, TransformerSettings], split: ValidationSplit
    ) -> TransformerTrainings:
        task = self.setup.task
        train = task.train.select(split.train)
        trainings = {
            number: self._start(settings, train, self.setup.seed)
            for number, settings in candidates.items()
        }
        return TransformerTrainings(trainings, split.videos(task.train, task.validation))

    def fit(self, selection: Selection, videos: Int[Tensor, " B"], seed: int) -> SetClassifier:
        training = self._start(selection.settings, self.setup.task.train.select(videos), seed)
        for _ in range(selection.epochs or self.num_epochs):
            training.run_epoch()
        return training.network.eval()

    @classmethod
    def rebuild(cls, state: Tensors, shape: ClassifierShape) -> SetClassifier:
        assert shape.encoder is not None  # transformers have one
        set_token_only = shape.config.training.set_token_only
        return SetClassifier(
            shape.encoder,
            shape.num_outputs,
            set_token_only=set_token_only,
            batch_norm="norm.running_mean" in state,
        )

    def make_classifier(self, batch_norm: bool) -> SetClassifier:
        """A classifier with fresh weights."""
        encoder = SetEncoder(self.setup.task.train.random.dim, self.setup.architecture)
        encoder.set_statistics(*self._statistics)
        return self.classifier_of(encoder, batch_norm)

    def classifier_of(self, encoder: SetEncoder, batch_norm: bool) -> SetClassifier:
        """The classifier with an encoder."""
        return SetClassifier(
            encoder,
            self.setup.task.num_outputs,
            set_token_only=self.setup.config.training.set_token_only,
            batch_norm=batch_norm,
        )

    @cached_property
    def joint(self) -> JointPretraining | None:
        """Pre-training beside the labels: none from a random start."""
        return None

    @cached_property
    def _statistics(self) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
        """Those of the model, which may be none; without a model, those of the training videos."""
        if self.setup.model is not None:
            encoder = self.setup.model.encoder
            return encoder.get_buffer("feature_mean"), encoder.get_buffer("feature_std")
        statistics, clips = RunningStatistics(), self.setup.task.train.random
        for low in range(0, len(clips), STATISTICS_CHUNK):
            chunk = slice(low, low + STATISTICS_CHUNK)
            statistics.update(clips.read(chunk).valid_features())
        return statistics.mean, statistics.std

    def _start(
        self, settings: TransformerSettings, train: LabelledVideos, seed: int
    ) -> TransformerTraining:
        torch.manual_seed(seed)
        return TransformerTraining(
            self.make_classifier(settings.batch_norm),
            train,
            self.setup.config.training,
            settings,
            num_epochs=self.num_epochs,
            seed=seed,
            joint=self.joint,
        )
