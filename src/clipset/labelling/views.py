"""Lists of videos worth a look: doubtful labels, duplicates, outliers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import MiniBatchKMeans

NUM_NEIGHBOURS = 8
OUTLIER_NEIGHBOURS = 5
BLOCK_SIZE = 1024  # videos whose neighbours are searched at once
MAX_EXACT = 20_000  # beyond, neighbours are searched in nearby cells only
NUM_PROBES = 8  # nearby cells
MIN_CONFIDENCE = 0.5  # of a prediction that casts doubt on a label
DUPLICATE = 0.945  # cosine of two videos; in LSA64, repetitions of a sign have at most 0.943
TRUNCATION = 0.1  # by which a cosine of components may be lower than that of whole vectors
FENCE = 1.5  # interquartile ranges above the third quartile, where outliers begin (Tukey)
MAX_ITEMS = 200
ViewName = Literal["doubtful", "duplicates", "outliers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewItem:
    """Videos that belong together in a view, with a score (higher comes first) and a reason."""

    video_indices: tuple[int, ...]
    score: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class NearestVideos:
    """The most similar other videos of each, and their cosines, in falling order."""

    indices: Int[np.ndarray, "N Q"]
    cosines: Float[np.ndarray, "N Q"]


def find_neighbours(directions: Float[np.ndarray, "N K"]) -> NearestVideos:
    """The neighbours of each video by the cosine; in a large collection nearly all of them."""
    count = min(NUM_NEIGHBOURS, len(directions) - 1)
    indices = np.zeros((len(directions), count), dtype=np.int64)
    cosines = np.zeros((len(directions), count), dtype=np.float32)
    if count == 0:
        return NearestVideos(indices=indices, cosines=cosines)
    for queries, candidates in _search_blocks(directions):
        similarities = directions[queries] @ directions[candidates].T  # (B, M)
        similarities[queries[:, None] == candidates[None]] = -np.inf  # not its own neighbour
        nearest = np.argpartition(-similarities, count - 1, axis=1)[:, :count]
        values = np.take_along_axis(similarities, nearest, axis=1)
        order = np.argsort(-values, axis=1)
        indices[queries] = candidates[np.take_along_axis(nearest, order, axis=1)]
        cosines[queries] = np.take_along_axis(values, order, axis=1)
    return NearestVideos(indices=indices, cosines=cosines)


def _search_blocks(
    directions: Float[np.ndarray, "N K"],
) -> Iterator[tuple[Int[np.ndarray, " B"], Int[np.ndarray, " M"]]]:
    """Blocks of videos, each with the videos among which its neighbours are searched."""
    everything = np.arange(len(directions))
    searches = [(everything, everything)]
    if len(directions) > MAX_EXACT:
        num_cells = int(np.sqrt(len(directions)))
        means = MiniBatchKMeans(num_cells, n_init=1, random_state=0).fit(directions)
        members = [np.flatnonzero(means.labels_ == cell) for cell in range(num_cells)]
        nearby = np.argsort(-(means.cluster_centers_ @ means.cluster_centers_.T), axis=1)
        candidates = [
            np.concatenate([members[other] for other in {cell, *near.tolist()}])
            for cell, near in enumerate(nearby[:, :NUM_PROBES])
        ]
        searches = [
            (own, near if len(near) > NUM_NEIGHBOURS else everything)
            for own, near in zip(members, candidates, strict=True)
        ]
    for own, near in searches:
        for low in range(0, len(own), BLOCK_SIZE):
            yield own[low : low + BLOCK_SIZE], near


def find_doubtful(
    examples: Sequence[tuple[int, str]],
    classes: Sequence[str],
    probabilities: Float[np.ndarray, "M C"],
) -> list[ViewItem]:
    """Labels that a head which was not trained on them contradicts with confidence.

    The only label of a class cannot be doubted: such a head does not know the class.
    """
    counts, items = Counter(label for _, label in examples), []
    for (video, label), row in zip(examples, probabilities, strict=True):
        predicted, confidence = classes[row.argmax()], float(row.max())
        if predicted != label and confidence >= MIN_CONFIDENCE and counts[label] > 1:
            reason = f"labelled {label}, looks like {predicted} ({confidence:.0%})"
            items.append(ViewItem(video_indices=(video,), score=confidence, reason=reason))
    return _ranked(items)


def find_duplicates(neighbours: NearestVideos, vectors: Float[np.ndarray, "N R"]) -> list[ViewItem]:
    """Groups of videos with nearly the same vectors, checked by their whole vectors."""
    firsts, columns = np.nonzero(neighbours.cosines >= DUPLICATE - TRUNCATION)
    seconds = neighbours.indices[firsts, columns]
    pairs = zip(firsts.tolist(), seconds.tolist(), strict=True)
    cosines = np.array([_cosine(vectors[first], vectors[second]) for first, second in pairs])
    is_same = cosines >= DUPLICATE
    firsts, seconds, cosines = firsts[is_same], seconds[is_same], cosines[is_same]
    links = coo_matrix((cosines, (firsts, seconds)), shape=(len(vectors), len(vectors)))
    _, groups = connected_components(links, directed=False)
    items = []
    for group in np.unique(groups[firsts]).tolist():
        videos = np.flatnonzero(groups == group)
        items.append(
            ViewItem(
                video_indices=tuple(videos.tolist()),
                score=float(cosines[groups[firsts] == group].min()),
                reason=f"{len(videos)} videos with nearly the same content",
            )
        )
    return _ranked(items)


def find_outliers(neighbours: NearestVideos) -> list[ViewItem]:
    """Videos that even their nearest neighbours do not resemble."""
    if neighbours.cosines.size == 0:
        return []
    distances = 1 - neighbours.cosines[:, :OUTLIER_NEIGHBOURS].mean(axis=1)
    first, median, third = np.quantile(distances, (0.25, 0.5, 0.75))
    outliers = np.flatnonzero(distances > third + FENCE * (third - first))
    return _ranked(
        ViewItem(
            video_indices=(video,),
            score=float(distances[video]),
            reason=f"distance {distances[video]:.2f} to its nearest videos (median {median:.2f})",
        )
        for video in outliers.tolist()
    )


def _cosine(first: Float[np.ndarray, " R"], second: Float[np.ndarray, " R"]) -> float:
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    return float(first @ second / max(lengths, 1e-12))


def _ranked(items: Iterable[ViewItem]) -> list[ViewItem]:
    return sorted(items, key=lambda item: -item.score)[:MAX_ITEMS]
