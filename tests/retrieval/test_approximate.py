"""The approximate index finds nearly what comparing all vectors finds, and follows its vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.retrieval.conftest import make_run

from clipset.checksums import find_damage
from clipset.representation import VectorTable, read_vectors, write_vectors
from clipset.retrieval import SearchIndex, approximate, index_file, open_index
from clipset.retrieval import index as index_module
from clipset.retrieval.approximate import MIN_RECALL, build_index, nearest_rows
from clipset.retrieval.index_file import IndexedVideos, open_approximate, read_index
from clipset.retrieval.rows import QueryVector, VectorRows

pytest.importorskip("faiss")


def clustered(num_rows: int, width: int = 24, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(1).normal(size=(30, width))
    rows = centres[rng.integers(0, 30, num_rows)] + 0.7 * rng.normal(size=(num_rows, width))
    return rows.astype(np.float32)


def videos_of(vectors: np.ndarray, clips: int = 4, source: str = "first") -> IndexedVideos:
    """Videos of some clips each; the last clip of each third one is padding."""
    valid = np.ones((len(vectors) // clips, clips), bool)
    valid[::3, -1] = False
    vectors = vectors.copy()
    vectors[~valid.ravel()] = 0
    rows = VectorRows(rows=vectors, part_widths=(8, vectors.shape[1] - 8))
    return IndexedVideos(rows=rows, valid=valid, source=source)


def measured_recall(
    index: approximate.ApproximateIndex, rows: VectorRows, allowed: np.ndarray
) -> float:
    """The fraction of the ten best rows that are candidates, by a loop over queries."""
    found = []
    for row in index.row_indices[::97]:
        vector = rows.normalise(rows.rows[row] + rows.rows[row + 1])
        scores = rows.scores(QueryVector(vector=vector))
        scores[~allowed] = -np.inf
        best = np.argsort(-scores)[:10]
        candidates = index.find_candidates(vector, 10, allowed)
        assert allowed[candidates].all()
        found.append(np.isin(best, candidates).mean())
    return float(np.mean(found))


def test_the_nearest_rows_are_found_with_and_without_a_filter() -> None:
    videos = videos_of(clustered(8000))
    index = build_index(videos.rows, videos.row_indices)
    assert index.settings.recall >= approximate.TARGET_RECALL
    assert index.settings.num_probes < len(index.arrays.centroids)
    assert measured_recall(index, videos.rows, videos.valid.ravel()) > 0.9
    few = videos.valid.ravel() & (np.arange(8000) % 50 == 0)
    assert measured_recall(index, videos.rows, few) > 0.9


def test_the_neighbours_that_recall_is_measured_with_are_the_true_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clipset.retrieval.rows.CHUNK_BYTES", 1000)  # several chunks
    videos = videos_of(clustered(300))
    rows, own = videos.rows, videos.row_indices[:5]
    queries = rows.normalise(rows.rows[own])
    found = nearest_rows(rows, videos.row_indices, queries, own)
    for query, row, nearest in zip(queries, own, found, strict=True):
        scores = {int(i): float(query @ rows.normalise(rows.rows[i])) for i in videos.row_indices}
        del scores[int(row)]
        assert set(nearest.tolist()) == set(sorted(scores, key=lambda i: -scores[i])[:10])


def test_vectors_without_any_structure_are_not_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximate, "NUM_COMPONENTS", 2)
    monkeypatch.setattr(approximate, "CANDIDATE_FACTORS", (1,))
    rows = np.random.default_rng(0).normal(size=(4000, 64)).astype(np.float32)
    videos = videos_of(rows)
    index = build_index(videos.rows, videos.row_indices)
    assert index.settings.recall < MIN_RECALL
    assert not index.is_usable


def test_an_index_is_kept_in_a_file_and_read_without_building_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, videos = tmp_path / "index.safetensors", videos_of(clustered(4000))
    first = open_approximate(path, videos)
    assert first is not None
    assert find_damage(path) is None
    monkeypatch.setattr(index_file, "build_index", None)
    again = open_approximate(path, videos)
    assert again is not None
    assert again.settings == first.settings
    query = videos.rows.normalise(videos.rows.rows[5])
    assert again.find_candidates(query, 10, None).tolist() == (
        first.find_candidates(query, 10, None).tolist()
    )


def test_added_and_removed_videos_change_the_index_without_building_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, vectors = tmp_path / "index.safetensors", clustered(4960)
    assert open_approximate(path, videos_of(vectors[:4000])) is not None
    encoded: list[int] = []

    def encode_rows(arrays: object, rows: object, indices: np.ndarray) -> np.ndarray:
        encoded.append(len(indices))
        return approximate.encode_rows(arrays, rows, indices)  # type: ignore[arg-type]

    monkeypatch.setattr(index_file, "build_index", None)
    monkeypatch.setattr(index_file, "encode_rows", encode_rows)
    order = np.concatenate([np.arange(4000, 4960), np.arange(1200, 4000)])  # new ones come first
    videos = videos_of(vectors[order], source="second")
    index = open_approximate(path, videos)
    assert index is not None
    assert 0 < encoded[0] < 1000
    rebuilt = build_index(videos.rows, videos.row_indices)
    assert index.settings.recall > 0.95
    assert measured_recall(index, videos.rows, videos.valid.ravel()) > 0.9
    assert len(index.row_indices) == len(rebuilt.row_indices)
    stored = read_index(path)
    assert stored is not None
    assert stored.source == "second"


@pytest.mark.parametrize("change", ["other vectors", "damaged", "other format", "wrong counts"])
def test_an_index_that_does_not_fit_is_built_again(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, videos = tmp_path / "index.safetensors", videos_of(clustered(2000))
    index = open_approximate(path, videos)
    assert index is not None
    if change == "other vectors":
        videos = videos_of(clustered(2000, seed=9), source="second")
    elif change == "damaged":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    elif change == "other format":
        monkeypatch.setattr(index_file, "FORMAT", "2")
    else:
        fewer = replace(videos, valid=np.ones_like(videos.valid))
        vars(fewer)["keys"] = videos.keys
        index_file.write_index(path, index, fewer)
    built = []

    def build(rows: VectorRows, indices: np.ndarray) -> approximate.ApproximateIndex:
        built.append(len(indices))
        return build_index(rows, indices)

    monkeypatch.setattr(index_file, "build_index", build)
    assert open_approximate(path, videos) is not None
    assert built == [len(videos.row_indices)]


def test_codes_of_a_stranger_raise_no_more_than_an_error_of_ours(tmp_path: Path) -> None:
    path, videos = tmp_path / "index.safetensors", videos_of(clustered(2000))
    index = open_approximate(path, videos)
    assert index is not None
    codes = index.arrays.codes.copy()
    codes[:, 0] = 255  # a list that does not exist
    index.arrays = replace(index.arrays, codes=codes)
    index_file.write_index(path, index, videos)
    again = open_approximate(path, videos)  # is built anew
    assert again is not None
    assert again.arrays.codes[:, 0].max() < len(again.arrays.centroids)


@pytest.fixture
def large_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that counts as large."""
    monkeypatch.setattr(index_module, "EXACT_BYTES", 1000)
    monkeypatch.setattr(index_module, "FEW_BYTES", 1000)
    return make_run(tmp_path / "run", 60)


