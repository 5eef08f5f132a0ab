"""Which videos to label next, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import entr

from clipset.labelling.head import RidgeHead

HELD_OUT_EVERY = 5  # one label in so many is for the score
NUM_REFERENCES = 2000  # random videos that stand for the whole collection
NUM_CANDIDATES = 4096  # random videos that are compared at once
NEAR_COPY = 0.9  # cosine from which two videos are not in one batch
UNCERTAIN = 0.3  # difference of the two highest probabilities, at most
UNLIKE = 0.3  # largest cosine to a labelled video, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItem:
    """A video to label: why it is shown, and the most probable class, if there is a head."""

    video_index: int
    reason: str
    suggestion: str | None = None
    probability: float | None = None


class Queue:
    """Selects videos that resemble many others which nothing labelled resembles yet.

    The others count by the entropy of their predictions, once there is a head. This is facility
    location on a sample of the collection, solved greedily. One video in five is drawn at random
    instead, so that the score on held-out labels is that of a random video.
    """

    def __init__(self, values: Float[np.ndarray, "N K"], seed: int = 0) -> None:
        self.values = values
        lengths = np.linalg.norm(values, axis=1, keepdims=True)
        self.directions = values / np.maximum(lengths, 1e-12)
        self._order = np.random.default_rng(seed).permutation(len(values))
        self._similarities: tuple[int, Float[np.ndarray, "M Q"]] | None = None

    def select(
        self,
        limit: int,
        *,
        covered: Sequence[int],
        used: Bool[np.ndarray, " N"],
        num_labels: int,
        head: RidgeHead | None = None,
    ) -> list[QueueItem]:
        """The next videos to label, no two of them near-copies.

        `covered` are videos whose like need no label: those that are trained on or skipped. `used`
        videos are labelled or skipped. `num_labels` decides which of the next are random.
        """
        free, batch = ~used, list[QueueItem]()
        candidates, similarities = self._compare(free)  # (M,), (M, Q)
        references = self._order[:NUM_REFERENCES]
        weights = np.ones(len(references), dtype=np.float32)
        if head is not None:
            weights = entr(head.predict(self.values[references])).sum(axis=1)  # uncertainty
        nearest = self.directions[references] @ self.directions[list(covered)].T  # (Q, L)
        coverage = nearest.max(axis=1, initial=0.0)
        while len(batch) < limit and free.any():
            if (num_labels + len(batch)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1:
                video = int(self._order[free[self._order].argmax()])
                reason = "drawn at random, for the score"
            else:
                gains = np.maximum(similarities - coverage, 0) @ weights
                gains = np.where(free[candidates], gains, -1.0)
                if gains.max() < 0:
                    break
                row = int(gains.argmax())
                video, coverage = int(candidates[row]), np.maximum(coverage, similarities[row])
                reason = self._reason(video, covered, head)
            batch.append(self._item(video, reason, head))
            free &= self.directions @ self.directions[video] < NEAR_COPY
            free[video] = False
        return batch

    def _compare(
        self, free: Bool[np.ndarray, " N"]
    ) -> tuple[Int[np.ndarray, " M"], Float[np.ndarray, "M Q"]]:
        """The first random candidates of which one is free, and their similarity to the references.

        The similarity is the cosine, or 0 if that is negative.
        """
        starts = range(0, len(self._order), NUM_CANDIDATES)
        chunks = {start: self._order[start : start + NUM_CANDIDATES] for start in starts}
        start = next((start for start, chunk in chunks.items() if free[chunk].any()), 0)
        if self._similarities is None or self._similarities[0] != start:
            references = self.directions[self._order[:NUM_REFERENCES]]
            similarities = np.maximum(self.directions[chunks[start]] @ references.T, 0)
            self._similarities = start, similarities
        return chunks[start], self._similarities[1]

    def _reason(self, video: int, covered: Sequence[int], head: RidgeHead | None) -> str:
        if head is None:
            return "typical of videos without a label"
        probabilities = head.predict(self.values[[video]])
        first, second = np.argsort(-probabilities[0])[:2]
        if probabilities[0, first] - probabilities[0, second] <= UNCERTAIN:
            return f"uncertain: {head.classes[first]} or {head.classes[second]}"
        if (self.directions[list(covered)] @ self.directions[video]).max() <= UNLIKE:
            return "unlike anything labelled"
        return "typical of uncertain videos"

    def _item(self, video: int, reason: str, head: RidgeHead | None) -> QueueItem:
        if head is None:
            return QueueItem(video_index=video, reason=reason)
        [probabilities] = head.predict(self.values[[video]])
        return QueueItem(
            video_index=video,
            reason=reason,
            suggestion=head.classes[probabilities.argmax()],
            probability=float(probabilities.max()),
        )
