"""The exported head predicts what the loop shows; the exported catalog can be read again."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from clipset.data.catalog import read_catalog_table, write_catalog
from clipset.errors import LabelError, ProbeError
from clipset.features.store import FeatureStore
from clipset.files import write_json
from clipset.inference.run import load_run
from clipset.labelling import LabelLoop
from clipset.model.config import ModelConfig
from clipset.representation import embed_store, write_vectors
from clipset.sets.reading import read_clips
from clipset.training.checkpoint import ScaleModel, save_model

SMALL_MODEL = ModelConfig(width=32, num_layers=1, projection_hidden=(16,), projection_dim=8)


def make_run(folder: Path, store: FeatureStore, *, has_model: bool, has_labels: bool) -> Path:
    """A run as `clipset run` leaves it, with an untrained model."""
    torch.manual_seed(0)
    model = ScaleModel(store.manifest.backbone.dim, SMALL_MODEL).eval() if has_model else None
    folder.mkdir()
    (folder / "store").symlink_to(store.folder)
    videos = store.catalog.videos
    if not has_labels:
        videos = tuple(type(v)(id=v.id, path=v.path) for v in videos)
    write_catalog(store.catalog.only(videos), folder / "catalog.csv")
    write_json(folder / "run.json", {"format": 1})
    if model is not None:
        save_model(model, model.card, folder / "model")
    table = embed_store(store, None if model is None else model.encoder)
    write_vectors(table, folder / "vectors")
    return folder


def true_labels(store: FeatureStore) -> list[str]:
    by_id = {video.id: video.label or "" for video in store.catalog}
    return [by_id[id] for id in store.ids]


@pytest.mark.parametrize("has_model", [True, False])
def test_predict_with_the_exported_head_gives_what_the_loop_shows(
    tmp_path: Path, small_store: FeatureStore, capsys: pytest.CaptureFixture[str], has_model: bool
) -> None:
    folder = make_run(tmp_path / "run", small_store, has_model=has_model, has_labels=not has_model)
    before, truth = (folder / "catalog.csv").read_bytes(), true_labels(small_store)
    loop = LabelLoop(folder)
    for video in range(0, 24, 2):
        loop.add(video, truth[video])
    exported, predictions = loop.export(), loop.predictions()
    assert (folder / "catalog.csv").read_bytes() == before
    assert exported.command == f"clipset predict VIDEOS --run {folder} --probe labels"
    run = load_run(folder, workers=0, probe=None if has_model else "labels")
    clips = read_clips(small_store, "regular", np.arange(24), run.architecture)
    probabilities, classes = run.head.predict(clips).max(dim=1)
    assert tuple(run.head.card.classes[index] for index in classes) == predictions.labels
    assert probabilities.tolist() == pytest.approx(list(predictions.confidences), abs=1e-4)
    if has_model:
        paths = {video.id: video.path for video in run.catalog}
        [result] = run.predict(paths[small_store.ids[5]])
        assert result.label == predictions.labels[5]
        assert result.probability == pytest.approx(predictions.confidences[5], abs=1e-4)
    assert "predicting with the head trained on 10 labels of the page" in capsys.readouterr().err


def test_the_runs_own_labels_come_first_unless_the_head_is_named(
    tmp_path: Path, small_store: FeatureStore
) -> None:
    folder = make_run(tmp_path / "run", small_store, has_model=False, has_labels=True)
    with pytest.raises(ProbeError, match=r"no head of labels .* label its videos with"):
        load_run(folder, probe="labels").head  # noqa: B018
    assert load_run(folder)._load_labels_head(has_labels=True) is None


def test_the_exported_catalog_has_both_labels_and_no_formulas(
    tmp_path: Path, small_store: FeatureStore
) -> None:
    folder = make_run(tmp_path / "run", small_store, has_model=False, has_labels=True)
    loop = LabelLoop(folder)
    with pytest.raises(LabelError, match="no labels to export"):
        loop.export()
    loop.add(3, "=HYPERLINK(1)")
    loop.add(4, "@sum", 0.1, 0.5)
    exported = loop.export()
    assert exported.head is None
    assert exported.command.startswith("clipset run ")
    text = exported.catalog.read_text()
    assert ",'=HYPERLINK(1)," in text
    labels = {video.id: video.label for video in read_catalog_table(exported.catalog)}
    truth = true_labels(small_store)
    truth[3] = "=HYPERLINK(1)"
    assert [labels[id] for id in small_store.ids] == truth
    assert exported.spans is not None
    with exported.spans.open(newline="") as file:
        assert list(csv.reader(file))[1] == [small_store.ids[4], "0.1", "0.5", "'@sum"]


def test_vectors_that_predict_does_not_make_are_refused(
    tmp_path: Path, small_store: FeatureStore
) -> None:
    folder = make_run(tmp_path / "run", small_store, has_model=True, has_labels=True)
    model = load_run(folder).model
    assert model is not None
    write_vectors(embed_store(small_store, model.encoder, parts=("set",)), folder / "vectors")
    loop = LabelLoop(folder)
    loop.add(0, "a")
    loop.add(1, "b")
    assert np.isfinite(loop.components.values).all()
    with pytest.raises(LabelError, match=r"parts set; a head needs clip,token"):
        loop.export()
