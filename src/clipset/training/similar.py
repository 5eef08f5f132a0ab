"""Similar videos: clusters of their mean features, and whether their labels differ.

Where the catalog names no groups, videos that look alike are often of one person or place. Batches
of them ask the model for what else tells videos apart.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from clipset.data.catalog import Video
from clipset.features.store import FeatureStore
from clipset.sets.batch import mean_over_clips
from clipset.sets.stored_clips import StoredClips

CLUSTER_SIZE = 64  # videos of a cluster, on average
MIN_CLUSTER_SIZE = 12  # smaller clusters join others
MAX_CLUSTERS = 256  # more would take long to find among many videos
MAX_LABEL_EXCESS = 0.25  # see `assess_clusters`
MIN_LABELLED = 1 / 8  # fraction of videos with a label, before labels say something about clusters
KMEANS_STEPS = 30
READ_CHUNK = 1024  # videos read at once


def mean_features(store: FeatureStore, videos: Int[np.ndarray, " N"]) -> Float[Tensor, "N D"]:
    """The mean feature of the random clips of some videos."""
    stored = StoredClips(store, ("random",), videos)
    starts = range(0, len(videos), READ_CHUNK)
    chunks = (stored.read(slice(start, start + READ_CHUNK)) for start in starts)
    return torch.cat([mean_over_clips(clips.features, clips.valid) for clips in chunks])


def cluster_videos(features: Float[Tensor, "N D"]) -> Int[Tensor, " N"]:
    """The index of each video's cluster (k-means by cosine); small clusters join others."""
    directions = F.normalize(features, dim=1)
    num_clusters = min(len(features) // CLUSTER_SIZE, MAX_CLUSTERS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # equal videos: fewer clusters
        means = KMeans(num_clusters, n_init=1, max_iter=KMEANS_STEPS, random_state=0)
        labels = means.fit_predict(directions.numpy())
    large = np.bincount(labels, minlength=num_clusters) >= MIN_CLUSTER_SIZE
    centres = torch.from_numpy(means.cluster_centers_[large]).to(directions.dtype)
    nearest = torch.cat(
        [torch.cdist(c, centres).argmin(dim=1) for c in directions.split(READ_CHUNK)]
    )
    clusters: Tensor = nearest.unique(return_inverse=True)[1]
    return clusters


def training_labels(members: Sequence[Video | None]) -> list[str | None]:
    """The label of each video; None without one, and for videos that may be scored."""
    return [
        video.label if video is not None and video.split in (None, "train") else None
        for video in members
    ]


def are_labels_known(members: Sequence[Video | None]) -> bool:
    """Whether labels can say if similar videos differ."""
    num_labelled = sum(label is not None for label in training_labels(members))
    return num_labelled >= MIN_LABELLED * len(members)


def assess_clusters(
    members: Sequence[Video | None], clusters: Int[Tensor, " N"]
) -> tuple[bool, str]:
    """Whether negatives that look alike are worth it: not if the look tells the label.

    Compared are the fractions of the most frequent label: of a cluster, on average, and of all
    videos. Their difference is 0 if clusters say nothing about labels; it is divided by what it
    would be if each cluster had one label.
    """
    labels: dict[int, Counter[str]] = defaultdict(Counter)
    for label, cluster in zip(training_labels(members), clusters.tolist(), strict=True):
        if label is not None:
            labels[cluster][label] += 1
    total = sum(labels.values(), Counter())
    if len(total) == 1:
        return False, "all videos have the same label"
    frequent = max(total.values()) / total.total()
    within = sum(max(own.values()) for own in labels.values()) / total.total()
    excess = (within - frequent) / (1 - frequent)
    if excess > MAX_LABEL_EXCESS:
        return False, f"similar videos often have the same label ({within:.0%} of a cluster)"
    return True, "similar videos have different labels"