def test_a_large_collection_is_searched_by_an_index_beside_its_vectors(large_run: Path) -> None:
    index = open_index(large_run)
    query = [index.moment_example(3, 2.0, 3.0)]
    exact = {unit: index.search(query, unit=unit, limit=5) for unit in ("video", "moment")}
    assert all(result.is_exact for result in exact.values())
    for kind in ("videos", "clips"):
        index.prepare(kind)
        assert (large_run / "vectors" / f"index-{kind}.safetensors").is_file()
    for unit, result in exact.items():
        approximate_result = index.search(query, unit=unit, limit=5)
        assert not approximate_result.is_exact
        same = {(hit.video_index, hit.start) for hit in approximate_result.hits}
        assert len(same & {(hit.video_index, hit.start) for hit in result.hits}) >= 4
    by_video = index.search([index.video_example(7)], limit=5)
    assert not by_video.is_exact
    assert [hit.score for hit in by_video.hits] == sorted(
        (hit.score for hit in by_video.hits), reverse=True
    )
    assert (
        len(index.search(query, limit=60).hits) == 59
    )  # nothing is missing when all are asked for


def test_without_faiss_all_vectors_are_compared_and_a_line_says_so(
    large_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(index_module, "import_faiss", lambda: None)
    index = open_index(large_run)
    index.prepare("clips")
    assert "pip install 'clipset[search]'" in capsys.readouterr().err
    assert index.search([index.moment_example(3, 2.0, 3.0)]).is_exact
    assert not list((large_run / "vectors").glob("index-*"))


def test_a_small_collection_has_no_index(index: SearchIndex, collection: Path) -> None:
    index.prepare("clips")
    assert not list((collection / "vectors").glob("index-*"))


def test_vectors_that_are_written_anew_are_indexed_anew(large_run: Path) -> None:
    first = open_index(large_run)
    first.prepare("videos")
    path = large_run / "vectors" / "index-videos.safetensors"
    before = read_index(path)
    table: VectorTable = read_vectors(large_run / "vectors")
    changed = replace(table, vectors=np.asarray(table.vectors)[:, :, ::-1].copy())
    write_vectors(changed, large_run / "vectors")
    second = open_index(large_run)
    second.prepare("videos")
    after = read_index(path)
    assert before is not None
    assert after is not None
    assert before.source != after.source
