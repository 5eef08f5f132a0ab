"""The decoder is a choice that a store keeps."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import SMALL, write_video
from tests.data.makers import CUT_KINDS, make_video, spoil_the_middle
from tests.data.test_torchcodec import WITH_TORCHCODEC
from tests.features import tiny_backbone

from clipset.clips.windows import WindowGrid
from clipset.config import read_json, write_json
from clipset.data.catalog import Catalog
from clipset.data.sources import read_videos
from clipset.errors import ConfigError, StoreError
from clipset.features.estimate import estimate
from clipset.features.extract import extract
from clipset.features.maintenance import merge_stores, repair_store
from clipset.features.store import FeatureStore, open_store, store_digest
from clipset.features.verify import verify_store
from clipset.inference.clips import ClipReader

AUTO = replace(SMALL, backbone=f"{Path(tiny_backbone.__file__)}:make")
PYAV, TORCHCODEC = replace(AUTO, decoder="pyav"), replace(AUTO, decoder="torchcodec")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    folder = tmp_path_factory.mktemp("videos")
    for number in range(3):
        write_video(folder / f"{number}.mp4", seed=number, seconds=1, colour=number)
    return read_videos(folder)


@pytest.fixture
def without_torchcodec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)


@WITH_TORCHCODEC
def test_both_decoders_make_almost_the_same_store_which_says_by_whom(
    catalog: Catalog, tmp_path: Path
) -> None:
    ours = extract(catalog, tmp_path / "a", PYAV)
    theirs = extract(catalog, tmp_path / "b", replace(TORCHCODEC, workers=1))
    assert store_digest(extract(catalog, tmp_path / "c", TORCHCODEC).folder) == store_digest(
        theirs.folder
    )
    assert [store.manifest.made_by["decoder"] for store in (ours, theirs)] == ["pyav", "torchcodec"]
    assert len(theirs) == 3
    for kind in ("random", "regular"):
        a, b = (getattr(store, kind) for store in (ours, theirs))
        np.testing.assert_array_equal(a.boxes, b.boxes)
        np.testing.assert_array_equal(a.times, b.times)
        assert (a.features != b.features).any()
        np.testing.assert_allclose(
            a.features.astype(float), b.features, atol=0.1 * np.abs(a.features).max()
        )


@WITH_TORCHCODEC
def test_a_store_begun_with_one_decoder_is_not_ended_with_the_other(
    catalog: Catalog, tmp_path: Path
) -> None:
    whole = extract(catalog, tmp_path / "whole", TORCHCODEC)
    some = catalog.only(catalog.videos[:1])
    extract(some, tmp_path / "part", TORCHCODEC)
    with pytest.raises(StoreError, match="part was begun with torchcodec, not pyav"):
        extract(catalog, tmp_path / "part", PYAV)
    extract(catalog, tmp_path / "part", AUTO)
    assert store_digest(tmp_path / "part") == store_digest(whole.folder)
    extract(some, tmp_path / "ours", AUTO)
    with pytest.raises(StoreError, match="ours was begun with pyav, not torchcodec"):
        extract(catalog, tmp_path / "ours", TORCHCODEC)


def test_a_store_that_does_not_name_its_decoder_was_made_with_pyav(
    catalog: Catalog, tmp_path: Path
) -> None:
    extract(catalog.only(catalog.videos[:1]), tmp_path / "old", AUTO)
    manifest: dict[str, Any] = read_json(tmp_path / "old" / "manifest.json")
    assert manifest["made_by"].pop("decoder") == "pyav"
    write_json(tmp_path / "old" / "manifest.json", manifest)
    with pytest.raises(StoreError, match="old was begun with pyav, not torchcodec"):
        extract(catalog, tmp_path / "old", TORCHCODEC)
    assert len(extract(catalog, tmp_path / "old", AUTO)) == 3


@pytest.mark.usefixtures("without_torchcodec")
def test_a_decoder_that_is_not_there_is_one_clear_error(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the decoder torchcodec is not there: it needs"):
        extract(catalog, tmp_path / "store", TORCHCODEC)
    with pytest.raises(ConfigError, match="the decoder torchcodec is not there: it needs"):
        estimate(catalog, TORCHCODEC)
    assert len(extract(catalog, tmp_path / "store", AUTO)) == 3


@WITH_TORCHCODEC
def test_a_store_of_a_decoder_that_is_gone_cannot_go_on_but_its_videos_can_be_shown(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = extract(catalog.only(catalog.videos[:1]), tmp_path / "store", TORCHCODEC)
    reader = ClipReader(store.manifest, workers=0, device="cpu")
    assert reader.request.decoder == "torchcodec"
    [seen] = reader.read(catalog.videos[:1])
    assert seen.clips is not None
    assert list(reader.read_windows(catalog.videos[:1], WindowGrid(0.5, 0.5)))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    with pytest.raises(ConfigError, match="the decoder torchcodec is not there"):
        extract(catalog, tmp_path / "store", AUTO)
    assert ClipReader(store.manifest).request.decoder == "pyav"


@WITH_TORCHCODEC
def test_broken_videos_have_the_same_outcome_with_both_decoders(tmp_path: Path) -> None:
    folder = tmp_path / "videos"
    folder.mkdir()
    for name, kind in (("a.mp4", "front.mp4"), ("b.mkv", "a.mkv")):
        path = make_video(folder / name, size=(192, 144), noise=True, **CUT_KINDS[kind])
        spoil_the_middle(path)
    (folder / "empty.mp4").touch()
    stores = [extract(read_videos(folder), tmp_path / c.decoder, c) for c in (PYAV, TORCHCODEC)]
    whole = [{entry.id: entry for entry in store.everything} for store in stores]
    for id, ours in whole[0].items():
        theirs = whole[1][id]
        assert (ours.status, ours.reason) == (theirs.status, theirs.reason)
        assert ours.frames_found == theirs.frames_found
        assert ours.frames_missing == theirs.frames_missing
    assert whole[0]["a.mp4"].frames_missing  # so all of its clips are PyAV's
    assert whole[0]["a.mp4"].checksum == whole[1]["a.mp4"].checksum


@WITH_TORCHCODEC
def test_a_repair_takes_the_decoder_of_the_store(catalog: Catalog, tmp_path: Path) -> None:
    folder = extract(catalog, tmp_path / "store", TORCHCODEC).folder
    path = folder / "random" / "features.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    repair = repair_store(folder, workers=0)
    assert (repair.redone, repair.changed) == (["2.mp4"], [])
    assert verify_store(folder) == []


@WITH_TORCHCODEC
def test_stores_of_different_decoders_become_one_that_says_so(
    catalog: Catalog, tmp_path: Path
) -> None:
    parts = [
        extract(catalog.only(catalog.videos[place : place + 1]), tmp_path / config.decoder, config)
        for place, config in enumerate((PYAV, TORCHCODEC))
    ]
    merged: FeatureStore = merge_stores([part.folder for part in parts], tmp_path / "merged")
    assert merged.manifest.made_by["decoders"] == "pyav and torchcodec"
    assert open_store(merged.folder).manifest.decoder is None
