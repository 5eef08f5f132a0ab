"""Clips that fit the videos: short ones for image backbones, several side by side for others."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import write_video

from clipset.backbones.registry import load_backbone
from clipset.clips.config import Sampling
from clipset.data.catalog import Catalog, Video
from clipset.features.config import ExtractConfig
from clipset.features.extract import extract, plan_store
from clipset.features.fit_clips import fit_clips, has_open_settings, median_duration
from clipset.recipe import load_settings

FITTED = load_settings(ExtractConfig)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    folder = tmp_path_factory.mktemp("videos")
    paths = [write_video(folder / f"{i}.mp4", seconds=1.0 + 0.5 * i, seed=i) for i in range(3)]
    return Catalog(name="v", videos=tuple(Video(id=path.name, path=path) for path in paths))


def test_a_clip_of_an_image_backbone_is_a_single_frame() -> None:
    spec, _ = load_backbone("efficientnet_lite0")
    fitted, sampling = fit_clips(FITTED, spec, 2.5)
    assert (fitted.frames, fitted.stride, fitted.size) == (1, 3, 224)
    assert (sampling.num_times, sampling.num_crops, sampling.num_clips) == (8, 1, 16)
    assert sampling.times_per_minute == sampling.clips_per_minute == 0
    assert not sampling.flip


def test_a_video_backbone_keeps_its_frames_and_fits_four_clips_side_by_side() -> None:
    spec = replace(load_backbone("efficientnet_lite0")[0], frames=16, stride=4, is_image=False)
    for duration, stride in ((60.0, 4), (8.0, 3), (4.3, 2), (2.0, 1), (0.1, 1)):
        fitted, _ = fit_clips(FITTED, spec, duration)
        assert (fitted.frames, fitted.stride) == (16, stride)


def test_long_videos_get_clips_in_proportion() -> None:
    spec, _ = load_backbone("efficientnet_lite0")
    assert fit_clips(FITTED, spec, 60.0)[1].times_per_minute == 60
    hour = fit_clips(FITTED, spec, 3600.0)[1]
    assert hour.times_per_minute == pytest.approx(128 / 60)
    assert hour.clips_per_minute == hour.times_per_minute


def test_what_is_set_by_hand_stays() -> None:
    spec, _ = load_backbone("efficientnet_lite0", frames=4, stride=2)
    own = {"num_times": 3, "num_crops": 2, "num_clips": 20, "flip": True}
    config = load_settings(ExtractConfig, frames=4, stride=2, sampling=own)
    assert not has_open_settings(config)
    fitted, sampling = fit_clips(config, spec, 60.0)
    assert (fitted, sampling) == (spec, Sampling(**own))


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_published_settings_are_the_backbones_own(preset: str) -> None:
    config = load_settings(ExtractConfig, preset)
    assert not has_open_settings(config)
    assert (config.frames, config.stride, config.size) == (None, None, None)
    sampling = config.sampling
    assert (sampling.num_clips, sampling.num_times, sampling.num_crops) == (16, 5, 3)
    assert sampling.flip


def test_the_duration_is_the_median_of_those_that_can_be_read(
    videos: Catalog, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    listed = [*videos, Video(id="broken.mp4", path=broken)]
    config = replace(FITTED, workers=1)
    assert median_duration(listed, config) == pytest.approx(1.5, abs=0.1)
    assert median_duration([Video(id="broken.mp4", path=broken)], config) == 1.0
    assert median_duration([], config) == 1.0


def test_more_videos_do_not_change_the_clips_of_a_store(videos: Catalog, tmp_path: Path) -> None:
    config = load_settings(ExtractConfig, size=32, workers=0, engine="torch")
    first = extract(videos.only(videos.videos[:1]), tmp_path / "store", config)
    assert first.manifest.made_by["clips"].startswith("clips for videos of about 1 s: single")
    long = write_video(tmp_path / "long.mp4", seconds=20.0, seed=9)
    more = Catalog(name="v", videos=(*videos, Video(id="long.mp4", path=long)))
    assert plan_store(config, [Video(id="long.mp4", path=long)])[0].sampling.times_per_minute == 60
    store = extract(more, tmp_path / "store", config)
    assert store.manifest == first.manifest
    assert len(store) == 4
