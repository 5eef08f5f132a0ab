"""Clips that stay in their store give what clips in memory give."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import record_rows
from torch import Generator

from clipset.data.catalog import Catalog, Video
from clipset.evaluation.suite import run_suite
from clipset.features.importers import import_features
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.model.knn import most_similar
from clipset.probes import search
from clipset.probes.config import EvaluateConfig, ProbeTraining
from clipset.probes.registry import PROBES, probe_key
from clipset.probes.search import split_by_memory
from clipset.probes.task import EvaluationTask, make_task
from clipset.sets import stored_clips as clips_module
from clipset.sets.batch import ClipBatch
from clipset.sets.reading import read_clips
from clipset.sets.stored_clips import StoredClips, concat_clips, equal_chunks
from clipset.training.checkpoint import ScaleModel

NUM_VIDEOS, NUM_CLIPS, DIM = 120, 8, 12
TRAINING = ProbeTraining(
    epochs=3, batch_sizes=(16,), num_clips=4, learning_rates=(3e-3,), encoder_lr_scales=(1.0,),
    head_learning_rates=(1e-2, 3e-2),
)  # fmt: skip
QUICK = EvaluateConfig(num_seeds=1, mlp_hidden=16, training=TRAINING)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    folder = tmp_path_factory.mktemp("streamed")
    rng = np.random.default_rng(0)
    class_means = rng.standard_normal((4, DIM))
    videos = []
    for number in range(NUM_VIDEOS):
        features = 0.7 * class_means[number % 4] + rng.standard_normal((NUM_CLIPS, DIM))
        path = folder / "features" / f"{number}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, features.astype(np.float32))
        split = "train" if number < 80 else "test"
        videos.append(Video(id=str(number), path=path, label="abcd"[number % 4], split=split))
    return import_features(
        folder / "features", folder / "store", Catalog(name="made up", videos=tuple(videos))
    )


@pytest.fixture(scope="module")
def unequal_store(store: FeatureStore, tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    """The same videos; some have fewer clips."""
    folder = shutil.copytree(store.folder, tmp_path_factory.mktemp("unequal") / "store")
    fewer = {"random_count": 6, "regular_count": 5}
    record_rows(folder, dict.fromkeys(range(1, 100, 4), fewer))
    return FeatureStore(folder)


def make_model() -> ScaleModel:
    torch.manual_seed(0)
    config = ModelConfig(width=32, num_layers=1, projection_hidden=(16, 16), projection_dim=8)
    return ScaleModel(DIM, config).eval()


def both_tasks(
    store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> tuple[EvaluationTask, EvaluationTask]:
    in_memory = make_task(store)
    monkeypatch.setattr(clips_module, "MEMORY_LIMIT", 0)
    streamed = make_task(store)
    assert isinstance(in_memory.train.random, ClipBatch)
    assert isinstance(streamed.train.random, StoredClips)
    return in_memory, streamed


@pytest.mark.slow
@pytest.mark.parametrize("clips", ["random", "all"])
@pytest.mark.parametrize("fixture", ["store", "unequal_store"])
def test_every_probe_gives_the_same_from_memory_and_from_the_store(
    fixture: str, clips: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: FeatureStore = request.getfixturevalue(fixture)
    test_clips: Any = "regular" if clips == "random" else "all"
    config = replace(QUICK, test_clips=test_clips, training=replace(TRAINING, train_clips=clips))
    one, two = (
        run_suite(task, make_model(), config, probes=tuple(PROBES))
        for task in both_tasks(store, monkeypatch)
    )
    for name in PROBES:
        key = probe_key(name)
        outputs = [suite.predictions.outputs[key] for suite in (one, two)]
        np.testing.assert_allclose(*outputs, atol=1e-5, rtol=0, err_msg=name)
    for ours, theirs in zip(one.results, two.results, strict=True):
        assert ours.settings == theirs.settings
        assert ours.value == theirs.value


def test_a_view_reads_what_reading_at_once_gives(store: FeatureStore) -> None:
    videos = np.array([5, 3, 60, 7])
    view, batch = StoredClips(store, ("random",), videos), read_clips(store, "random", videos)
    some = torch.tensor([2, 0])
    assert torch.equal(view.select(some).read(slice(None)).features, batch.features[some])
    assert torch.equal(view.read(some).boxes, batch.boxes[some])
    assert (len(view), view.num_clips, view.dim) == (4, NUM_CLIPS, DIM)
    both = concat_clips(view, StoredClips(store, ("regular",), videos))
    regular = read_clips(store, "regular", videos)
    assert torch.equal(both.read(slice(None)).features, batch.concat_clips(regular).features)


def test_videos_with_fewer_clips_are_padded_as_in_memory(unequal_store: FeatureStore) -> None:
    videos = np.arange(len(unequal_store))
    view, batch = (
        StoredClips(unequal_store, ("random",), videos),
        read_clips(unequal_store, "random", videos),
    )
    assert view.valid is not None
    assert torch.equal(view.valid, batch.valid_mask)
    for clips in (view.read(slice(None)), view.select(torch.arange(len(videos))).read(slice(None))):
        assert torch.equal(clips.features, batch.features)
        assert torch.equal(clips.valid_mask, batch.valid_mask)
    for (index, ours), (same, theirs) in zip(
        equal_chunks(view, 3), equal_chunks(batch, 3), strict=True
    ):
        assert torch.equal(index, same)
        assert ours.valid is None
        assert torch.equal(ours.features, theirs.features)


def test_candidates_are_trained_in_groups_that_fit_the_memory(
    store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert split_by_memory([3, 3, 3, 9, 1], limit=6) == [[0, 1], [2], [3], [4]]
    assert split_by_memory([1, 1], limit=6) == [[0, 1]]
    task = make_task(store)
    together = run_suite(task, None, QUICK, probes=("linear",))
    groups: list[int] = []
    original = search.split_by_memory

    def count_groups(num_bytes: Any) -> list[list[int]]:
        found = original(num_bytes, limit=2 * max(num_bytes))
        groups.append(len(found))
        return found

    monkeypatch.setattr("clipset.probes.base.split_by_memory", count_groups)
    apart = run_suite(task, None, QUICK, probes=("linear",))
    assert groups == [4]
    assert together.results[0].settings == apart.results[0].settings
    outputs = [s.predictions.outputs[probe_key("linear")] for s in (together, apart)]
    np.testing.assert_allclose(*outputs, atol=1e-5, rtol=0)


def test_neighbours_are_the_same_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = torch.randn(50, 6, generator=Generator().manual_seed(0))
    at_once = most_similar(vectors, vectors[:7], k=5)
    monkeypatch.setattr("clipset.model.knn.BLOCK_NUMBERS", 8 * 6)
    indices, cosines = most_similar(vectors, vectors[:7], k=5)
    assert torch.equal(indices, at_once[0])
    torch.testing.assert_close(cosines, at_once[1])
