"""clipset inside a scikit-learn Pipeline."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from clipset.errors import VideoError
from clipset.inference.estimator import VideoEmbedder
from clipset.inference.run import TrainedRun


@pytest.mark.slow
def test_a_pipeline_takes_paths_and_gives_labels(trained: TrainedRun, run_folder: Path) -> None:
    train, test = trained.catalog.split("train"), trained.catalog.split("test")
    embedder = VideoEmbedder(run_folder, parts=("clip", "set"), workers=0)
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
