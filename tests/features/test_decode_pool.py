"""The decode pool starts as many workers as it needs, and does not run ahead of a slow video."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import SMALL
from tests.features import tiny_backbone

from clipset.clips.decode import DecodedClips, DecodeRequest
from clipset.data.catalog import Video
from clipset.errors import VideoError
from clipset.features import decode_pool
from clipset.features.decode_pool import DecodeResult
from clipset.features.extract import decode_request, plan_store
from clipset.features.store import FeatureStore


@pytest.fixture(scope="module")
def request_of_clips() -> DecodeRequest:
    backbone = f"{Path(tiny_backbone.__file__)}:make"
    return decode_request(plan_store(replace(SMALL, backbone=backbone))[0])


def test_one_worker_is_enough_while_nobody_waits_for_it(
    request_of_clips: DecodeRequest, small_store: FeatureStore
) -> None:
    videos = small_store.catalog.videos[:4]
    with closing(decode_pool.DecodePool(videos, request_of_clips, 3, 60.0)) as pool:
        results = pool.results()
        indices = []
        for _ in videos:
            while pool.queue.empty():
                time.sleep(0.01)
            indices.append(next(results)[0])
        assert len(pool.workers) == 1
    assert indices == [0, 1, 2, 3]


def test_more_workers_start_while_the_first_one_is_waited_for(
    request_of_clips: DecodeRequest, small_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_pool, "START_SECONDS", 0.01)
    videos = small_store.catalog.videos[:4]
    with closing(decode_pool.DecodePool(videos, request_of_clips, 3, 60.0)) as pool:
        results = list(pool.results())
        assert len(pool.workers) == 3
    assert sorted(index for index, _ in results) == [0, 1, 2, 3]
    assert all(isinstance(clips, DecodedClips) for _, clips in results)


def test_a_stuck_video_does_not_let_later_ones_pile_up(
    request_of_clips: DecodeRequest, small_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_pool, "START_SECONDS", 0.01)
    monkeypatch.setattr(decode_pool, "MAX_AHEAD", 3)
    stuck, started = threading.Event(), []

    def decode(_: object, index: int, __: Video, ___: int) -> Iterator[DecodeResult]:
        started.append(index)
        if index == 1:
            stuck.wait(60.0)
        yield index, VideoError("decoded nothing")

    monkeypatch.setattr(decode_pool.DecodeWorker, "decode", decode)
    videos = small_store.catalog.videos[:12]
    with closing(decode_pool.DecodePool(videos, request_of_clips, 3, 60.0)) as pool:
        results = pool.results()
        first = [next(results)[0] for _ in range(4)]
        time.sleep(0.2)
        assert sorted(first) == [0, 2, 3, 4]
        assert max(started) == 4  # three after the one that is stuck
        stuck.set()
        assert sorted(index for index, _ in results) == [1, *range(5, 12)]
