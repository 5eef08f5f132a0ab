"""ApproximateIndex: candidates among many vectors, found by faiss without comparing all of them.

The normalised vectors are reduced to their principal components, which are in lists around
centroids, as codes of one byte for each component. A query is compared with the codes of the
`num_probes` nearest lists. The caller compares the candidates exactly, so that only which vectors
are found is approximate, not their scores.

`num_probes` and `num_candidates` are selected by the measured recall of the ten nearest vectors.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from itertools import count as count_up
from itertools import product, takewhile
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from clipset.progress import bar
from clipset.retrieval.rows import VectorRows

NUM_COMPONENTS = 256
COMPONENT_SAMPLE = 4096  # vectors that the components are computed from
LIST_SAMPLE = 64  # vectors for each centroid
MAX_LISTS = 4096
NUM_QUERIES = 128  # vectors that recall is measured with
NEIGHBOURS = 10  # nearest vectors of each
TARGET_RECALL = 0.98  # of the settings that are selected
MIN_RECALL = 0.95  # of an index that is used
CANDIDATE_FACTORS = (4, 16, 64)  # candidates for each result


def import_faiss() -> Any | None:
    """The module, or None if it is not installed."""
    try:
        with warnings.catch_warnings():  # of SWIG, in newer Python
            warnings.simplefilter("ignore", DeprecationWarning)
            import faiss
    except ImportError:
        return None
    return faiss


def load_faiss() -> Any:
    """The module, which is installed."""
    faiss = import_faiss()
    assert faiss is not None
    return faiss


@dataclass(frozen=True, eq=False, kw_only=True)
class IndexArrays:
    """What an index consists of; `codes` has a row for each vector, in the order of the vectors.

    A code begins with the number of its list.
    """

    components: Float[np.ndarray, "K R"]
    offset: Float[np.ndarray, " K"]
    centroids: Float[np.ndarray, "L K"]
    ranges: Float[np.ndarray, " Z"]
    codes: UInt8[np.ndarray, "M C"]

    def __post_init__(self) -> None:
        num_components = len(self.components)
        sizes = (len(self.offset), self.centroids.shape[1], len(self.ranges) // 2)
        if set(sizes) != {num_components} or not len(self.centroids):
            raise ValueError(f"the parts of the index have {sizes} and {num_components} components")
        floats = (self.components, self.offset, self.centroids, self.ranges)
        if not all(np.isfinite(array).all() for array in floats):
            raise ValueError("the index holds values that are not finite")

    def project(self, vectors: Float[np.ndarray, "B R"]) -> Float[np.ndarray, "B K"]:
        """The components of normalised vectors."""
        projected = vectors @ self.components.T + self.offset
        return np.ascontiguousarray(projected, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How a query is answered, and the recall that was measured so."""

    num_probes: int = 1
    candidate_factor: int = CANDIDATE_FACTORS[0]
    recall: float = 0.0


class ApproximateIndex:
    """An index of some rows of a table of vectors: code i is of row `row_indices[i]`."""

    def __init__(
        self,
        arrays: IndexArrays,
        row_indices: Int[np.ndarray, " M"],
        settings: SearchSettings | None = None,
    ) -> None:
        if len(row_indices) != len(arrays.codes):
            raise ValueError(
                f"the index has codes of {len(arrays.codes)} vectors, {len(row_indices)} are needed"
            )
        self.arrays, self.row_indices = arrays, row_indices
        self.settings = settings or SearchSettings()
        self._faiss = make_quantiser(arrays)
        self._faiss.add_sa_codes(arrays.codes, row_indices)

    @property
    def is_usable(self) -> bool:
        """Whether enough of the nearest vectors are found."""
        return self.settings.recall >= MIN_RECALL

    def find_candidates(
        self, query: Float[np.ndarray, " R"], count: int, allowed: Bool[np.ndarray, " N"] | None
    ) -> Int[np.ndarray, " K"]:
        """Rows among which the `count` rows with the largest product with the query probably are.

        `allowed` is for all rows of the table.
        """
        norm = float(np.linalg.norm(query))
        unit = query / norm if norm > 0 else query
        num_probes, selector = self.settings.num_probes, None
        if allowed is not None:
            fraction = allowed[self.row_indices].mean()
            num_probes = math.ceil(num_probes / max(float(fraction), 1e-6))
            selector = load_faiss().IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        number = count * self.settings.candidate_factor
        rows = self._search(self.arrays.project(unit[None]), number, num_probes, selector)
        return rows[rows >= 0]

    def select_settings(self, rows: VectorRows) -> None:
        """Use the fewest probes and candidates that reach the target recall, else the best."""
        rng = np.random.default_rng(0)
        number = min(NUM_QUERIES, len(self.row_indices))
        own = self.row_indices[np.sort(rng.choice(len(self.row_indices), number, replace=False))]
        queries = rows.normalise(np.asarray(rows.rows[own]))
        nearest = nearest_rows(rows, self.row_indices, queries, own)
        projected, num_lists = self.arrays.project(queries), len(self.arrays.centroids)
        probe_counts = [*takewhile(lambda n: n < num_lists, (2**k for k in count_up())), num_lists]
        self.settings = SearchSettings()
        for factor, num_probes in product(CANDIDATE_FACTORS, probe_counts):
            found = self._search(projected, (1 + NEIGHBOURS) * factor, num_probes)  # itself, too
            recall = float(
                np.mean([np.isin(*pair).mean() for pair in zip(nearest, found, strict=True)])
            )
            if recall > self.settings.recall:
                self.settings = SearchSettings(
                    num_probes=num_probes, candidate_factor=factor, recall=recall
                )
            if recall >= TARGET_RECALL:
                return

    def _search(
        self,
        projected: Float[np.ndarray, "Q K"],
        number: int,
        num_probes: int,
        selector: Any | None = None,
    ) -> Int[np.ndarray, "Q M"]:
        """The rows with the nearest codes in the nearest lists; -1 if there are fewer."""
        options = load_faiss().SearchParametersIVF(
            nprobe=min(num_probes, len(self.arrays.centroids)), sel=selector
        )
        number = min(number, len(self.row_indices))
        rows: Int[np.ndarray, "Q M"] = self._faiss.search(projected, number, params=options)[1]
        return rows


