"""The decode pool starts as many workers as it needs, and does not run ahead of a slow video."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import SMALL
from tests.features import tiny_backbone
from torch import Tensor

from clipset.clips.decode import DecodedClips, DecodeRequest
from clipset.data.catalog import Video
from clipset.errors import StoreError, VideoError
from clipset.features import decode_pool
from clipset.features.decode_pool import DecodeResult
from clipset.features.extract import decode_request, extract, plan_store
from clipset.features.store import FeatureStore
from clipset.features.writer import StoreWriter


@pytest.fixture(scope="module")
def request_of_clips() -> DecodeRequest:
    backbone = f"{Path(tiny_backbone.__file__)}:make"
    return decode_request(plan_store(replace(SMALL, backbone=backbone))[0])


def test_one_worker_is_enough_while_nobody_waits_for_it(
    request_of_clips: DecodeRequest, small_store: FeatureStore
) -> None:
    videos = small_store.catalog.videos[:4]
    with closing(decode_pool.ClipDecoder(request_of_clips, workers=3, timeout=60.0)) as pool:
        results = pool.decode(videos)
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
    with closing(decode_pool.ClipDecoder(request_of_clips, workers=3, timeout=60.0)) as pool:
        results = list(pool.decode(videos))
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
    with closing(decode_pool.ClipDecoder(request_of_clips, workers=3, timeout=60.0)) as pool:
        results = pool.decode(videos)
        first = [next(results)[0] for _ in range(4)]
        time.sleep(0.2)
        assert sorted(first) == [0, 2, 3, 4]
        assert max(started) == 4  # three after the one that is stuck
        stuck.set()
        assert sorted(index for index, _ in results) == [1, *range(5, 12)]


def test_a_stuck_video_lets_only_so_many_wait_in_the_writer(
    small_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_pool, "START_SECONDS", 0.01)
    monkeypatch.setattr(decode_pool, "MAX_AHEAD", 3)
    stuck, waiting, put = threading.Event(), [], StoreWriter.put

    def decode(worker: decode_pool.DecodeWorker, *task: Any) -> Iterator[DecodeResult]:
        index, video, draw = task
        if index == 0:
            stuck.wait(60.0)
        for _, clips in decode_pool.decode_in_process([video], worker.request, draw):
            yield index, clips

    def counted(writer: StoreWriter, *result: Any) -> None:
        put(writer, *result)
        waiting.append(len(writer._waiting))
        if len(waiting) == 2:  # one more is held by the encoder
            time.sleep(0.2)
            stuck.set()

    monkeypatch.setattr(decode_pool.DecodeWorker, "decode", decode)
    monkeypatch.setattr(StoreWriter, "put", counted)
    backbone = f"{Path(tiny_backbone.__file__)}:make"
    config = replace(SMALL, backbone=backbone, workers=3)
    store = extract(small_store.catalog, tmp_path / "store", config)
    assert len(store) == len(small_store)
    assert waiting[:2] == [1, 2]
    assert max(waiting) <= 3


def test_the_workers_of_a_decoder_serve_many_draws(
    request_of_clips: DecodeRequest, small_store: FeatureStore
) -> None:
    videos = small_store.catalog.videos[:3]
    request = replace(request_of_clips, regular=False)
    pixels: dict[int, list[Tensor]] = {}
    decoder = decode_pool.ClipDecoder(request, workers=2, timeout=60.0, max_ahead=2)
    alone = decode_pool.ClipDecoder(request, workers=0, timeout=60.0, max_ahead=2)
    with closing(decoder), closing(alone):
        processes = set()
        for draw in (0, 1, 0):
            results = dict(decoder.decode(videos, draw))
            expected = dict(alone.decode(videos, draw))
            processes |= {id(worker.process) for worker in decoder.workers}
            pixels[draw] = []
            for index in range(3):
                found, same = results[index], expected[index]
                assert isinstance(found, DecodedClips)
                assert isinstance(same, DecodedClips)
                assert found.facts.regular_count == 0
                assert torch.equal(found.pixels, same.pixels)
                pixels[draw].append(found.pixels)
        assert len(processes - {id(None)}) <= 2
    assert not any(torch.equal(a, b) for a, b in zip(pixels[0], pixels[1], strict=True))


def test_a_closed_pool_ends_the_wait_of_another_thread(request_of_clips: DecodeRequest) -> None:
    pool = decode_pool.ClipDecoder(request_of_clips, workers=1, timeout=60.0)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(pool._wait_for_result)
        pool.close()
        assert isinstance(waiting.result(timeout=60.0), StoreError)
