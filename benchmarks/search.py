"""Search in large collections: all vectors compared, and the approximate index.

The vectors are real: the clips of a store (`--store`), as principal components, repeated with noise
to the size that is measured. The noise of a component is a quarter of its deviation. Queries are
other repetitions, which are not among the vectors. Recall is that of the ten nearest by comparing
all. Times are of one query at a time: wall times, and CPU times of all threads. On a shared machine
the median CPU time says most: at rest, a query takes no longer than that.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from record import make_parser, write_record

from clipset.features.store import open_store
from clipset.progress import set_quiet
from clipset.retrieval.approximate import ApproximateIndex, nearest_rows
from clipset.retrieval.index import RankedRows, rank_rows
from clipset.retrieval.index_file import IndexedVideos, open_approximate
from clipset.retrieval.rows import QueryVector, VectorRows

NOISE = 0.25
CLIPS_PER_VIDEO = 8
COUNT = 10  # results of a query


def real_components(store: Path, width: int) -> np.ndarray:
    """The clips of a store as principal components."""
    opened = open_store(store)
    tables = (opened.random.features, opened.regular.features)
    features = np.concatenate([np.asarray(table, np.float32) for table in tables])
    if width > min(features.shape):
        raise SystemExit(f"the store has {features.shape}: too few for {width} components")
    _, directions = np.linalg.eigh(np.cov(features.T.astype(np.float64)))
    basis = directions[:, ::-1][:, :width].astype(np.float32)
    components: np.ndarray = features @ basis  # not centred: cosines stay those of the features
    return components


def repeat_with_noise(real: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of real vectors, each with noise of its own."""
    rows = np.empty((count, real.shape[1]), np.float32)
    scale = NOISE * real.std(axis=0)
    for low in range(0, count, 20_000):
        own = rows[low : low + 20_000]
        own[:] = real[rng.integers(0, len(real), len(own))]
        own += scale * rng.standard_normal(own.shape, np.float32)
    return rows


def measure(
    search: Callable[[QueryVector], RankedRows], queries: list[QueryVector]
) -> dict[str, float]:
    """The times of queries in milliseconds, after one that warms up."""
    search(queries[0])
    walls, cpus = [], []
    for query in queries:
        wall, cpu = time.perf_counter(), time.process_time()
        search(query)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    values = {
        "wall, fastest": min(walls),
        "wall, median": np.median(walls),
        "CPU, median": np.median(cpus),
        "CPU, p95": np.quantile(cpus, 0.95),
    }
    return {name: round(1e3 * float(value), 2) for name, value in values.items()}


def search_all(rows: VectorRows, query: QueryVector) -> RankedRows:
    """Compare all rows."""
    return rank_rows(np.arange(len(rows)), rows.scores(query), COUNT)


def search_index(rows: VectorRows, index: ApproximateIndex, query: QueryVector) -> RankedRows:
    """Compare the candidates of an index."""
    indices = np.sort(index.find_candidates(query.vector, COUNT, None))
    return rank_rows(indices, rows.scores(query, indices), COUNT)


def draw_queries(
    real: np.ndarray, rows: VectorRows, count: int, rng: np.random.Generator
) -> list[QueryVector]:
    vectors = rows.normalise(repeat_with_noise(real, count, rng))
    return [QueryVector(vector=vector) for vector in vectors]


def measure_exact(store: Path, count: int, width: int, seed: int) -> dict[str, object]:
    """The time of comparing all vectors."""
    rng, real = np.random.default_rng(seed), real_components(store, width)
    rows = VectorRows(rows=repeat_with_noise(real, count, rng), part_widths=(width,))
    queries = draw_queries(real, rows, 20, rng)
    return {"vectors": [count, width], "ms": measure(lambda q: search_all(rows, q), queries)}


def measure_approximate(store: Path, count: int, width: int, seed: int) -> dict[str, object]:
    """Building, opening and updating an index; its recall and its time next to the exact one."""
    rng, real = np.random.default_rng(seed), real_components(store, width)
    table = repeat_with_noise(real, count, rng)
    rows = VectorRows(rows=table, part_widths=(width,))
    queries = draw_queries(real, rows, 100, rng)
    valid = np.ones((count // CLIPS_PER_VIDEO, CLIPS_PER_VIDEO), np.bool_)
    seconds: dict[str, float] = {}

    def open_timed(name: str, path: Path, videos: IndexedVideos) -> ApproximateIndex:
        began = time.perf_counter()
        index = open_approximate(path, videos)
        seconds[name] = round(time.perf_counter() - began, 2)
        if index is None:
            raise SystemExit("the index has too low a recall to be used")
        return index

    with tempfile.TemporaryDirectory() as folder:
        path, fewer = Path(folder) / "index.safetensors", int(0.95 * len(valid))
        own = VectorRows(rows=table[: fewer * CLIPS_PER_VIDEO], part_widths=(width,))
        first = IndexedVideos(rows=own, valid=valid[:fewer], source="1")
        open_timed("build", path, first)
        every = IndexedVideos(rows=rows, valid=valid, source="2")
        open_timed("add 5 %", path, every)
        index = open_timed("open", path, every)
        size = path.stat().st_size
    vectors = np.stack([query.vector for query in queries])
    everything = np.arange(count)
    nearest = nearest_rows(rows, everything, vectors, np.full(len(vectors), -1))
    recalls = [
        np.isin(true, search_index(rows, index, query).indices).mean()
        for true, query in zip(nearest, queries, strict=True)
    ]
    return {
        "vectors": [count, width],
        "recall@10": round(float(np.mean(recalls)), 4),
        "recall@10 when the index was made": round(index.settings.recall, 4),
        "lists": len(index.arrays.centroids),
        "probes": index.settings.num_probes,
        "candidates": COUNT * index.settings.candidate_factor,
        "ms": measure(lambda q: search_index(rows, index, q), queries),
        "ms of comparing all": measure(lambda q: search_all(rows, q), queries[:10]),
        "seconds": seconds,
        "megabytes": round(size / 1e6),
    }


def main() -> None:
    parser = make_parser("search", __doc__)
    parser.add_argument("--store", type=Path, required=True, help="a store of real videos")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of vectors")
    arguments = parser.parse_args()
    set_quiet(True)
    store, seed = arguments.store, arguments.seed
    exact = measure_exact(store, round(240_000 * arguments.scale), 1024, seed)
    print(exact)
    approximate = measure_approximate(store, round(1_000_000 * arguments.scale), 256, seed)
    figures: dict[str, object] = {
        "videos of the store": len(open_store(store)),
        "noise": NOISE,
        "seed": seed,
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "load average at the end": round(os.getloadavg()[0], 1),
        "exact": exact,
        "approximate": approximate,
    }
    write_record(arguments.out, "search", ratios={}, figures=figures)


if __name__ == "__main__":
    main()
