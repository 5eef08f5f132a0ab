"""A folder of broken and strange files, with good videos among them, through a whole extraction."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import SMALL, write_video
from tests.decoding.makers import (
    CUT_KINDS,
    GROUPS_OF_10,
    claim_frames,
    claim_size,
    cut_at,
    flv_with_times,
    make_many_frames,
    make_sound,
    make_video,
    spoil_the_middle,
    without_keyframes,
)
from tests.features import tiny_backbone
from tests.features.spoilers import spoil

from clipset.data.catalog import Catalog, Video, read_catalog
from clipset.features import decode_pool
from clipset.features.extract import extract
from clipset.features.store import FeatureStore
from clipset.features.verify import verify_store

ROOT = Path(__file__).parents[2]
TINY = replace(SMALL, backbone=f"{Path(tiny_backbone.__file__)}:make")


Counts = tuple[int | None, int]  # frames that the header claims, frames that are there


def write_torture(folder: Path) -> dict[str, Counts]:
    """Every kind of bad file; those that hold something, with what they hold."""
    noisy: dict[str, Any] = {"size": (192, 144), "noise": True}
    (folder / "empty.mp4").touch()
    (folder / "text.mp4").write_text("not a film\n" * 1000)
    counts: dict[str, Counts] = {}
    for name in ("front.mp4", "back.mp4", "a.avi"):
        whole = make_video(folder / name, **noisy, **CUT_KINDS[name])
        for share in (0.01, 0.5, 0.99):
            part, left = cut_at(whole, share)
            counts[part.name] = (24, len(left))
        whole.unlink()
    spoil_the_middle(make_video(folder / "garbage.mp4", **noisy, **CUT_KINDS["front.mp4"]))
    claim_frames(make_video(folder / "claims 999.avi", codec="mpeg4"), 999)
    make_sound(folder / "sound.mp4")
    make_video(folder / "one frame.mp4", count=1)
    claim_size(make_video(folder / "0x0.avi", codec="rawvideo", pix_fmt="bgr24"), 0, 0)
    for size in ((1, 1), (10_000, 16)):
        name = f"{size[0]}x{size[1]}.mov"
        make_video(folder / name, codec="png", pix_fmt="rgb24", size=size, count=6)
    make_many_frames(folder / "many.mkv")
    whole = make_video(folder / "whole.mkv", options=GROUPS_OF_10)
    without_keyframes(whole, folder / "no keyframes.mkv")
    whole.unlink()
    back = make_video(folder / "back in time.flv", codec="flv", options={"g": "1"}, count=100)
    flv_with_times(back, [number % 50 * 40 for number in range(100)])
    (folder / "directory.mp4").mkdir()
    (folder / "dangling.mp4").symlink_to("nowhere.mp4")
    os.mkfifo(folder / "pipe.mp4")
    make_video(folder / "unreadable.mp4")
    return counts


def write_changing(folder: Path) -> None:
    """A file that is kept in memory from the scan on, and one that is too large for that."""
    make_video(folder / "changes small.mp4")
    raw: dict[str, Any] = {"codec": "rawvideo", "pix_fmt": "bgr24"}
    make_video(folder / "changes large.avi", count=160, size=(480, 320), **raw)


FAILED = {
    "empty.mp4": "empty file",
    "text.mp4": "not a video file (invalid data)",
    "cut_0.01_front.mp4": "the video stream is empty",
    "cut_0.01_a.avi": "a broken video file (invalid data)",
    "cut_0.01_back.mp4": "a broken video file (invalid data)",  # its index was at the end
    "cut_0.5_back.mp4": "a broken video file (invalid data)",
    "cut_0.99_back.mp4": "a broken video file (invalid data)",
    "sound.mp4": "no video stream",
    "0x0.avi": "no frame could be decoded",
    "no keyframes.mkv": "no frame could be decoded",
    "directory.mp4": "is a directory",
    "dangling.mp4": "no such file",
    "pipe.mp4": "is not a regular file",
    "unreadable.mp4": "permission denied",
    "changes large.avi": "the file changed while it was read",
    "changes small.mp4": "the file changed while it was read",
}
DONE: dict[str, Counts] = {
    "garbage.mp4": (24, 24),
    "claims 999.avi": (999, 24),
    "one frame.mp4": (1, 1),
    "1x1.mov": (6, 6),
    "10000x16.mov": (6, 6),
    "many.mkv": (None, 100_000),
    "back in time.flv": (None, 100),
    **{f"good {number}.mp4": (12, 12) for number in range(4)},
}


@dataclass(frozen=True)
class Torture:
    """The folder, what its files hold, and the store of its good videos alone."""

    folder: Path
    holds: dict[str, Counts]
    good: FeatureStore

    def catalog(self) -> Catalog:
        paths = sorted(self.folder.iterdir())
        return Catalog(name="torture", videos=tuple(Video(id=p.name, path=p) for p in paths))


@pytest.fixture(scope="module")
def torture(tmp_path_factory: pytest.TempPathFactory) -> Torture:
    folder = tmp_path_factory.mktemp("torture")
    for number in range(4):
        write_video(folder / f"good {number}.mp4", seed=number, colour=number)
    good = extract(read_catalog(folder), tmp_path_factory.mktemp("good") / "store", TINY)
    cut = write_torture(folder)
    holds = DONE | {name: counts for name, counts in cut.items() if name not in FAILED}
    return Torture(folder, holds, good)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_each_file_of_the_torture_folder_gives_its_rows_or_its_reason(
    workers: int, torture: Torture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_changing(torture.folder)
    spoil(monkeypatch.setattr)
    program = "from tests.features import spoilers; spoilers.serve()"
    monkeypatch.setattr(decode_pool, "COMMAND", (sys.executable, "-c", program))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
    store = extract(torture.catalog(), tmp_path / "store", replace(TINY, workers=workers))
    assert {entry.id: entry.reason for entry in store.failed} == FAILED
    found = {e.id: (e.frames_expected, e.frames_found) for e in store.entries}
    assert found == torture.holds
    assert not store.pending
    assert {(entry.random_count, entry.regular_count) for entry in store.entries} == {(8, 4)}
    assert [entry.id for entry in store.entries if entry.frames_missing] == ["garbage.mp4"]
    assert verify_store(store.folder) == []
    for place, entry in enumerate(store.entries):
        if entry.id.startswith("good"):
            compare(store, place, torture.good)


def compare(store: FeatureStore, place: int, good: FeatureStore) -> None:
    """A good video has the same bytes in a store that knows no bad file."""
    [alone] = [n for n, entry in enumerate(good.entries) if entry.id == store.entries[place].id]
    assert store.entries[place].checksum == good.entries[alone].checksum
    for mixed, clean in ((store.random, good.random), (store.regular, good.regular)):
        mixed_rows, clean_rows = (
            mixed.row_indices(np.array([place]))[0],
            clean.row_indices(np.array([alone]))[0],
        )
        for name in ("features", "boxes", "times"):
            mine, theirs = getattr(mixed, name)[mixed_rows], getattr(clean, name)[clean_rows]
            assert mine.tobytes() == theirs.tobytes()


def test_a_folder_is_read_with_all_that_is_called_like_a_video(torture: Torture) -> None:
    named = {video.id for video in read_catalog(torture.folder)}
    assert named == {video.id for video in torture.catalog()} - {"directory.mp4"}
