"""From videos to a store: exact, resumable, and undisturbed by bad files."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import SMALL, write_video

from clipset.backbones.registry import load_backbone
from clipset.backbones.runtime import open_engine
from clipset.clips.cut import cut_clips
from clipset.clips.sampling import regular_clips, sample_random_clips, video_generator
from clipset.data.catalog import Catalog, read_catalog
from clipset.decoding.reader import open_video
from clipset.errors import StoreError
from clipset.features import decode_pool
from clipset.features.extract import extract
from clipset.features.sprites import sprite_files
from clipset.features.store import FeatureStore, open_store, store_digest
from clipset.features.verify import verify_store


def test_stored_features_are_those_of_the_backbone_on_the_stored_boxes(
    small_store: FeatureStore,
) -> None:
    spec, network = load_backbone("efficientnet_lite0", frames=2, stride=4, size=32)
    engine = open_engine(spec, network, device="cpu", engine="torch")
    place = 3
    id = small_store.ids[place]
    path = next(video.path for video in small_store.catalog if video.id == id)
    with open_video(path) as video:
        random = sample_random_clips(
            video.info, SMALL.sampling, span=spec.span, frames=2, generator=video_generator(0, id)
        )
        regular = regular_clips(video.info, SMALL.sampling, span=spec.span, frames=2)
        features = engine.features(cut_clips(video, random + regular, 32)).numpy()
    for table, expected, boxes in (
        (small_store.random, features[:8], random.boxes),
        (small_store.regular, features[8:], regular.boxes),
    ):
        rows = table.row_indices(np.array([place]))[0]
        np.testing.assert_array_equal(table.features[rows], expected.astype(np.float16))
        np.testing.assert_allclose(table.boxes[rows], [box.as_row() for box in boxes], rtol=1e-6)


def test_a_store_knows_its_videos_and_verifies(small_store: FeatureStore) -> None:
    assert len(small_store) == 24
    assert not small_store.failed
    assert set(small_store.random.count.tolist()) == {8}
    assert set(small_store.regular.count.tolist()) == {4}
    assert verify_store(small_store.folder) == []
    assert small_store.durations.min() > 0.5
    loaded = np.load(small_store.folder / "random" / "features.npy", mmap_mode="r")
    assert loaded.shape == (24 * 8, 1280)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_any_number_of_workers_gives_the_same_bytes(
    small_store: FeatureStore, tmp_path: Path, workers: int
) -> None:
    catalog = small_store.catalog
    extract(catalog, tmp_path / "store", replace(SMALL, workers=workers))
    assert store_digest(tmp_path / "store") == store_digest(small_store.folder)


def test_extraction_in_two_parts_equals_extraction_at_once(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    catalog = small_store.catalog
    extract(catalog.only(catalog.videos[:7]), tmp_path / "store", SMALL)
    extract(catalog, tmp_path / "store", SMALL)
    assert store_digest(tmp_path / "store") == store_digest(small_store.folder)


KILLED = """
import sys
from pathlib import Path
from dataclasses import replace
from tests.conftest import SMALL
from clipset.features import writer
from clipset.features import decode_pool
from clipset.features.extract import extract
from clipset.data.catalog import read_catalog_table
writer.COMMIT_SECONDS = 0.0
extract(read_catalog_table(Path(sys.argv[1])), Path(sys.argv[2]), SMALL)
"""


@pytest.mark.slow
def test_a_killed_extraction_goes_on_and_ends_with_the_same_bytes(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    catalog = small_store.folder / "catalog.csv"
    arguments = [sys.executable, "-c", KILLED, str(catalog), str(tmp_path / "store")]
    root = Path(__file__).parents[2]
    moments = np.random.default_rng(0).integers(1, 24, size=3)
    for moment in sorted(moments.tolist()):
        child = subprocess.Popen(arguments, cwd=root, env=os.environ | {"PYTHONPATH": str(root)})
        while child.poll() is None and _done(tmp_path / "store") < moment:
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert _done(tmp_path / "store") > 0
    extract(small_store.catalog, tmp_path / "store", SMALL)
    assert store_digest(tmp_path / "store") == store_digest(small_store.folder)
    sprites = [sprite_files(folder) for folder in (tmp_path / "store", small_store.folder)]
    resumed, whole = [[path.read_bytes() for path in paths] for paths in sprites]
    assert len(whole) == len(small_store)
    assert resumed == whole


def _done(folder: Path) -> int:
    if not (folder / "ledger.sqlite").is_file():
        return 0
    try:
        return len(FeatureStore(folder))
    except StoreError:
        return 0


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_files_are_recorded_and_change_nothing_else(
    small_videos: Path, tmp_path: Path, workers: int
) -> None:
    good = sorted(small_videos.rglob("*.mp4"))[:3]
    folder = tmp_path / "videos"
    folder.mkdir()
    for number, path in enumerate(good):
        (folder / f"good {number}.mp4").write_bytes(path.read_bytes())
    (folder / "empty.mp4").touch()
    (folder / "letter.mp4").write_text("Dear reader, this is no video.")
    (folder / "gone.mp4").symlink_to(tmp_path / "nowhere.mp4")
    config = replace(SMALL, workers=workers)
    store = extract(read_catalog(folder), tmp_path / "mixed", config)
    assert [entry.id for entry in store.entries] == [f"good {n}.mp4" for n in range(3)]
    reasons = {entry.id: entry.reason or "" for entry in store.failed}
    assert sorted(reasons) == ["empty.mp4", "gone.mp4", "letter.mp4"]
    assert "empty" in reasons["empty.mp4"]
    clean = [video for video in read_catalog(folder) if video.id.startswith("good")]
    extract(Catalog(name="clean", videos=tuple(clean)), tmp_path / "clean", config)
    for kind in ("random", "regular"):
        for name in ("features", "boxes", "times"):
            paths = [tmp_path / each / kind / f"{name}.npy" for each in ("mixed", "clean")]
            assert paths[0].read_bytes() == paths[1].read_bytes()


SLEEPING_WORKER = """
import time
from clipset.features import decode_pool
decode_pool.decode_video = lambda *_, **__: time.sleep(3600)
decode_pool.run_worker()
"""


def test_a_video_that_takes_too_long_is_recorded_and_the_worker_replaced(
    small_videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = read_catalog(small_videos)
    few = catalog.only(catalog.videos[:2])
    with monkeypatch.context() as patch:
        patch.setattr(decode_pool, "COMMAND", (sys.executable, "-c", SLEEPING_WORKER))
        store = extract(few, tmp_path / "store", replace(SMALL, workers=1, timeout=0.2))
    assert [entry.reason for entry in store.failed] == ["took longer than 0.2 s"] * 2
    again = extract(few, tmp_path / "store", replace(SMALL, retry_failed=True))
    assert len(again) == 2
    assert not again.failed


def test_every_flipped_bit_is_found(small_videos: Path, tmp_path: Path) -> None:
    catalog = read_catalog(small_videos)
    extract(catalog.only(catalog.videos[:3]), tmp_path / "store", SMALL)
    path = tmp_path / "store" / "regular" / "features.npy"
    content = bytearray(path.read_bytes())
    content[256 + 4 * 1280 * 2 + 77] ^= 1  # the second video has rows 4 to 7
    path.write_bytes(content)
    assert [id for id, _ in verify_store(tmp_path / "store")] == [catalog.videos[1].id]
    path.write_bytes(content[:-5])
    problems = dict(verify_store(tmp_path / "store"))
    assert list(problems) == [video.id for video in catalog.videos[1:3]]
    assert problems[catalog.videos[2].id] == "1 of its 4 rows in regular/features.npy are missing"


def test_a_store_made_in_another_way_is_not_mixed_with_this_one(
    small_videos: Path, tmp_path: Path
) -> None:
    catalog = read_catalog(small_videos)
    few = catalog.only(catalog.videos[:1])
    extract(few, tmp_path / "store", SMALL)
    with pytest.raises(StoreError, match="size 32, not 40"):
        extract(few, tmp_path / "store", replace(SMALL, size=40))
    with pytest.raises(StoreError, match="seed 0, not 1"):
        extract(few, tmp_path / "store", replace(SMALL, seed=1))


def test_a_folder_that_holds_something_else_is_left_alone(
    small_videos: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StoreError, match="not a feature store"):
        extract(read_catalog(small_videos), tmp_path, SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_store_without_a_readable_video_says_why(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "empty.mp4").touch()
    extract(read_catalog(tmp_path / "videos"), tmp_path / "store", SMALL)
    with pytest.raises(StoreError, match=r"no video that could be read: empty\.mp4"):
        open_store(tmp_path / "store")


def test_a_video_of_one_frame_has_features(tmp_path: Path) -> None:
    write_video(tmp_path / "videos" / "still.mp4", seconds=1 / 12)
    store = extract(read_catalog(tmp_path / "videos"), tmp_path / "store", SMALL)
    assert len(store) == 1
    assert store.entries[0].frames_found == 1
    assert torch.isfinite(torch.from_numpy(store.random.features.astype(np.float32))).all()
