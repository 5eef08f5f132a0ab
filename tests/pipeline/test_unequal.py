"""Videos with unequal numbers of clips, and the official boxes, through the whole walk."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import SMALL, record_rows
from tests.features.test_own import OWN

from clipset.errors import StoreError
from clipset.evaluation.suite import run_suite
from clipset.features.store import FeatureStore, open_store
from clipset.inference.run import load_run
from clipset.model.config import ModelConfig
from clipset.pipeline import run
from clipset.probes.config import EvaluateConfig, ProbeTraining
from clipset.probes.task import make_task
from clipset.recipe import Recipe
from clipset.representation import embed_store, encode_clips, read_vectors
from clipset.representation.time_course import COURSE_LENGTH
from clipset.sets.batch import mean_over_clips
from clipset.sets.reading import read_clips
from clipset.training.config import PretrainConfig
from clipset.training.pretrain import pretrain

TINY = ModelConfig(width=32, num_layers=1, projection_hidden=(16, 16), projection_dim=8)
TRAINING = PretrainConfig(epochs=2, clips_per_set=3, validate_every=1, model=TINY)
PROBING = EvaluateConfig(
    num_seeds=1,
    mlp_hidden=16,
    training=ProbeTraining(epochs=2, num_clips=4, learning_rates=(0.003,)),
)


def test_a_model_of_official_boxes_embeds_new_videos_with_its_own_boxes(
    small_videos: Path, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    backbone = f"{tmp_path}/own.py:light"
    recipe = Recipe(
        extract=replace(SMALL, backbone=backbone, frames=None, stride=None, size=None),
        pretrain=replace(TRAINING, model=replace(TINY, box_coordinates="official")),
        evaluate=PROBING,
    )
    run(small_videos, tmp_path / "run", recipe)
    trained = load_run(tmp_path / "run", workers=0, backbone=backbone)
    table = read_vectors(trained.folder / "vectors")
    paths = {video.id: video.path for video in trained.catalog}
    some = [0, 7, 23]
    found = trained.embed([paths[table.video_ids[index]] for index in some])
    np.testing.assert_allclose(found.vectors, table.vectors[some], atol=1e-5)
    assert found.parts == table.parts
    assert found.ends == tuple(table.ends[index] for index in some)
    [guess] = trained.predict(paths[table.video_ids[0]], top=1, window=0.5)
    assert guess.label in trained.catalog.classes
    assert len(guess.timeline) > 1


def test_videos_with_unequal_counts_are_read_and_trained_on(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    folder = shutil.copytree(small_store.folder, tmp_path / "store")
    record_rows(folder, {1: {"random_count": 6, "regular_count": 3}})
    unequal, videos = open_store(folder), np.arange(24)
    clips = read_clips(unequal, "regular", videos)
    whole = read_clips(small_store, "regular", videos)
    assert clips.counts.tolist() == [4, 3] + [4] * 22
    assert clips.valid is not None
    assert torch.equal(clips.features[clips.valid], whole.features[clips.valid])
    more = read_clips(unequal, "random", videos).concat_clips(clips)
    assert more.counts.tolist() == [12, 9] + [12] * 22
    model = pretrain(unequal, tmp_path / "model", TRAINING)
    table = embed_store(unequal, model.encoder)
    dim = clips.features.shape[-1]
    assert table.vectors.shape == (24, 4, dim + TINY.width)
    assert table.valid is not None
    assert table.valid.sum(axis=1).tolist() == [4, 3] + [4] * 22
    assert table.pooled.shape == (24, (1 + COURSE_LENGTH) * (dim + TINY.width))
    by_paper = embed_store(unequal, model.encoder, parts=("clip", "set"))
    means = mean_over_clips(clips.features, clips.valid)
    np.testing.assert_allclose(by_paper.pooled[:, :dim], means, atol=1e-5)
    task = make_task(unequal, model=model.config)
    assert len(run_suite(task, model, PROBING).results) == len(PROBING.probes)
    other = replace(clips, features=clips.features[..., :6])
    with pytest.raises(StoreError, match=f"have 6 channels, the model takes {dim}"):
        encode_clips(model.encoder, other)
