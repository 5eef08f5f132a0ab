"""k-NN on validation videos while training: it judges, and never touches, what is learned."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clipset.data.catalog import Video
from clipset.data.splits import assign_splits
from clipset.errors import TrainingError
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.model.scale import ScaleModel
from clipset.sets.batch import ClipBatch, mean_over_clips
from clipset.sets.reading import reader_for
from clipset.training.data import tensors_of

SHARE = 0.2  # of the train split, where there is no validation split
K = 20
CHUNK = 256  # videos encoded at once


class Validation:
    """Labelled videos to look among, and others to be judged by; none of the test split."""

    def __init__(self, store: FeatureStore, model: ModelConfig, *, seed: int) -> None:
        bank, asked, self.judged_on = validation_videos(store, seed=seed)
        names = sorted({video.label or "" for video in bank.values()})
        numbers = {name: number for number, name in enumerate(names)}
        read = reader_for(store, model)
        self.bank, self.asked = (read("regular", np.array(list(each))) for each in (bank, asked))
        self.classes = torch.tensor([numbers[video.label or ""] for video in bank.values()])
        self.answers = torch.tensor([numbers.get(v.label or "", -1) for v in asked.values()])

    @torch.no_grad()
    def score(self, model: ScaleModel, device: torch.device) -> float:
        """The share of videos whose nearest neighbours are of their class."""
        training = model.training
        model.eval()
        bank, asked = _pooled(model, self.bank, device), _pooled(model, self.asked, device)
        model.train(training)
        found = vote(bank, self.classes, asked)
        return float((found == self.answers).float().mean())


def validation_videos(
    store: FeatureStore, *, seed: int
) -> tuple[dict[int, Video], dict[int, Video], str]:
    """Where the bank's and the judged videos are in the store, and what the latter are called.

    The split `val` is judged if there is one, else a part of the train split, by class and group.
    """
    known = {video.id: video for video in store.catalog}
    videos = {place: known[id] for place, id in enumerate(store.ids) if id in known}
    labelled = {place: video for place, video in videos.items() if video.label is not None}
    learned = "train" if "train" in store.catalog.splits else None
    train = {p: v for p, v in labelled.items() if v.split == learned}
    judged = {p: v for p, v in labelled.items() if v.split == "val"}
    name = "val"
    if not judged:
        name = "a part of train"
        plain = [replace(video, split=None) for video in train.values()]
        parts = assign_splits(store.catalog.only(plain), test_fraction=SHARE, seed=seed)
        chosen = {video.id for video in parts if video.split == "test"}
        judged = {p: v for p, v in train.items() if v.id in chosen}
        train = {p: v for p, v in train.items() if v.id not in chosen}
    if len({video.label for video in train.values()}) < 2 or not judged:
        raise TrainingError(
            f"validation needs labelled videos of two classes to look among and some to judge by, "
            f"got {dict(Counter(v.label for v in train.values()))} and {len(judged)}; "
            f"leave validate_every at 0"
        )
    return train, judged, name


def vote(
    bank: Float[Tensor, "N R"], classes: Int[Tensor, " N"], asked: Float[Tensor, "M R"]
) -> Int[Tensor, " M"]:
    """The class for which the nearest vectors of the bank vote, each by exp(cosine / 0.07)."""
    similar = F.normalize(asked, dim=1) @ F.normalize(bank, dim=1).T  # (M, N)
    nearness, nearest = similar.topk(min(K, len(bank)), dim=1)
    votes = torch.zeros(len(asked), int(classes.max()) + 1)
    votes.scatter_add_(1, classes[nearest], torch.softmax(nearness / 0.07, dim=1))
    return votes.argmax(dim=1)


def _pooled(model: ScaleModel, clips: ClipBatch, device: torch.device) -> Float[Tensor, "N R"]:
    """The mean clip feature next to the set token, as in the representation."""
    found = []
    for places in torch.arange(len(clips)).split(CHUNK):
        some = clips.of(places).to(device)
        encoding = model.encode(**tensors_of(some, device))
        features = model.encoder.standardise(some.features, some.sources)
        seen = replace(some, features=features).side_by_side
        mean = mean_over_clips(seen.features, seen.valid)
        found.append(torch.cat([mean, encoding.set_token], dim=1).cpu())
    return torch.cat(found)
