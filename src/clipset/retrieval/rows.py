"""VectorRows: many vectors, compared with a query by the cosines of their parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

CHUNK_BYTES = 1 << 26  # of the vectors that are compared at once


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
        scores = np.zeros(len(self) if indices is None else len(indices), np.float32)
        for chunk in self.chunks(len(scores)):
            if indices is None:
                rows, norms = np.asarray(self.rows[chunk]), self._norms[chunk]
            else:
                rows = np.asarray(self.rows[indices[chunk]])
                norms = self._scaled_norms(rows)
            scores[chunk] = self._chunk_scores(query, rows, norms)
        return scores

    def chunks(self, total: int) -> Iterator[slice]:
        """So many rows in chunks of a bounded size."""
        step = max(1, CHUNK_BYTES // max(self.rows.itemsize * self.rows.shape[1], 1))
        for start in range(0, total, step):
            yield slice(start, min(start + step, total))

    def _chunk_scores(
        self, query: QueryVector, rows: Float[np.ndarray, "K R"], norms: Float[np.ndarray, "K P"]
    ) -> Float[np.ndarray, " K"]:
        scores = np.zeros(len(rows), np.float32)
        for part, (low, high) in enumerate(self.bounds):
            if query.vector[low:high].any():
                scores += (rows[:, low:high] @ query.vector[low:high]) * norms[:, part]
        if query.text is not None:
            low, high = self.bounds[0]
            clips, projection = rows[:, low:high], query.text.projection
            projected = clips if projection is None else clips @ projection.T  # (K, S)
            cosines = (clips @ query.text.direction) * _inverse_norms(projected)
            scores += query.text_weight * cosines
        return scores

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
