"""Search over HTTP: by videos, moments and uploads, with filters."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.conftest import write_video

from clipset.web.state import ServerState


def search(client: TestClient, **body: object) -> list[dict[str, float]]:
    response = client.post("/api/search", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["exact"] is True
    results: list[dict[str, float]] = answer["results"]
    scores = [result["score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    return results


def test_the_copy_of_a_video_is_nearest_to_it(client: TestClient, state: ServerState) -> None:
    copy = state.run.store.ids.index("copy.mp4")
    results = search(client, positive=[{"video": copy}], limit=5)
    assert results[0]["score"] == pytest.approx(1, abs=1e-3)
    assert state.run.labels[int(results[0]["video"])] == "red"
    original = {"video": int(results[0]["video"])}
    others = search(client, positive=[{"video": copy}], negative=[original], limit=26)
    assert original["video"] not in [result["video"] for result in others]
    assert len(others) == 24


def test_moments_have_times_and_filters_hold(client: TestClient, state: ServerState) -> None:
    example = {"video": 0, "start": 0.0, "end": 0.4}
    allowed = {"label": ["red"], "split": ["train"]}
    results = search(client, positive=[example], unit="moment", filter=allowed)
    assert results
    for result in results:
        video = state.run.videos[int(result["video"])]
        assert (video.label, video.split) == ("red", "train")
        assert 0 <= result["start"] < result["end"] <= 2.1
    unlabelled = {"positive": [{"video": 0}], "filter": {"label": [None]}}
    refused = client.post("/api/search", json=unlabelled)
    assert refused.json() == {"detail": "no video has label none"}
    clips = client.post("/api/videos/1/similarity", json={"positive": [example]}).json()["clips"]
    assert len(clips) == 2


def test_a_dropped_file_is_searched_with_and_deleted(
    client: TestClient, state: ServerState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    state.run.trained.reader.config = state.run.trained.reader.config.__class__(workers=0)
    content = write_video(tmp_path / "new.mp4", seed=99, colour=1).read_bytes()
    uploaded = client.post("/api/uploads", params={"name": "../<b>.mp4"}, content=content).json()
    assert (uploaded["name"], uploaded["duration"]) == ("<b>.mp4", 1.0)
    results = search(client, positive=[{"upload": uploaded["upload"]}], limit=3)
    assert len(results) == 3
    for content in (b"", b"no video"):
        refused = client.post("/api/uploads", content=content)
        assert refused.status_code == 404
        assert "file" in refused.json()["detail"]
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"positive": []},
        {"positive": [{}]},
        {"positive": [{"video": 26}]},
        {"positive": [{"video": 0, "start": 1.0}]},
        {"positive": [{"video": 0, "start": 90.0, "end": 91.0}]},
        {"positive": [{"upload": "gone"}]},
        {"positive": [{"video": 0}], "limit": 501},
        {"positive": [{"video": 0}], "filter": {"columns": {"nothing": ["a"]}}},
        {"positive": [{"video": 0}], "unit": "film"},
        {"text": "a cat"},
    ],
)
def test_queries_that_cannot_be_are_one_line(client: TestClient, body: object) -> None:
    response = client.post("/api/search", json=body)
    assert response.status_code in (400, 422)
    assert isinstance(response.json()["detail"], str)
