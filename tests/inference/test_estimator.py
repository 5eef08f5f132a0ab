"""clipset inside a scikit-learn Pipeline."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from clipset.errors import VideoError
from clipset.inference.estimator import ScaleFeatures, VideoEmbedder
from clipset.inference.run import TrainedRun

QUICK = ScaleFeatures(clips=1, width=32, layers=1, epochs=1, random_state=0)


NOT_KEPT = {
    "check_do_not_raise_errors_in_init_or_set_params": (
        "the tests check every annotation at run time, so a wrong type is refused in __init__, too"
    )
}


@parametrize_with_checks([QUICK], expected_failed_checks=lambda _: NOT_KEPT)
def test_scikit_learn_finds_its_contract_kept(estimator: Any, check: Any) -> None:
    check(estimator)


def made_up(videos: int, clips: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Videos whose class is the order of two events: no single clip tells it."""
    rng = np.random.default_rng(seed)
    classes = np.arange(videos) % 2
    features = rng.normal(0, 0.3, (videos, clips, 5))
    for video, kind in enumerate(classes):
        first, second = sorted(rng.choice(clips, 2, replace=False))
        features[video, first, kind] += 4
        features[video, second, 1 - kind] += 4
    return features.reshape(videos, -1), classes


def test_clip_features_become_vectors_of_videos() -> None:
    X, _ = made_up(40, 8, seed=0)
    features = ScaleFeatures(clips=8, width=32, layers=1, epochs=3, clips_per_set=4, random_state=0)
    vectors = features.fit_transform(X)
    assert vectors.shape == (40, 5 + 32)
    assert len(features.get_feature_names_out()) == 37
    np.testing.assert_array_equal(vectors, clone(features).fit_transform(X))


def test_the_first_columns_are_the_mean_of_the_standardised_features() -> None:
    X, _ = made_up(40, 8, seed=0)
    features = ScaleFeatures(clips=8, width=32, layers=1, epochs=1, clips_per_set=4, random_state=0)
    rows = X.reshape(40, 8, 5)
    flat = rows.reshape(-1, 5)
    expected = ((rows - flat.mean(axis=0)) / flat.std(axis=0)).mean(axis=1)
    np.testing.assert_allclose(features.fit_transform(X)[:, :5], expected, atol=1e-5)


def test_where_clips_are_can_be_said() -> None:
    X, _ = made_up(20, 8, seed=0)
    rows = X.reshape(20, 8, 5)
    start = np.broadcast_to(np.arange(8)[None, :, None] / 8, (20, 8, 1))
    low, high = np.zeros_like(start), np.ones_like(start)
    told = np.concatenate([rows, low, low, start, high, high, start + 1 / 8], axis=2)
    options = {"clips": 8, "width": 32, "layers": 1, "epochs": 2, "random_state": 0}
    plain = ScaleFeatures(**options).fit_transform(X)
    same = ScaleFeatures(**options, boxes=True).fit_transform(told.reshape(20, -1))
    np.testing.assert_allclose(same, plain, atol=1e-5)


def test_a_number_of_columns_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="X has 40 features, which are not 7 clips of one width"):
        ScaleFeatures(clips=7).fit(np.zeros((4, 40)))
    with pytest.raises(ValueError, match="6 of them are its box"):
        ScaleFeatures(clips=8, boxes=True).fit(np.zeros((4, 40)))


def test_features_work_in_a_pipeline() -> None:
    X, y = made_up(60, 8, seed=1)
    scale = ScaleFeatures(clips=8, width=32, layers=1, epochs=5, clips_per_set=4, random_state=0)
    pipeline = make_pipeline(scale, StandardScaler(), LogisticRegression())
    assert pipeline.fit(X, y).predict(X).shape == (60,)


def test_a_pipeline_takes_paths_and_gives_labels(trained: TrainedRun, run_folder: Path) -> None:
    train, test = trained.catalog.split("train"), trained.catalog.split("test")
    embedder = VideoEmbedder(run_folder, workers=0)
    pipeline = make_pipeline(embedder, StandardScaler(), LogisticRegression())
    pipeline.fit([str(v.path) for v in train], [v.label for v in train])
    right = pipeline.score([v.path for v in test], [v.label for v in test])
    assert right == 1


def test_rows_follow_the_paths_even_twice(trained: TrainedRun, run_folder: Path) -> None:
    one, two = (str(video.path) for video in trained.catalog.videos[:2])
    embedder = VideoEmbedder(str(run_folder), parts=("set",), workers=0)
    found = embedder.transform(np.array([two, one, two]))
    assert found.shape == (3, 32)
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_allclose(found[1], trained.embed([one], parts=("set",)).pooled[0], atol=1e-6)


def test_an_embedder_is_cloned_and_pickled_without_its_backbone(
    trained: TrainedRun, run_folder: Path
) -> None:
    path = [str(trained.catalog.videos[0].path)]
    embedder = VideoEmbedder(str(run_folder), workers=0)
    before = embedder.transform(path)
    packed = pickle.dumps(embedder)
    assert len(packed) < 2000
    for other in (clone(embedder), pickle.loads(packed)):  # noqa: S301
        np.testing.assert_array_equal(other.fit(path).transform(path), before)


def test_an_unreadable_video_in_x_is_named(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"nothing")
    with pytest.raises(VideoError, match=r"bad\.mp4"):
        VideoEmbedder(str(run_folder), workers=0).transform([tmp_path / "bad.mp4"])
