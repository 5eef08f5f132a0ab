"""Videos of any length are cut in bounded memory, and chunks are as good as the whole."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import SMALL, write_video
from tests.decoding.makers import CUT_KINDS, make_long_video, make_video, spoil_the_middle
from tests.features import tiny_backbone

from clipset.clips import decode
from clipset.clips.decode import decode_video
from clipset.data.catalog import Video, read_catalog
from clipset.decoding.reader import VideoReader
from clipset.errors import VideoError
from clipset.features import encode
from clipset.features.decode_pool import decode_in_process
from clipset.features.encode import EncodedVideo
from clipset.features.extract import decode_request, extract, plan_store
from clipset.features.sprites import sprite_files
from clipset.features.store import FeatureStore, store_digest
from clipset.features.verify import verify_store

ROOT = Path(__file__).parents[2]
BACKBONE = f"{Path(tiny_backbone.__file__)}:make"
TINY = replace(SMALL, backbone=BACKBONE)
CLIP_BYTES = 2 * 3 * 32 * 32


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("some")
    for number in range(3):
        write_video(folder / f"{number}.mp4", seed=number, seconds=1 + number, colour=number)
    return folder


@pytest.mark.parametrize("timing", ["seconds", "segments"])
@pytest.mark.parametrize("most", [1, 5, 11])
def test_a_video_cut_in_chunks_has_the_same_rows(
    timing: str, most: int, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = read_catalog(videos)
    sampling = replace(SMALL.sampling, clips_per_minute=240.0, timing=timing)
    config = replace(TINY, sampling=sampling)
    whole = extract(catalog, tmp_path / "whole", config)
    assert [entry.random_count for entry in whole.entries] == [8, 8, 12]
    # The third video has 16 clips.
    monkeypatch.setattr(decode, "SINGLE_CHUNK_BYTES", 12 * CLIP_BYTES)
    monkeypatch.setattr(decode, "CHUNK_BYTES", most * CLIP_BYTES)
    chunks = extract(catalog, tmp_path / "chunks", config)
    assert not chunks.failed
    assert store_digest(chunks.folder) == store_digest(whole.folder)
    sprites = [[path.read_bytes() for path in sprite_files(s.folder)] for s in (whole, chunks)]
    assert len(sprites[0]) == 3
    assert sprites[0] == sprites[1]
    request = decode_request(whole.manifest)
    counts = [len(list(decode_video(video.id, video.path, request))) for video in catalog]
    assert counts == [1, 1, -(-16 // most)]


def test_a_broken_video_in_chunks_is_opened_once_and_a_missing_frame_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_video(tmp_path / "a.mp4", size=(192, 144), noise=True, **CUT_KINDS["front.mp4"])
    spoil_the_middle(path)
    request = decode_request(plan_store(TINY)[0])
    [whole] = decode_video("a.mp4", path, request)
    assert whole.facts.frames_missing
    opened = []
    reader = decode.open_video

    def open_noted(path: Path, **how: Any) -> AbstractContextManager[VideoReader]:
        opened.append(path)
        return reader(path, **how)

    monkeypatch.setattr(decode, "open_video", open_noted)
    monkeypatch.setattr(decode, "SINGLE_CHUNK_BYTES", 0)
    monkeypatch.setattr(decode, "CHUNK_BYTES", CLIP_BYTES)
    store = extract(read_catalog(tmp_path), tmp_path / "store", replace(TINY, workers=0))
    assert opened == [path]
    assert store.entries[0].frames_missing == whole.facts.frames_missing


def test_a_file_that_changes_between_two_chunks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "SINGLE_CHUNK_BYTES", 0)
    monkeypatch.setattr(decode, "CHUNK_BYTES", 5 * CLIP_BYTES)
    path = write_video(tmp_path / "a.mp4", seed=1)
    outcomes = []
    for _, outcome in decode_in_process(
        [Video(id="a", path=path)], decode_request(plan_store(TINY)[0])
    ):
        write_video(path, seed=2)
        outcomes.append(outcome)
    first, failure = outcomes
    assert isinstance(first, decode.DecodedClips)
    assert not first.facts.is_last_chunk
    assert str(failure) == "the file changed while it was read"


def test_a_piece_that_fails_stands_for_its_video() -> None:
    facts = decode.VideoFacts(
        random_count=2, regular_count=0, duration=1.0, width=1, height=1, frames_expected=None,
        frames_found=1, frames_missing=0, num_chunks=2, clip_indices=(0,),
    )  # fmt: skip
    rows = encode.ClipRows(*(np.zeros((1, n), dtype=np.float32) for n in (4, 7, 2)))
    chunk, broken = EncodedVideo(facts, rows), VideoError("broken")
    assert list(encode.join_chunks([(0, chunk), (0, broken), (0, chunk)])) == [(0, broken)]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is counted as on Linux")
def test_an_hour_of_video_with_clips_in_proportion_stays_under_a_gigabyte(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    make_long_video(tmp_path / "videos" / "hour.mp4")
    script, places = (
        ROOT / "benchmarks" / "peak_memory.py",
        (tmp_path / "videos", tmp_path / "store"),
    )
    given = ("--backbone", BACKBONE, "--frames=16", "--size=224", "--workers=2")
    done = subprocess.run(
        [sys.executable, script, *places, *given],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    store = FeatureStore(tmp_path / "store")
    [entry] = store.entries
    assert (entry.random_count, entry.regular_count) == (120, 90)  # half a gigabyte of pixels
    assert (entry.duration, entry.frames_found, entry.frames_missing) == (3600.0, 18_000, 0)
    assert verify_store(store.folder) == []
    assert sum(map(int, done.stdout.split())) * 1024 < 1e9
