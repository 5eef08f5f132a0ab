"""Workers are started as they are needed, and no more."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import SMALL
from tests.features import tiny_backbone

from clipset.features import decode_pool
from clipset.features.decode_clips import DecodeRequest
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
        outcomes = pool.results()
        places = []
        for _ in videos:
            while pool.queue.empty():
                time.sleep(0.01)
            places.append(next(outcomes).index)
        assert len(pool.workers) == 1
    assert places == [0, 1, 2, 3]


def test_more_workers_start_while_the_first_one_is_waited_for(
    request_of_clips: DecodeRequest, small_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_pool, "START_SECONDS", 0.01)
    videos = small_store.catalog.videos[:4]
    with closing(decode_pool.DecodePool(videos, request_of_clips, 3, 60.0)) as pool:
        outcomes = list(pool.results())
        assert len(pool.workers) == 3
    assert sorted(outcome.index for outcome in outcomes) == [0, 1, 2, 3]
    assert all(outcome.clips is not None for outcome in outcomes)
