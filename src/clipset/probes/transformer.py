"""Transformer probe: the set encoder from a random start, trained as a whole with the labels."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from clipset.model.encoder import SetEncoder
from clipset.probes.base import (
    ProbeSetup,
    Selection,
    Tensors,
    TrainedProbe,
    average_clips,
    predict_videos,
)
from clipset.probes.config import EvaluateConfig, Features, ProbeTraining
from clipset.probes.heads import HeadSettings
from clipset.probes.ordered import OrderedProbe, RidgeClassifier
from clipset.probes.search import Axes, Score, Trainings, ValidationSplit, score_outputs
from clipset.probes.task import LabelledVideos, Labels
from clipset.representation import concat_parts
from clipset.sets.batch import ClipBatch, RunningStatistics
from clipset.sets.sampling import draw_batches, draw_subset, mix_means
from clipset.sets.stored_clips import StoredClips
from clipset.training.data import STATISTICS_CHUNK, prefetch
from clipset.training.joint import JointPretraining
from clipset.training.optim import Optimization, decay_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSettings(HeadSettings):
    """A point of the grid of transformers."""

    encoder_lr_scale: float = 1.0
    joint_weight: float = 0.0
    """of the pre-training losses beside fine-tuning; not searched"""
    ordered_weight: float = 0.0
    """of the clips in order in the mixed probabilities; searched once the others are selected"""


class SetClassifier(nn.Module):
    """A linear layer on each clip's feature next to the set token, or on the set token alone."""

    def __init__(
        self, encoder: SetEncoder, num_outputs: int, *, set_token_only: bool = False,
        batch_norm: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder, self.set_token_only = encoder, set_token_only
        project = encoder.project
        dim = project.out_features + (0 if set_token_only else project.in_features)
        self.norm = nn.BatchNorm1d(dim, affine=False) if batch_norm else nn.Identity()
        self.classify = nn.Linear(dim, num_outputs)

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B V C"]:
        if self.set_token_only:
            clip_vectors = concat_parts(self.encoder, clips, ("set",))[:, :1]  # (B, 1, H)
        else:
            clip_vectors = concat_parts(self.encoder, clips)  # (B, V, D + H)
        clip_vectors = self.norm(clip_vectors.flatten(0, 1)).view_as(clip_vectors)
        return self.classify(clip_vectors)  # type: ignore[no-any-return]


class MixedClassifier(nn.Module):
    """A transformer and the clips in order: a weighted mean of their probabilities or targets."""

    def __init__(self, transformer: SetClassifier, ordered: RidgeClassifier, weight: float) -> None:
        super().__init__()
        self.transformer, self.ordered = transformer, ordered
        self.register_buffer("ordered_weight", torch.tensor(weight))

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B 1 C"]:
        is_regression = self.transformer.classify.out_features == 1
        outputs = mix_outputs(
            average_clips(self.transformer(clips), is_regression),
            average_clips(self.ordered(clips), is_regression),
            self.get_buffer("ordered_weight"),
        )
        return (outputs if is_regression else outputs.clamp_min(1e-12).log())[:, None]


def mix_outputs(
    transformer: Float[Tensor, "B C"],
    ordered: Float[Tensor, "B C"],
    weight: float | Float[Tensor, ""],
) -> Float[Tensor, "B C"]:
    """The outputs of both, weighted."""
    return (1 - weight) * transformer + weight * ordered


class TransformerTraining:
    """One transformer in training, epoch by epoch, optionally with joint pre-training."""

    def __init__(
        self, network: SetClassifier, train: LabelledVideos, config: ProbeTraining,
        settings: TransformerSettings, *, num_epochs: int, seed: int,
        joint: JointPretraining | None = None,
    ) -> None:  # fmt: skip
        self.network, self.train, self.config, self.seed = network.train(), train, config, seed
        self.batch_size = settings.batch_size
        init_head(network.classify, Generator().manual_seed(seed))
        encoder, weight_decay = network.encoder, settings.weight_decay
        param_groups = [
            *decay_groups(network.classify, weight_decay),
            *decay_groups(encoder, weight_decay, lr_scale=settings.encoder_lr_scale),
        ]
        self.joint_loss = None if joint is None else joint.start(encoder, seed)
        if self.joint_loss is not None:
            heads = self.joint_loss.heads
            param_groups.append({"params": heads, "weight_decay": weight_decay, "lr_scale": 1.0})
        self.optimization = Optimization(
            network,
            param_groups,
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
        train_batches = self._draw_batches()
        if isinstance(self.train.random, StoredClips):
            train_batches = prefetch(train_batches)
        for video_index, clips in train_batches:
            loss = clip_loss(self.network(clips), self.train.labels[video_index])
            if self.joint_loss is not None:
                loss = loss + self.config.joint_weight * self.joint_loss.loss()
            self.optimization.step(loss)
        self.network.eval()

    def _draw_batches(self) -> Iterator[tuple[Int[Tensor, " B"], ClipBatch]]:
        for video_index in draw_batches(len(self.train), self.batch_size, self.generator):
            video_clips = self.train.random.read(video_index)
            clips = draw_subset(video_clips, self.config.num_clips, self.generator)
            yield video_index, mix_means(clips, self.generator) if self.config.mix_means else clips


class TransformerTrainings(Trainings):
    """Several transformers in training, by the numbers of their candidates."""

    def __init__(
        self,
        trainings: dict[int, TransformerTraining],
        validation: LabelledVideos,
        best_outputs: dict[int, tuple[Score, Float[Tensor, "M C"]]],
    ) -> None:
        self.trainings, self.validation = trainings, validation
        self.best_outputs = best_outputs

    def run_epoch(self) -> None:
        for training in self.trainings.values():
            training.run_epoch()

    def score(self) -> dict[int, Score]:
        clips, labels = self.validation.regular, self.validation.labels
        is_regression = labels.is_floating_point()
        scores = {}
        for candidate, training in self.trainings.items():
            outputs = predict_videos(training.network, clips, is_regression=is_regression)
            scores[candidate] = score_outputs(outputs, labels)
            if len(training.config.ordered_weights) == 1:
                continue  # no weights are compared on these outputs
            best = self.best_outputs.get(candidate)
            if best is None or scores[candidate] > best[0] or not training.config.early_stopping:
                self.best_outputs[candidate] = scores[candidate], outputs
        return scores

    def keep(self, candidates: set[int]) -> None:
        self.trainings = {n: t for n, t in self.trainings.items() if n in candidates}


def init_head(layer: nn.Linear, generator: Generator) -> None:
    """Initial weights as those of `torch.nn.Linear`, whatever was drawn for the encoder before."""
    bound = layer.in_features**-0.5
    with torch.no_grad():
        for parameter in (layer.weight, layer.bias):
            parameter.uniform_(-bound, bound, generator=generator)


def clip_loss(logits: Float[Tensor, "B L C"], labels: Labels) -> Float[Tensor, ""]:
    """The mean cross-entropy (or squared error) over videos and clips."""
    clip_labels = labels[:, None].expand(logits.shape[:2])
    if labels.is_floating_point():
        return F.mse_loss(logits[..., 0], clip_labels)
    return F.cross_entropy(logits.flatten(0, 1), clip_labels.flatten())


class TransformerProbe(TrainedProbe):
    """The architecture of the pre-trained model, from a random start."""

    kind = "transformer"
    settings_type = TransformerSettings

    def __init__(self, setup: ProbeSetup, features: Features) -> None:
        super().__init__(setup, features)
        self._best_outputs: dict[int, tuple[Score, Float[Tensor, "M C"]]] = {}

    def axes(self) -> Axes:
        """The same from a random start and from a pre-trained model."""
        config = self.setup.config.training
        return {
            "batch_size": config.batch_sizes,
            "batch_norm": config.batch_norm,
            "optimizer": config.optimizers,
            "weight_decay": config.weight_decays,
            "encoder_lr_scale": config.encoder_lr_scales,
            "learning_rate": config.learning_rates,
        }

    def training_bytes(self, settings: TransformerSettings) -> int:
        """Weights, gradients and two moments; the activations are those of one candidate."""
        parameters = self.make_classifier(settings.batch_norm).parameters()
        return 4 * 4 * sum(parameter.numel() for parameter in parameters)

    def start(
        self, candidates: dict[int, TransformerSettings], split: ValidationSplit
    ) -> TransformerTrainings:
        assert split.validation is not None  # only called in a search
        train_videos = self.setup.task.train.select(split.train)
        trainings = {
            candidate: self._start(settings, train_videos, self.num_epochs, self.setup.seed)
            for candidate, settings in candidates.items()
        }
        return TransformerTrainings(trainings, split.validation, self._best_outputs)

    def search(self) -> Selection:
        """The settings of the transformer, then the weight of the clips in order."""
        selection = super().search()
        weight = self.select_ordered_weight(selection.settings)
        self.setup.ordered_weights[self.setup.labels_seed] = weight
        return replace(selection, settings=replace(selection.settings, ordered_weight=weight))

    def fit(self, selection: Selection, video_index: Int[Tensor, " B"], seed: int) -> nn.Module:
        ordered_weight = selection.settings.ordered_weight
        num_epochs = selection.epochs or self.num_epochs
        train_videos = self.setup.task.train.select(video_index)
        training = self._start(selection.settings, train_videos, num_epochs, seed)
        if ordered_weight < 1:  # else nothing of the transformer is left in the mixture
            for _ in range(num_epochs):
                training.run_epoch()
        if not ordered_weight:
            return training.network.eval()
        ordered_classifier = self._ordered.fit(self._ordered_selection, video_index, seed)
        return MixedClassifier(training.network, ordered_classifier, ordered_weight).eval()

    @classmethod
    def rebuild(
        cls, state: Tensors, config: EvaluateConfig, num_outputs: int, encoder: SetEncoder | None
    ) -> nn.Module:
        assert encoder is not None  # transformers have one
        transformer = SetClassifier(
            encoder,
            num_outputs,
            set_token_only=config.training.set_token_only,
            batch_norm="transformer.norm.running_mean" in state or "norm.running_mean" in state,
        )
        if "ordered_weight" not in state:
            return transformer
        prefix = "ordered."
        ridge_state = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        has_tokens = any(name.startswith("inputs.clip_inputs.") for name in ridge_state)
        ridge_encoder = copy.deepcopy(encoder) if has_tokens else None
        ordered_classifier = OrderedProbe.rebuild(ridge_state, config, num_outputs, ridge_encoder)
        return MixedClassifier(transformer, ordered_classifier, float(state["ordered_weight"]))

    @cached_property
    def _ordered(self) -> OrderedProbe:
        return OrderedProbe(self.setup, self.features)

    @cached_property
    def _ordered_selection(self) -> Selection:
        return self._ordered.search()

    @property
    def ordered_weights(self) -> tuple[float, ...]:
        """The weights to search; 0 where clips have no order."""
        config = self.setup.config
        return (0.0,) if config.test_clips == "all" else config.training.ordered_weights

    def select_ordered_weight(self, settings: TransformerSettings) -> float:
        """The best weight on validation videos.

        Without them there are very few labels, from which a transformer learns less: the largest.
        """
        ordered_weights = self.ordered_weights
        if not self._best_outputs or len(ordered_weights) == 1:
            return max(ordered_weights)
        split = self.setup.split_validation()
        assert split.validation is not None  # the outputs are theirs
        clips, labels = split.validation.regular, split.validation.labels
        _, outputs = self._best_outputs[self.search_space().index(settings)]
        ridge = self._ordered.fit(self._ordered_selection, split.train, self.setup.seed)
        ordered_outputs = predict_videos(ridge, clips, is_regression=labels.is_floating_point())
        scores = {
            weight: score_outputs(mix_outputs(outputs, ordered_outputs, weight), labels)
            for weight in ordered_weights
        }
        return max(ordered_weights, key=lambda weight: scores[weight])

    def make_classifier(self, batch_norm: bool) -> SetClassifier:
        """A classifier before its training."""
        return SetClassifier(
            self.make_encoder(),
            self.setup.task.num_outputs,
            set_token_only=self.setup.config.training.set_token_only,
            batch_norm=batch_norm,
        )

    def make_encoder(self) -> SetEncoder:
        """An encoder with fresh weights."""
        encoder = SetEncoder(self.setup.task.train.random.dim, self.setup.architecture)
        encoder.set_statistics(*self._statistics)
        return encoder

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
        feature_statistics, clips = RunningStatistics(), self.setup.task.train.random
        for first_video in range(0, len(clips), STATISTICS_CHUNK):
            video_chunk = slice(first_video, first_video + STATISTICS_CHUNK)
            feature_statistics.update(clips.read(video_chunk).valid_features())
        return feature_statistics.mean, feature_statistics.std

    def _start(
        self, settings: TransformerSettings, train: LabelledVideos, num_epochs: int, seed: int
    ) -> TransformerTraining:
        torch.manual_seed(seed)
        return TransformerTraining(
            self.make_classifier(settings.batch_norm), train, self.setup.config.training, settings,
            num_epochs=num_epochs, seed=seed, joint=self.joint,
        )  # fmt: skip
