"""VectorRows: many vectors, compared with a query by the cosines of their parts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

CHUNK_BYTES = 1 << 26  # of the vectors that are compared at once
COMPARING = threading.Lock()  # a comparison has all cores: several at once take ten times as long


@dataclass(frozen=True, eq=False, kw_only=True)
class TextDirection:
    """A text as a direction of the first part of the vectors.

    Its similarity to a vector x is direction · x / |projection x|: the cosine in the space that
    texts and videos share. Without a projection, the first part of a vector is in that space.
    """

    direction: Float[np.ndarray, " D"]
    projection: Float[np.ndarray, "S D"] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class QueryVector:
    """A weighted sum of examples: `vector` is multiplied with the normalised parts of each row.

    The similarity to `text`, times `text_weight`, is added.
    """

    vector: Float[np.ndarray, " R"]
    text: TextDirection | None = None
    text_weight: float = 0.0


@dataclass(frozen=True, eq=False, kw_only=True)
class VectorRows:
    """Vectors of several parts, one in each row, often a memory map.

    The similarity of two vectors is the mean of the cosines of their parts. A part of zeros is
    similar to nothing.
    """

    rows: Float[np.ndarray, "M R"]
    part_widths: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_bytes(self) -> int:
        """The size of all rows."""
        return self.rows.nbytes

    @cached_property
    def bounds(self) -> list[tuple[int, int]]:
        """The first channel of each part, and the one after its last."""
        ends = np.cumsum(self.part_widths).tolist()
        return list(zip([0, *ends], ends, strict=False))

    def normalise(self, vectors: Float[np.ndarray, "*B R"]) -> Float[np.ndarray, "*B R"]:
        """The vectors with equally long parts and norm 1: their products are similarities."""
        parts = [vectors[..., low:high] for low, high in self.bounds]
        scaled = [part * _inverse_norms(part)[..., None] for part in parts]
        return np.concatenate(scaled, axis=-1) / np.float32(np.sqrt(len(parts)))

    def scores(
        self, query: QueryVector, indices: Int[np.ndarray, " K"] | None = None
    ) -> Float[np.ndarray, " K"]:
        """The similarity of rows to a query: of all, or of those at some indices."""
        with COMPARING:
            return self._all_scores(query) if indices is None else self._some_scores(query, indices)

    def _some_scores(
        self, query: QueryVector, indices: Int[np.ndarray, " K"]
    ) -> Float[np.ndarray, " K"]:
        scores = np.zeros(len(indices), np.float32)
        for chunk in self.chunks(len(scores)):
            rows = np.asarray(self.rows[indices[chunk]])
            text_norms = self._text_norms(rows, query.text)
            scores[chunk] = self._chunk_scores(query, rows, self._scaled_norms(rows), text_norms)
        return scores

    def linear_query(self, query: QueryVector) -> Float[np.ndarray, " R"] | None:
        """The vector whose products with normalised rows are the scores; None if there is none."""
        if query.text is None:
            return query.vector
        if query.text.projection is not None:
            return None
        vector, (low, high) = query.vector.copy(), self.bounds[0]
        scale = np.float32(query.text_weight * np.sqrt(len(self.part_widths)))
        vector[low:high] += scale * query.text.direction
        return vector

    def _all_scores(self, query: QueryVector) -> Float[np.ndarray, " M"]:
        """The similarity of all rows, whose norms are computed once."""
        scores = np.zeros(len(self), np.float32)
        text_norms = None if query.text is None else self._all_text_norms(query.text)
        for chunk in self.chunks(len(scores)):
            own = None if text_norms is None else text_norms[chunk]
            rows = np.asarray(self.rows[chunk])
            scores[chunk] = self._chunk_scores(query, rows, self._norms[chunk], own)
        return scores

    def chunks(self, total: int) -> Iterator[slice]:
        """So many rows in chunks of a bounded size."""
        step = max(1, CHUNK_BYTES // max(self.rows.itemsize * self.rows.shape[1], 1))
        for start in range(0, total, step):
            yield slice(start, min(start + step, total))

    def _chunk_scores(
        self,
        query: QueryVector,
        rows: Float[np.ndarray, "K R"],
        norms: Float[np.ndarray, "K P"],
        text_norms: Float[np.ndarray, " K"] | None,
    ) -> Float[np.ndarray, " K"]:
        scores = np.zeros(len(rows), np.float32)
        for part, (low, high) in enumerate(self.bounds):
            if query.vector[low:high].any():
                scores += (rows[:, low:high] @ query.vector[low:high]) * norms[:, part]
        if query.text is not None and text_norms is not None:
            low, high = self.bounds[0]
            cosines = (rows[:, low:high] @ query.text.direction) * text_norms
            scores += np.float32(query.text_weight) * cosines
        return scores

    def _text_norms(
        self, rows: Float[np.ndarray, "K R"], text: TextDirection | None
    ) -> Float[np.ndarray, " K"] | None:
        """1 / norm of the rows in the space that they share with texts."""
        if text is None:
            return None
        low, high = self.bounds[0]
        clips, projection = rows[:, low:high], text.projection
        return _inverse_norms(clips if projection is None else clips @ projection.T)

    def _all_text_norms(self, text: TextDirection) -> Float[np.ndarray, " M"]:
        """The same for all rows; kept, as all texts have the same projection."""
        known = vars(self).get("known_text_norms")
        if known is None or known[0] is not text.projection:
            chunks = (np.asarray(self.rows[chunk]) for chunk in self.chunks(len(self)))
            norms = [own for c in chunks if (own := self._text_norms(c, text)) is not None]
            known = (text.projection, np.concatenate(norms))
            vars(self)["known_text_norms"] = known
        inverse_norms: Float[np.ndarray, " M"] = known[1]
        return inverse_norms

    @cached_property
    def _norms(self) -> Float[np.ndarray, "M P"]:
        chunks = (np.asarray(self.rows[chunk]) for chunk in self.chunks(len(self)))
        return np.concatenate([self._scaled_norms(rows) for rows in chunks])

    def _scaled_norms(self, rows: Float[np.ndarray, "K R"]) -> Float[np.ndarray, "K P"]:
        """What turns products of parts with a normalised query into similarities."""
        scale = np.float32(1 / np.sqrt(len(self.part_widths)))
        return scale * np.stack([_inverse_norms(rows[:, low:high]) for low, high in self.bounds], 1)


def _inverse_norms(vectors: Float[np.ndarray, "*B R"]) -> Float[np.ndarray, "*B"]:
    """1 / norm of each vector, and 0 for a vector of zeros."""
    squares = np.einsum("...i,...i->...", vectors, vectors, dtype=np.float32)
    inverse: Float[np.ndarray, "*B"] = np.zeros_like(squares)
    np.divide(1.0, np.sqrt(squares), out=inverse, where=squares > 0)
    return inverse