def build_index(rows: VectorRows, row_indices: Int[np.ndarray, " M"]) -> ApproximateIndex:
    """An index of some of the rows, with settings for the target recall."""
    arrays = train_arrays(rows, row_indices)
    codes = encode_rows(arrays, rows, row_indices)
    index = ApproximateIndex(replace(arrays, codes=codes), row_indices)
    index.select_settings(rows)
    return index


def train_arrays(rows: VectorRows, row_indices: Int[np.ndarray, " M"]) -> IndexArrays:
    """Components, lists and ranges of an index without codes, from samples of the rows."""
    faiss = load_faiss()
    rng = np.random.default_rng(0)

    def draw(count: int) -> Float[np.ndarray, "B R"]:
        number = min(count, len(row_indices))
        drawn = np.sort(rng.choice(len(row_indices), number, replace=False))
        return rows.normalise(np.asarray(rows.rows[row_indices[drawn]]))

    sample, width = draw(COMPONENT_SAMPLE), rows.rows.shape[1]
    num_components = min(NUM_COMPONENTS, width, len(sample))
    transform = faiss.PCAMatrix(width, num_components)
    transform.train(sample)
    components = faiss.vector_to_array(transform.A).reshape(num_components, width)
    arrays = IndexArrays(
        components=components,
        offset=faiss.vector_to_array(transform.b),
        centroids=np.zeros((count_lists(len(row_indices)), num_components), np.float32),
        ranges=np.zeros(2 * num_components, np.float32),
        codes=np.zeros((0, 0), np.uint8),
    )
    quantiser = make_quantiser(arrays, is_trained=False)
    quantiser.train(arrays.project(draw(LIST_SAMPLE * len(arrays.centroids))))
    centroids = quantiser.quantizer.reconstruct_n(0, len(arrays.centroids))
    return replace(arrays, centroids=centroids, ranges=faiss.vector_to_array(quantiser.sq.trained))


def encode_rows(
    arrays: IndexArrays, rows: VectorRows, row_indices: Int[np.ndarray, " M"]
) -> UInt8[np.ndarray, "M C"]:
    """The codes of some rows."""
    quantiser = make_quantiser(arrays)
    codes = [np.zeros((0, quantiser.sa_code_size()), np.uint8)]
    with bar("indexing vectors", len(row_indices), "vectors") as advance:
        for chunk in rows.chunks(len(row_indices)):
            vectors = rows.normalise(np.asarray(rows.rows[row_indices[chunk]]))
            codes.append(quantiser.sa_encode(arrays.project(vectors)))
            advance(len(vectors))
    return np.concatenate(codes)


def count_lists(num_rows: int) -> int:
    """The power of two next to the square root of the number of vectors."""
    return min(max(1 << round(math.log2(max(num_rows, 1)) / 2), 1), MAX_LISTS)


def make_quantiser(arrays: IndexArrays, *, is_trained: bool = True) -> Any:
    """An empty index of faiss."""
    faiss = load_faiss()
    num_lists, num_components = arrays.centroids.shape
    lists = faiss.IndexFlatL2(num_components)
    index = faiss.IndexIVFScalarQuantizer(
        lists, num_components, num_lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_L2, False
    )
    index.cp.seed, index.cp.min_points_per_centroid = 0, 1
    if is_trained:
        lists.add(np.ascontiguousarray(arrays.centroids))
        faiss.copy_array_to_vector(np.ascontiguousarray(arrays.ranges), index.sq.trained)
        index.is_trained = True
    return index


def nearest_rows(
    rows: VectorRows,
    row_indices: Int[np.ndarray, " M"],
    queries: Float[np.ndarray, "Q R"],
    own: Int[np.ndarray, " Q"],
) -> Int[np.ndarray, "Q T"]:
    """The nearest of the rows to each normalised query, without its own row; by comparing all."""
    count = min(NEIGHBOURS, len(row_indices) - 1)
    best_scores = np.full((len(queries), count), -np.inf, np.float32)
    best = np.zeros((len(queries), count), np.int64)
    for chunk in rows.chunks(len(row_indices)):
        indices = row_indices[chunk]
        scores = queries @ rows.normalise(np.asarray(rows.rows[indices])).T  # (Q, B)
        scores[own[:, None] == indices] = -np.inf
        scores = np.concatenate([best_scores, scores], axis=1)
        candidates = np.concatenate([best, np.tile(indices, (len(queries), 1))], axis=1)
        top = np.argpartition(-scores, max(count - 1, 0), axis=1)[:, :count]
        best_scores = np.take_along_axis(scores, top, axis=1)
        best = np.take_along_axis(candidates, top, axis=1)
    return best
