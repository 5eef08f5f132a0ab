"""Which videos to label next, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from sklearn.cluster import KMeans

NUM_CLUSTERS = 64
NEAR_COPY = 0.98  # cosine from which two videos are not in one batch
HELD_OUT_EVERY = 5  # one label in so many is for the score


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItem:
    """A video to label: why it is shown, and the most probable class, if there is a head."""

    video_index: int
    reason: str
    suggestion: str | None = None
    probability: float | None = None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What is labelled so far, and what the head makes of all videos (None: there is no head).

    `used` are videos that are labelled or skipped. `turn` is the number of labels so far, by which
    the next one may be for the score.
    """

    labels: dict[int, str]
    used: Bool[np.ndarray, " N"]
    turn: int
    classes: tuple[str, ...] = ()
    probabilities: Float[np.ndarray, "N C"] | None = None


class Queue:
    """Selects videos to label. One in five is drawn at random, for an unbiased score.

    The others are typical of clusters without a label; after those, in turn, uncertain, surest of
    the rarest class, and unlike anything labelled.
    """

    def __init__(self, values: Float[np.ndarray, "N K"]) -> None:
        self.values = values
        lengths = np.linalg.norm(values, axis=1, keepdims=True)
        self._directions = values / np.maximum(lengths, 1e-12)
        self._random_order = np.random.default_rng(0).permutation(len(values))

    @cached_property
    def _clusters(self) -> tuple[Int[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """The cluster of each video by k-means, and its distance to the centre."""
        means = KMeans(min(NUM_CLUSTERS, len(self.values)), n_init=1, random_state=0)
        assignment = means.fit(self.values).labels_
        offsets = self.values - means.cluster_centers_[assignment]
        return assignment, np.linalg.norm(offsets, axis=1)

    def select(self, progress: Progress, limit: int) -> list[QueueItem]:
        """The next videos to label, no two of them near-copies."""
        used, batch = progress.used.copy(), list[QueueItem]()
        sources = [self._typical(progress, used)]
        if progress.probabilities is not None:
            sources = [
                _uncertain(progress, used), _rarest(progress, used), self._uncovered(progress, used)
            ]  # fmt: skip
        random = self._random(used)
        turn = 0
        while sources and len(batch) < limit:
            is_random = (progress.turn + len(batch)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
            source = random if is_random else sources[turn % len(sources)]
            item = next(source, None)
            if item is None and is_random:
                break
            if item is None:
                sources.remove(source)
                continue
            turn += not is_random
            video, reason = item
            batch.append(_make_item(progress, video, reason))
            used[video] = True
            used |= self._directions @ self._directions[video] > NEAR_COPY
        return batch

    def _random(self, used: Bool[np.ndarray, " N"]) -> Iterator[tuple[int, str]]:
        for video in self._random_order.tolist():
            if not used[video]:
                yield video, "drawn at random, for the score"

    def _typical(
        self, progress: Progress, used: Bool[np.ndarray, " N"]
    ) -> Iterator[tuple[int, str]]:
        """The most central video of each cluster without a label, the largest cluster first."""
        assignment, distances = self._clusters
        covered = Counter(assignment[list(progress.labels)].tolist())
        sizes = np.bincount(assignment)
        ranks = sorted(range(len(sizes)), key=lambda c: (covered[c], -sizes[c]))
        for cluster in ranks:
            free = np.flatnonzero((assignment == cluster) & ~used)
            if len(free):
                yield int(free[distances[free].argmin()]), "typical of a cluster"

    def _uncovered(
        self, progress: Progress, used: Bool[np.ndarray, " N"]
    ) -> Iterator[tuple[int, str]]:
        """Videos far from all labelled ones."""
        nearest = (self._directions @ self._directions[list(progress.labels)].T).max(axis=1)
        while not used.all():
            video = int(np.where(used, np.inf, nearest).argmin())
            yield video, "unlike anything labelled"
            nearest = np.maximum(nearest, self._directions @ self._directions[video])


def _uncertain(progress: Progress, used: Bool[np.ndarray, " N"]) -> Iterator[tuple[int, str]]:
    """Videos whose two most probable classes are nearly equally probable."""
    assert progress.probabilities is not None
    top = np.argsort(-progress.probabilities, axis=1)[:, :2]
    first, second = np.take_along_axis(progress.probabilities, top, axis=1).T
    for video in np.argsort(first - second).tolist():
        if not used[video]:
            names = [progress.classes[index] for index in top[video]]
            yield video, f"uncertain: {names[0]} or {names[1]}"


def _rarest(progress: Progress, used: Bool[np.ndarray, " N"]) -> Iterator[tuple[int, str]]:
    """The surest video of the class with the fewest labels."""
    assert progress.probabilities is not None
    counts = Counter(progress.labels.values())
    while not used.all():
        index = min(range(len(progress.classes)), key=lambda c: counts[progress.classes[c]])
        label = progress.classes[index]
        free = np.where(used, -1.0, progress.probabilities[:, index])
        yield int(free.argmax()), f"surest {label}, the rarest class"
        counts[label] += 1


def _make_item(progress: Progress, video: int, reason: str) -> QueueItem:
    if progress.probabilities is None:
        return QueueItem(video_index=video, reason=reason)
    index = int(progress.probabilities[video].argmax())
    return QueueItem(
        video_index=video,
        reason=reason,
        suggestion=progress.classes[index],
        probability=float(progress.probabilities[video, index]),
    )
