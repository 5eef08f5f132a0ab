"""Sprites: small frames of each video that the store keeps for the page."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from tests.conftest import SMALL, write_video
from tests.features import tiny_backbone

from clipset.clips import sprite
from clipset.data.catalog import read_catalog
from clipset.features.encode import ClipRows
from clipset.features.extract import extract
from clipset.features.ledger import LedgerEntry
from clipset.features.maintenance import merge_stores, repair_store
from clipset.features.sprites import read_sprite, sprite_files, sprite_path
from clipset.features.store import FeatureStore
from clipset.features.writer import StoreWriter

TINY = replace(SMALL, backbone=f"{Path(tiny_backbone.__file__)}:make")


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("some")
    for number in range(4):
        write_video(folder / f"{number}.mp4", seed=number, seconds=1 + number / 4, colour=number)
    return folder


@pytest.fixture(scope="module")
def store(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return extract(read_catalog(videos), tmp_path_factory.mktemp("whole") / "store", TINY)


def sprites_of(store_folder: Path) -> dict[str, bytes]:
    """The sprite of each video by its id."""
    entries = FeatureStore(store_folder).entries
    return {entry.id: read_sprite(store_folder, entry.ordinal) for entry in entries}


def write_dawn(path: Path, size: tuple[int, int]) -> Path:
    """A video that becomes brighter from frame to frame."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for grey in range(20, 220, 4):
            pixels = np.full((size[1], size[0], 3), grey, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize(("size", "frame_size"), [((320, 192), (160, 96)), ((192, 320), (72, 120))])
def test_a_sprite_shows_whole_frames_in_their_order(
    size: tuple[int, int], frame_size: tuple[int, int], tmp_path: Path
) -> None:
    write_dawn(tmp_path / "dawn.mp4", size)
    sampling = replace(SMALL.sampling, num_clips=8, num_times=8)
    config = replace(TINY, size=96, sampling=sampling, workers=1)
    extract(read_catalog(tmp_path), tmp_path / "store", config)
    [content] = sprites_of(tmp_path / "store").values()
    image = Image.open(io.BytesIO(content))
    assert image.format == "WEBP"
    assert image.size == (10 * frame_size[0], frame_size[1])
    frames = np.split(np.asarray(image.convert("L"), dtype=np.float64), 10, axis=1)
    greys = np.array([frame.mean() for frame in frames])
    assert (np.diff(greys) >= -1).all()
    assert max(frame.std() for frame in frames) < 3
    # The frame at time t of 5 seconds has the grey 20 + 40 t.
    assert np.abs(greys - np.linspace(30, 210, 10)).max() < 25


def test_a_stopped_extraction_resumes_with_the_same_sprites(
    store: FeatureStore, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = StoreWriter.add
    added: list[str] = []

    def stop_at_the_third(writer: StoreWriter, entry: LedgerEntry, rows: ClipRows) -> None:
        if len(added) == 2:
            raise KeyboardInterrupt
        added.append(entry.id)
        add(writer, entry, rows)

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "add", stop_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            extract(read_catalog(videos), tmp_path / "store", TINY)
    assert len(added) == 2
    half_written = sprite_path(tmp_path / "store", 2)
    half_written.write_bytes(half_written.read_bytes()[:100])
    extract(read_catalog(videos), tmp_path / "store", TINY)
    assert sprites_of(tmp_path / "store") == sprites_of(store.folder)
    assert len(set(sprites_of(store.folder).values())) == 4


def test_merged_parts_have_the_sprites_of_their_videos(
    store: FeatureStore, videos: Path, tmp_path: Path
) -> None:
    catalog = read_catalog(videos)
    for name, part in (("a", catalog.videos[:2]), ("b", catalog.videos[2:])):
        extract(catalog.only(part), tmp_path / name, TINY)
    merge_stores([tmp_path / "b", tmp_path / "a"], tmp_path / "merged")
    assert sprites_of(tmp_path / "merged") == sprites_of(store.folder)
    shutil.rmtree(tmp_path / "b" / "sprites")  # as in a store of an earlier version
    merge_stores([tmp_path / "b", tmp_path / "a"], tmp_path / "again")
    assert [bool(content) for content in sprites_of(tmp_path / "again").values()] == [
        False, False, True, True,
    ]  # fmt: skip


def test_a_video_that_has_changed_has_another_sprite(videos: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(videos, tmp_path / "videos"))
    extract(read_catalog(folder), tmp_path / "store", TINY)
    before = sprites_of(tmp_path / "store")
    write_video(folder / "1.mp4", seed=9, seconds=2, colour=2)
    (folder / "2.mp4").write_bytes(b"no video")
    after = sprites_of(extract(read_catalog(folder), tmp_path / "store", TINY).folder)
    assert after["1.mp4"] != before["1.mp4"]
    assert after["0.mp4"] == before["0.mp4"]
    assert "2.mp4" not in after
    assert len(sprite_files(tmp_path / "store")) == 3


def test_a_repaired_video_has_its_sprite(store: FeatureStore, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(store.folder, tmp_path / "copy"))
    shutil.rmtree(copy / "sprites")
    rows = np.load(copy / "regular" / "features.npy", mmap_mode="r+")
    rows[0] += 1
    rows.flush()
    result = repair_store(copy, workers=0, backbone=TINY.backbone)
    assert result.restored == [store.ids[0]]
    first = sprites_of(store.folder)[store.ids[0]]
    assert sprites_of(copy) == dict.fromkeys(store.ids, b"") | {store.ids[0]: first}


def test_a_video_does_not_fail_if_its_sprite_does(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> bytes:
        raise OSError("encoder error")

    monkeypatch.setattr(sprite, "encode_strip", refuse)
    store = extract(read_catalog(videos), tmp_path / "store", TINY)
    assert (len(store), len(store.failed)) == (4, 0)
    assert sprite_files(store.folder) == []


def test_only_whole_files_within_the_store_are_read(store: FeatureStore, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(store.folder, tmp_path / "copy"))
    path = sprite_path(copy, 0)
    content = read_sprite(copy, 0)
    assert content
    for damaged in (content[:-1], content + b"\0", b"", b"<svg></svg>" * 3, bytes(1 << 21)):
        path.write_bytes(damaged)
        assert read_sprite(copy, 0) == b""
    elsewhere = tmp_path / "elsewhere.webp"
    elsewhere.write_bytes(content)
    path.unlink()
    path.symlink_to(elsewhere)
    assert read_sprite(copy, 0) == b""
    path.unlink()
    (copy / "sprites").rename(tmp_path / "sprites")
    (copy / "sprites").symlink_to(tmp_path / "sprites")
    assert read_sprite(copy, 1) == b""
    assert read_sprite(copy, 10**9) == b""
