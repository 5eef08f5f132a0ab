"""Several backbones of one store through the whole walk: alone, side by side, as one mixed set."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import SMALL
from tests.features.test_several import OWN

from clipset.clips.config import Sampling
from clipset.data.catalog import read_catalog
from clipset.errors import StoreError, TrainingError
from clipset.evaluation.config import FitConfig, ProbeConfig
from clipset.evaluation.low_shot import run_low_shot
from clipset.evaluation.suite import ALL_ROWS, ROWS, run_probes
from clipset.evaluation.task import make_task
from clipset.features.config import ExtractConfig
from clipset.features.extract import extract
from clipset.features.ledger import Entry, Ledger
from clipset.features.store import FeatureStore, open_store
from clipset.inference.run import TrainedRun, load_run
from clipset.model.config import ModelConfig
from clipset.pipeline import run
from clipset.recipe import Recipe, load_settings
from clipset.representation import embed_store, read_vectors
from clipset.sets.batch import clip_statistics, mean_over_clips
from clipset.sets.reading import reader_for
from clipset.sets.sampling import draw_set_pair, draw_subset
from clipset.training.checkpoint import read_card
from clipset.training.config import PretrainConfig
from clipset.training.data import ClipSource
from clipset.training.distributed import ProcessGroup
from clipset.training.pretrain import pretrain

SHAPE = {"width": 32, "layers": 1, "head_width": 16, "projected": 8}
TINY = ModelConfig(**SHAPE)
LIGHT, COLOURS = 8, 6  # widths of the two backbones' features
WIDTHS = {"": LIGHT, "colours": COLOURS, "light+colours": 14, "colours,light": 14}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> ExtractConfig:
    """Two tiny backbones that differ in frames and size."""
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN)
    names = f"{path}:light,{path}:colours"
    return replace(SMALL, backbone=names, frames=None, stride=None, size=None)


@pytest.fixture(scope="module")
def store(
    two: ExtractConfig, small_store: FeatureStore, tmp_path_factory: pytest.TempPathFactory
) -> FeatureStore:
    folder = tmp_path_factory.mktemp("two") / "store"
    return extract(small_store.catalog, folder, two)


def recipe_for(two: ExtractConfig, features: str, **changes: object) -> Recipe:
    return Recipe(
        extract=two,
        pretrain=load_settings(
            PretrainConfig, epochs=2, min_steps=1, clips_per_set=4, validate_every=1,
            model={**SHAPE, "features": features}, **changes,
        ),
        probe=ProbeConfig(
            seeds=1, mlp_hidden=16, fit=FitConfig(epochs=2, clips=4, rates=(0.003,)),
        ),
    )  # fmt: skip


def assert_embeds_its_own_videos(run: TrainedRun) -> None:
    table = read_vectors(run.folder / "representation")
    paths = {video.id: video.path for video in run.catalog}
    wanted = [0, 7, 23]
    found = run.embed([paths[table.video_ids[place]] for place in wanted])
    np.testing.assert_allclose(found.vectors, table.vectors[wanted], atol=1e-5)
    assert found.parts == table.parts
    assert found.ends == tuple(table.ends[place] for place in wanted)
    [guess] = run.predict(paths[table.video_ids[0]], top=1, window=0.5)
    assert guess.label in run.catalog.classes
    assert len(guess.timeline) > 1


@pytest.mark.parametrize("features", WIDTHS)
def test_new_videos_are_seen_as_the_walk_saw_its_own(
    features: str, two: ExtractConfig, small_videos: Path, tmp_path: Path
) -> None:
    summary = run(small_videos, tmp_path / "run", recipe_for(two, features))
    assert len(summary.records) == len(ROWS)
    card = read_card(tmp_path / "run" / "model")
    mixed = "," in features
    assert card.model.dims == ((COLOURS, LIGHT) if mixed else ())
    assert card.dim == (LIGHT if mixed else WIDTHS[features])
    names = [spec["name"] for spec in (card.backbone, *card.others)]
    assert names == (features.replace("+", ",").split(",") if features else ["light"])
    table = read_vectors(tmp_path / "run" / "representation")
    assert table.vectors.shape == (24, 4, WIDTHS[features] + TINY.width)
    assert_embeds_its_own_videos(load_run(tmp_path / "run", workers=0, backbone=two.backbone))


def test_the_official_preset_embeds_new_videos_with_its_own_boxes(
    two: ExtractConfig, small_videos: Path, tmp_path: Path
) -> None:
    recipe = recipe_for(two, "colours,light", preset="official")
    assert recipe.pretrain.model.box_numbers == 7
    run(small_videos, tmp_path / "run", recipe)
    assert_embeds_its_own_videos(load_run(tmp_path / "run", workers=0, backbone=two.backbone))


def test_every_row_and_the_low_shot_curve_work_on_a_mixed_set(
    store: FeatureStore, tmp_path: Path
) -> None:
    config = recipe_for(ExtractConfig(), "colours,light").pretrain
    model = pretrain(store, tmp_path / "model", config)
    fit = FitConfig(epochs=2, clips=4, rates=(0.003,), regular_too=True)
    probing = ProbeConfig(seeds=1, mlp_hidden=16, fit=fit)
    problem = make_task(store, model=model.config)
    results = run_probes(problem, model, probing, rows=ALL_ROWS)
    assert [(each.features, each.probe) for each in results] == list(ALL_ROWS)
    assert len(run_probes(problem, None, probing, rows=(("backbone", "transformer"),))) == 1
    curves = run_low_shot(store, None, model, probing, fractions=(1.0,))
    assert len(curves) == 4
    side_by_side = make_task(store, model=replace(TINY, features="colours+light"))
    for row in (("backbone", "knn"), ("backbone", "ordered")):
        one, two = (
            run_probes(each, None, probing, rows=(row,)) for each in (problem, side_by_side)
        )
        assert one[0].value == two[0].value  # a backbone's rows see the same features


def test_windows_of_a_mixed_set_are_represented(store: FeatureStore, tmp_path: Path) -> None:
    config = recipe_for(ExtractConfig(), "light,colours").pretrain
    encoder = pretrain(store, tmp_path / "model", config).encoder
    table = embed_store(store, encoder, parts=("clip", "token", "set"), window=0.7)
    usual = embed_store(store, encoder, parts=("clip", "token", "set"))
    assert table.vectors.shape[2] == 14 + 3 * TINY.width
    wholes = [place for place, window in enumerate(table.windows) if window is None]
    np.testing.assert_allclose(table.vectors[wholes, 0], usual.pooled, atol=1e-5)
    assert len(wholes) < len(table.windows)


def test_two_mixed_sets_share_no_clip_in_any_backbone(store: FeatureStore) -> None:
    clips = reader_for(store, ModelConfig(features="light,colours"))("random", np.arange(24))
    pair = draw_set_pair(clips, 4, 0.25, torch.Generator().manual_seed(0))
    assert pair.features.shape == (2, 24, 8, LIGHT)
    assert pair.sources is not None
    assert (pair.sources.view(2, 24, 2, 4) == torch.tensor([0, 1])[:, None]).all()
    assert torch.equal(pair.boxes[:, :, :4], pair.boxes[:, :, 4:])  # the same clips in both
    one, two = (set(map(tuple, each.flatten(0, 1).tolist())) for each in pair.boxes)
    assert not one & two
    assert (pair.masked.sum(dim=2) == 2).all()
    apart = pair.masked.view(2, 24, 2, 4)
    assert (apart[:, :, 0] != apart[:, :, 1]).any()  # hidden here, seen through the other backbone
    subset = draw_subset(clips, 3, torch.Generator().manual_seed(0))
    assert subset.side_by_side.features.shape == (24, 3, 14)


def test_each_backbone_of_a_mixed_set_is_standardised_by_its_own_statistics(
    store: FeatureStore,
) -> None:
    videos = np.arange(24)
    for in_memory in (True, False):
        source = ClipSource(
            store, videos, ModelConfig(features="light,colours"), in_memory=in_memory
        )
        assert source.mean.shape == (2, LIGHT)
        for number, name in enumerate(("light", "colours")):
            alone = ClipSource(store, videos, ModelConfig(features=name))
            width = alone.dim
            torch.testing.assert_close(source.mean[number, :width], alone.mean)
            torch.testing.assert_close(source.std[number, :width], alone.std)
            assert not source.mean[number, width:].any()
    clips = reader_for(store, ModelConfig(features="light,colours"))("random", videos)
    mean, std = clip_statistics(clips)
    torch.testing.assert_close((mean, std), (source.mean, source.std))


def test_streamed_batches_of_a_mixed_set_are_those_in_memory(store: FeatureStore) -> None:
    config = recipe_for(ExtractConfig(), "light,colours").pretrain
    found = []
    for in_memory in (True, False):
        source = ClipSource(store, np.arange(24), config.model, in_memory=in_memory)
        generator = torch.Generator().manual_seed(1)
        [(_, pair)] = source.batches(config, generator, ProcessGroup(0, 1, torch.device("cpu")))
        found.append(pair)
    assert torch.equal(found[0].features, found[1].features)
    assert found[0].features.shape == (2, 24, 8, LIGHT)


def test_a_mixed_set_of_videos_with_unequal_counts_is_read_and_trained_on(
    store: FeatureStore, tmp_path: Path
) -> None:
    folder = shutil.copytree(store.folder, tmp_path / "store")
    ledger = Ledger(folder / "ledger.sqlite")
    entry: Entry = ledger.entries()[1]
    fewer = {"random_count": 6, "regular_count": 3}
    ledger.write([Entry(**{n: getattr(entry, n) for n in Entry.__slots__} | fewer)])
    ledger.close()
    unequal = open_store(folder)
    shape = ModelConfig(features="light,colours")
    clips = reader_for(unequal, shape)("regular", np.arange(24))
    whole = reader_for(store, shape)("regular", np.arange(24))
    assert clips.counts.tolist() == [8, 6] + [8] * 22
    assert clips.valid is not None
    assert torch.equal(clips.features[clips.valid], whole.features[clips.valid])
    assert clips.side_by_side.counts.tolist() == [4, 3] + [4] * 22
    more = reader_for(unequal, shape)("random", np.arange(24)).followed_by(clips)
    assert more.side_by_side.counts.tolist() == [12, 9] + [12] * 22
    config = replace(recipe_for(ExtractConfig(), "light,colours").pretrain, clips_per_set=3)
    model = pretrain(unequal, tmp_path / "model", config)
    table = embed_store(unequal, model.encoder)
    assert table.vectors.shape == (24, 4, 14 + TINY.width)
    assert table.valid is not None
    assert table.valid.sum(axis=1).tolist() == [4, 3] + [4] * 22
    standard = model.encoder.standardise(clips.features, clips.sources)
    seen = replace(clips, features=standard).side_by_side
    means = mean_over_clips(seen.features, seen.valid)
    np.testing.assert_allclose(table.pooled[:, :14], means, atol=1e-5)
    problem = make_task(unequal, model=model.config)
    assert len(run_probes(problem, model, recipe_for(ExtractConfig(), "").probe)) == len(ROWS)


def test_time_bins_are_learned_from_as_clips(small_videos: Path, tmp_path: Path) -> None:
    config = replace(
        SMALL, frames=4, time_bins=2, sampling=Sampling(num_clips=4, num_times=2, num_crops=1)
    )
    model = replace(TINY, bins_as_clips=True)
    few = read_catalog(small_videos)
    recipe = recipe_for(config, "")
    recipe = replace(
        recipe, pretrain=replace(recipe.pretrain, validate_every=0, model=model), extract=config
    )
    catalog = few.only(few.videos[::3])
    run(catalog, tmp_path / "run", recipe)
    trained = load_run(tmp_path / "run", workers=0)
    table = read_vectors(tmp_path / "run" / "representation")
    assert table.vectors.shape == (8, 4, 1280 + TINY.width)  # 2 clips of 2 bins
    found = trained.embed([catalog.videos[0].path])
    place = table.video_ids.index(catalog.videos[0].id)
    np.testing.assert_allclose(found.vectors[0], table.vectors[place], atol=1e-5)


def test_what_a_store_does_not_have_is_refused_before_any_work(
    store: FeatureStore, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="no features of 'sound'; it has light, colours"):
        pretrain(store, tmp_path, PretrainConfig(model=ModelConfig(features="light,sound")))
    with pytest.raises(TrainingError, match=r"dims \(3, 4\) are not those .* leave dims out"):
        pretrain(store, tmp_path, PretrainConfig(model=replace(TINY, dims=(3, 4))))
    config = recipe_for(ExtractConfig(), "light,colours").pretrain
    encoder = pretrain(store, tmp_path / "model", config).encoder
    encoder.features = "colours,light"
    with pytest.raises(StoreError, match="have 6 and 8 channels, the model takes 8 and 6"):
        embed_store(store, encoder)
