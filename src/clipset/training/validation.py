"""Validation while training: the loss of held-out videos, and k-NN accuracy.

Both use training videos, or the split `val`, never the scored split. The k-NN accuracy has no
influence on the training.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clipset.data.catalog import Video
from clipset.data.splits import assign_splits, scored_split
from clipset.errors import TrainingError
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.model.knn import knn_probabilities
from clipset.model.scale import SetModel
from clipset.sets.batch import ClipBatch, mean_over_clips
from clipset.sets.reading import read_clips
from clipset.training.checkpoint import ScaleModel
from clipset.training.config import PretrainConfig
from clipset.training.data import BatchSource, tensors_of
from clipset.training.distributed import SINGLE_PROCESS

HELD_OUT_FRACTION = 0.2  # of the train split, if there is no validation split
ENCODE_CHUNK = 256  # videos encoded at once


class HeldOutLoss:
    """The pre-training loss of videos that are not trained on, for the same sets and masks."""

    def __init__(self, source: BatchSource, config: PretrainConfig, *, seed: int) -> None:
        self.source, self.config, self.seed = source, config, seed

    @torch.no_grad()
    def measure(self, model: SetModel, device: torch.device) -> float:
        """The mean loss of a video."""
        training = model.training
        model.eval()
        total, num_videos = 0.0, 0
        generator = torch.Generator().manual_seed(self.seed)
        for size, pair in self.source.batches(self.config, generator, SINGLE_PROCESS):
            if pair.masked.shape[1]:
                total += size * float(model.losses(**tensors_of(pair, device)).total)
                num_videos += size
        model.train(training)
        return total / max(num_videos, 1)


class Validation:
    """Labelled training videos and validation videos; none of the scored split."""

    def __init__(self, store: FeatureStore, model: ModelConfig, *, seed: int) -> None:
        train, validation, self.split = validation_videos(store, seed=seed)
        names = sorted({video.label or "" for video in train.values()})
        index = {name: number for number, name in enumerate(names)}
        self.num_classes = len(names)
        self.train = read_clips(store, "regular", np.array(list(train)), model)
        self.validation = read_clips(store, "regular", np.array(list(validation)), model)
        self.labels = torch.tensor([index[v.label or ""] for v in train.values()])
        self.targets = torch.tensor([index.get(v.label or "", -1) for v in validation.values()])

    @torch.no_grad()
    def score(self, model: ScaleModel, device: torch.device) -> float:
        """The k-NN accuracy on the validation videos."""
        training = model.training
        model.eval()
        train, queries = (_pool(model, clips, device) for clips in (self.train, self.validation))
        model.train(training)
        votes = knn_probabilities(train, self.labels, queries, num_classes=self.num_classes)
        return float((votes.argmax(dim=1) == self.targets).float().mean())


def validation_videos(
    store: FeatureStore, *, seed: int
) -> tuple[dict[int, Video], dict[int, Video], str]:
    """Training and validation videos by their index in the store, and the validation split's name.

    Validation videos are the split `val` if there is one beside the scored split, else a stratified
    part of the train split, by whole groups.
    """
    catalog = {video.id: video for video in store.catalog if video.label is not None}
    labelled = {index: catalog[id] for index, id in enumerate(store.ids) if id in catalog}
    train_split = "train" if "train" in store.catalog.splits else None
    train = {i: v for i, v in labelled.items() if v.split == train_split}
    validation = {i: v for i, v in labelled.items() if v.split == "val"}
    name = "val"
    if not validation or scored_split(labelled.values()) == "val":
        name = "part of train"
        unsplit = [replace(video, split=None) for video in train.values()]
        divided = assign_splits(
            store.catalog.only(unsplit), test_fraction=HELD_OUT_FRACTION, seed=seed
        )
        held_out = {video.id for video in divided if video.split == "test"}
        validation = {i: v for i, v in train.items() if v.id in held_out}
        train = {i: v for i, v in train.items() if v.id not in held_out}
    if len({video.label for video in train.values()}) < 2 or not validation:
        raise TrainingError(
            f"validation needs labelled training videos of two classes and validation videos, "
            f"got {dict(Counter(v.label for v in train.values()))} and {len(validation)}; "
            f"leave validate_every at 0"
        )
    return train, validation, name


def _pool(model: ScaleModel, clips: ClipBatch, device: torch.device) -> Float[Tensor, "N R"]:
    """The mean clip feature beside the set token, as in the representation."""
    vectors = []
    for videos in torch.arange(len(clips)).split(ENCODE_CHUNK):
        batch = clips.select(videos).to(device)
        set_token = model.encode(**tensors_of(batch, device)).set_token
        mean = mean_over_clips(model.encoder.standardise(batch.features), batch.valid)
        vectors.append(torch.cat([mean, set_token], dim=1).cpu())
    return torch.cat(vectors)
