"""Several backbones in one store: one decoding, the same clips, each as if it were alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import SMALL
from tests.features.test_extract import _done
from torch import Tensor

from clipset.data.catalog import Catalog
from clipset.errors import ClipsetError, ConfigError, StoreError
from clipset.features.config import ExtractConfig
from clipset.features.cutting import CutVideo, cut_video, from_buffer, to_buffers
from clipset.features.estimate import estimate
from clipset.features.extract import cut_request, extract, plan
from clipset.features.maintenance import merge_stores, repair_store
from clipset.features.store import FeatureStore, open_store, store_digest
from clipset.features.verify import verify_store
from clipset.model.config import ModelConfig
from clipset.sets.reading import form_for, parse_features, read_clips, reader_for

OWN = """
import torch
from torch import nn
from clipset.backbones.registry import BackboneSpec, Weights

class Colours(nn.Module):
    def forward(self, clips):
        return torch.cat([clips.mean(dim=(1, 3, 4)), clips[:, -1].amax(dim=(2, 3))], dim=1)

class Light(nn.Module):
    def forward(self, clips):
        return clips.mean(dim=(2, 3, 4))

def describe(name, **fed):
    return BackboneSpec(
        name=name, **fed, mean=(0.0,) * 3, std=(255.0,) * 3, pooling="mean", paper="none",
        weights=Weights(file="none", licence="none", source="here"),
    )

def colours():
    return describe("colours", dim=6, frames=4, stride=2, size=24), Colours()

