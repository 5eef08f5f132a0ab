"""A store of a backbone of one's own, in a Python file."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import SMALL

from clipset.clips.decode import DecodedClips, decode_video
from clipset.data.catalog import Catalog
from clipset.errors import ClipsetError, ConfigError, StoreError
from clipset.features.config import ExtractConfig
from clipset.features.extract import decode_request, extract, plan_store
from clipset.features.maintenance import repair_store
from clipset.features.store import FeatureStore, open_store, store_digest
from clipset.features.verify import verify_store
from clipset.planning.extraction_estimate import estimate_extraction

OWN = """
import torch
from torch import nn
from clipset.backbones.registry import BackboneSpec, Weights

class Light(nn.Module):
    def forward(self, clips):
        return clips.mean(dim=(2, 3, 4))

def light():
    spec = BackboneSpec(
        name="light", dim=8, frames=8, stride=1, size=32, mean=(0.0,) * 3, std=(255.0,) * 3,
        pooling="mean", paper="none",
        weights=Weights(file="none", licence="none", source="here"),
    )
    return spec, Light()
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> ExtractConfig:
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN)
    return replace(SMALL, backbone=f"{path}:light", frames=None, stride=None, size=None)


@pytest.fixture(scope="module")
def few(small_store: FeatureStore) -> Catalog:
    return small_store.catalog.only(small_store.catalog.videos[:5])


@pytest.fixture(scope="module")
def store(few: Catalog, own: ExtractConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(few, tmp_path_factory.mktemp("own") / "store", own).folder


def test_cut_clips_travel_as_bytes(few: Catalog, own: ExtractConfig) -> None:
    request = decode_request(plan_store(own)[0])
    video = few.videos[0]
    [cut] = decode_video(video.id, video.path, request)
    again = DecodedClips.from_buffer(bytearray(b"".join(cut.to_buffers())), cut.facts, request)
    assert torch.equal(cut.pixels, again.pixels)
    np.testing.assert_array_equal(cut.times, again.times)
    np.testing.assert_array_equal(cut.boxes, again.boxes)


def test_workers_give_the_same_bytes(
    store: Path, few: Catalog, own: ExtractConfig, tmp_path: Path
) -> None:
    extract(few, tmp_path / "store", replace(own, workers=2))
    assert store_digest(tmp_path / "store") == store_digest(store)


def test_a_flipped_bit_is_found_and_repaired(
    store: Path, few: Catalog, own: ExtractConfig, tmp_path: Path
) -> None:
    copy = shutil.copytree(store, tmp_path / "copy")
    path = copy / "random" / "features.npy"
    content = bytearray(path.read_bytes())
    content[256 + 8 * 8 * 2 + 3] ^= 1  # the second video has rows 8 to 15
    path.write_bytes(content)
    assert [id for id, _ in verify_store(copy)] == [few.videos[1].id]
    repair = repair_store(copy, workers=0, backbone=own.backbone)
    assert repair.restored == [few.videos[1].id]
    assert store_digest(copy) == store_digest(store)
    (copy / "regular" / "times.npy").unlink()
    assert len(verify_store(copy)) == len(few) + 1
    repair_store(copy, workers=0, backbone=own.backbone)
    assert store_digest(copy) == store_digest(store)


def test_a_store_opens_without_its_own_backbone_but_is_repaired_only_if_it_is_named(
    store: Path, few: Catalog, tmp_path: Path
) -> None:
    copy = shutil.copytree(store, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    assert Path(manifest["made_by"].pop("backbone").partition(":")[0]).is_absolute()
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert len(open_store(copy)) == len(few)
    (copy / "random" / "times.npy").unlink()
    with pytest.raises(ClipsetError, match="name it yourself with --backbone"):
        repair_store(copy, workers=0)


def test_a_store_keeps_to_its_backbone(store: Path, few: Catalog, own: ExtractConfig) -> None:
    with pytest.raises(StoreError, match="with backbone light, not efficientnet_lite0; use an"):
        extract(few, store, replace(own, backbone="efficientnet_lite0"))
    with pytest.raises(StoreError, match="with backbone size 32, not 16"):
        extract(few, store, replace(own, size=16))
    assert open_store(store).manifest.made_by["engine"] == "torch"


def test_the_estimate_counts_all_files(store: Path, few: Catalog, own: ExtractConfig) -> None:
    files = list(store.rglob("*.npy"))
    assert len(files) == 6
    assert estimate_extraction(few, own).row_bytes == sum(path.stat().st_size for path in files)


def test_backbone_and_layers_are_checked() -> None:
    with pytest.raises(ConfigError, match="backbone must be a name"):
        ExtractConfig(backbone=" ")
    with pytest.raises(ConfigError, match="layers must be numbers such as 3,7,11, got '3;7'"):
        ExtractConfig(layers="3;7")
    assert ExtractConfig(layers="3, 7,11").layer_indices == (3, 7, 11)