def light():
    return describe("light", dim=8, frames=8, stride=1, size=32), Light()
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two backbones that differ in frames and size, and whose clips last equally long."""
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN)
    return path


@pytest.fixture(scope="module")
def both(file: Path) -> ExtractConfig:
    names = f"{file}:light,{file}:colours"
    return replace(SMALL, backbone=names, frames=None, stride=None, size=None)


@pytest.fixture(scope="module")
def few(small_store: FeatureStore) -> Catalog:
    return small_store.catalog.only(small_store.catalog.videos[:5])


@pytest.fixture(scope="module")
def pair(few: Catalog, both: ExtractConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(few, tmp_path_factory.mktemp("pair") / "store", both).folder


def test_each_column_has_the_bytes_of_a_store_of_that_backbone_alone(
    pair: Path, few: Catalog, both: ExtractConfig, file: Path, tmp_path: Path
) -> None:
    extract(few, tmp_path / "first", replace(both, backbone=f"{file}:light"))
    extract(few, tmp_path / "second", replace(both, backbone=f"{file}:colours"))
    for kind in ("random", "regular"):
        for name in ("features", "boxes", "times"):
            ours = (pair / kind / f"{name}.npy").read_bytes()
            assert ours == (tmp_path / "first" / kind / f"{name}.npy").read_bytes()
        boxes = (tmp_path / "second" / kind / "boxes.npy").read_bytes()
        assert boxes == (pair / kind / "boxes.npy").read_bytes()
        for name in ("features", "times"):
            ours = (pair / kind / f"{name}.colours.npy").read_bytes()
            assert ours == (tmp_path / "second" / kind / f"{name}.npy").read_bytes()


@pytest.mark.parametrize("timing", ["frames", "segments"])
def test_the_same_clips_are_chosen_for_any_number_of_frames(
    timing: str, few: Catalog, both: ExtractConfig, file: Path, tmp_path: Path
) -> None:
    one = few.only(few.videos[:1])
    config = replace(both, sampling=replace(both.sampling, timing=timing))
    store = extract(one, tmp_path / "both", config)
    alone = extract(one, tmp_path / "alone", replace(config, backbone=f"{file}:colours"))
    table = store.table("random", "colours")
    np.testing.assert_array_equal(table.times, alone.random.times)
    np.testing.assert_array_equal(table.boxes, alone.random.boxes)
    np.testing.assert_array_equal(table.features, alone.random.features)


def test_a_further_backbone_sees_clips_as_long_as_the_first_ones(
    few: Catalog, both: ExtractConfig, tmp_path: Path
) -> None:
    store = extract(few.only(few.videos[-1:]), tmp_path / "store", replace(both, stride=2))
    first, second = store.manifest.backbones
    assert (first.frames, first.stride, first.size) == (8, 2, 32)
    assert (second.frames, second.stride, second.size) == (4, 4, 24)
    assert second.span == first.span
    starts = [store.table("random", name).times[:, 0] for name in (None, "colours")]
    np.testing.assert_array_equal(*starts)


def test_backbones_that_are_fed_alike_share_the_pixels(
    small_store: FeatureStore, file: Path, few: Catalog, tmp_path: Path
) -> None:
    config = replace(SMALL, backbone=f"efficientnet_lite0,{file}:colours")
    manifest, networks = plan(config, 0)
    assert len(networks) == 2
    assert cut_request(manifest).shapes == ((2, 32),)
    store = extract(few, tmp_path / "store", config)
    rows = small_store.random.of(np.arange(len(few)))
    first = store.random.features.reshape(*rows.shape, -1)
    np.testing.assert_array_equal(first, small_store.random.features[rows])


def test_cut_clips_of_several_shapes_travel_as_bytes(few: Catalog, both: ExtractConfig) -> None:
    request = cut_request(plan(both, 0)[0])
    assert request.shapes == ((8, 32), (4, 24))
    video = few.videos[0]
    [cut] = cut_video(video.id, video.path, request)
    content = bytearray(b"".join(to_buffers(cut)))
    again: CutVideo = from_buffer(content, cut.facts, request)
    for frames, size in request.shapes:
        one, two = cut.shown(frames, size), again.shown(frames, size)
        assert torch.equal(one.pixels, two.pixels)
        np.testing.assert_array_equal(one.times, two.times)
    with pytest.raises(ClipsetError, match="not cut with 3 frames of 9 pixels"):
        cut.shown(3, 9)


def test_workers_give_the_same_bytes(
    pair: Path, few: Catalog, both: ExtractConfig, tmp_path: Path
) -> None:
    extract(few, tmp_path / "store", replace(both, workers=2))
    assert store_digest(tmp_path / "store") == store_digest(pair)


KILLED = """
import sys
from pathlib import Path
from dataclasses import replace
from tests.conftest import SMALL
from clipset.features import writer
from clipset.features.extract import extract
from clipset.data.catalog import read_catalog_table
writer.COMMIT_SECONDS = 0.0
config = replace(SMALL, backbone=sys.argv[3], frames=None, stride=None, size=None)
extract(read_catalog_table(Path(sys.argv[1])), Path(sys.argv[2]), config)
"""


def test_a_killed_extraction_with_two_backbones_goes_on_to_the_same_bytes(
    small_store: FeatureStore, both: ExtractConfig, tmp_path: Path
) -> None:
    catalog = small_store.folder / "catalog.csv"
    words = [str(catalog), str(tmp_path / "store"), both.backbone]
    root = Path(__file__).parents[2]
    path = f"{root}:{root / 'src'}"
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, *words], cwd=root, env=os.environ | {"PYTHONPATH": path}
    )
    while child.poll() is None and _done(tmp_path / "store") < 2:
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert _done(tmp_path / "store") > 0
    extract(small_store.catalog, tmp_path / "store", both)
    extract(small_store.catalog, tmp_path / "at once", both)
    assert store_digest(tmp_path / "store") == store_digest(tmp_path / "at once")


def test_a_flipped_bit_in_the_second_column_is_found_and_repaired(
    pair: Path, few: Catalog, both: ExtractConfig, tmp_path: Path
) -> None:
    copy = shutil.copytree(pair, tmp_path / "copy")
    path = copy / "random" / "features.colours.npy"
    content = bytearray(path.read_bytes())
    content[256 + 8 * 6 * 2 + 3] ^= 1  # the second video has rows 8 to 15
    path.write_bytes(content)
    assert [id for id, _ in verify_store(copy)] == [few.videos[1].id]
    repair = repair_store(copy, workers=0, backbone=both.backbone)
    assert repair.redone == [few.videos[1].id]
    assert store_digest(copy) == store_digest(pair)
    (copy / "regular" / "times.colours.npy").unlink()
    assert len(verify_store(copy)) == len(few) + 1
    repair_store(copy, workers=0, backbone=both.backbone)
    assert store_digest(copy) == store_digest(pair)


def test_a_store_opens_without_its_own_backbones_but_is_repaired_only_with_them_named(
    pair: Path, few: Catalog, tmp_path: Path
) -> None:
    copy = shutil.copytree(pair, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    for name in ("backbone", "backbone of colours"):
        assert Path(manifest["made_by"].pop(name).partition(":")[0]).is_absolute()
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert len(open_store(copy)) == len(few)
    (copy / "random" / "times.npy").unlink()
    with pytest.raises(ClipsetError, match="name it yourself with --backbone"):
        repair_store(copy, workers=0)


def test_stores_with_two_backbones_are_merged(
    pair: Path, few: Catalog, both: ExtractConfig, tmp_path: Path
) -> None:
    extract(few.only(few.videos[:2]), tmp_path / "a", both)
    extract(few.only(few.videos[2:]), tmp_path / "b", both)
    merge_stores([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    assert store_digest(tmp_path / "merged") == store_digest(pair)
    assert open_store(tmp_path / "merged").manifest == open_store(pair).manifest


def test_the_estimate_counts_all_columns(pair: Path, few: Catalog, both: ExtractConfig) -> None:
    files = list(pair.rglob("*.npy"))
    assert len(files) == 10
    assert estimate(few, both).disk_bytes == sum(path.stat().st_size for path in files)


def test_a_backbone_cannot_be_added_to_a_store_or_left_out_of_it(
    pair: Path, few: Catalog, both: ExtractConfig
) -> None:
    with pytest.raises(StoreError, match="with backbone light, colours, not light; use another"):
        extract(few, pair, replace(both, backbone=both.backbone.partition(",")[0]))
    with pytest.raises(StoreError, match="with backbone size 32, not 16"):
        extract(few, pair, replace(both, size=16))
    with pytest.raises(StoreError, match="with colours size 24, not 32"):
        extract(few, pair, replace(both, size=32))


@pytest.mark.parametrize("names", ["a,a", ",", ""])
def test_backbones_are_named_once(names: str) -> None:
    with pytest.raises(ConfigError, match="different names"):
        ExtractConfig(backbone=names)


def test_the_engines_that_began_a_store_are_written_down(pair: Path) -> None:
    made_by = open_store(pair).manifest.made_by
    assert (made_by["engine"], made_by["engine of colours"]) == ("torch", "torch")


def test_features_are_read_alone_side_by_side_or_mixed(pair: Path) -> None:
    store = open_store(pair)
    videos = np.array([3, 0])
    first, second = (read_clips(store, "random", videos, n) for n in (None, "colours"))
    assert torch.equal(first.boxes, second.boxes)
    assert (first.features.shape[-1], second.features.shape[-1]) == (8, 6)
    joined = read_clips(store, "random", videos, "colours + light")
    assert torch.equal(joined.features, torch.cat([second.features, first.features], dim=-1))
    side_by_side = form_for(store.manifest, ModelConfig(features="colours+light"))
    assert joined.features.shape[-1] == side_by_side.dim(store.manifest) == 14
    assert form_for(store.manifest, None).dim(store.manifest) == 8
    mixed = reader_for(store, ModelConfig(features="colours,light"))("random", videos)
    assert mixed.features.shape == (2, 16, 8)
    assert torch.equal(mixed.features[:, :8, :6], second.features)
    assert not mixed.features[:, :8, 6:].any()
    assert torch.equal(mixed.features[:, 8:], first.features)
    assert torch.equal(mixed.boxes, torch.cat([first.boxes, first.boxes], dim=1))
    assert mixed.sources is not None
    assert mixed.sources[1].tolist() == [0] * 8 + [1] * 8
    for unknown in ("svt_vitb16", "colours+svt_vitb16"):
        with pytest.raises(StoreError, match="'svt_vitb16'; it has light, colours"):
            read_clips(store, "random", videos, unknown)
    for wrong in ("", "a+", "a+a", "a,", "a,a", "a,b+c"):
        with pytest.raises(StoreError, match="different backbones, such as a"):
            parse_features(wrong)


def test_layers_and_time_bins_are_stored_and_become_clips(few: Catalog, tmp_path: Path) -> None:
    config = replace(SMALL, frames=4, time_bins=2)
    few = few.only(few.videos[:2])
    store = extract(few, tmp_path / "bins", config)
    spec = store.manifest.backbone
    assert (spec.time_bins, spec.dim) == (2, 2560)
    whole = extract(few, tmp_path / "whole", replace(config, time_bins=1))
    with pytest.raises(StoreError, match="dim 2560, not 1280"):
        extract(few, tmp_path / "bins", replace(config, time_bins=1))
    videos = np.arange(len(few))
    clips, usual = (read_clips(each, "regular", videos) for each in (store, whole))
    halves = reader_for(store, ModelConfig(bins_as_clips=True))("regular", videos)
    assert halves.features.shape == (2, 8, 1280)
    mean = halves.features.unflatten(1, (4, 2)).mean(dim=2)
    torch.testing.assert_close(mean, usual.features, atol=2e-2, rtol=1e-2)  # stored as float16
    times: Tensor = halves.boxes[..., [2, 5]].unflatten(1, (4, 2))  # start and end
    assert torch.equal(times[:, :, 0, 0], clips.boxes[..., 2])
    assert torch.equal(times[:, :, 1, 1], clips.boxes[..., 5])
    assert torch.equal(times[:, :, 0, 1], times[:, :, 1, 0])
    official = reader_for(store, ModelConfig(bins_as_clips=True, boxes="official"))
    assert official("regular", videos).boxes[..., [5, 6]].unique().numel() > 4  # start and end
    with pytest.raises(StoreError, match="the same time bins, at least 2; the store has effic"):
        reader_for(whole, ModelConfig(bins_as_clips=True))
    with pytest.raises(ConfigError, match="layers must be numbers such as 3,7,11, got '3;7'"):
        ExtractConfig(layers="3;7")
    assert ExtractConfig(layers="3, 7,11").layer_numbers == (3, 7, 11)
