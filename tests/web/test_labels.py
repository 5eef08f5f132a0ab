"""The label loop over HTTP."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from clipset.labelling import log
from clipset.web.state import ServerState


def test_labels_are_learned_scored_and_taken_back(
    label_client: TestClient, state: ServerState
) -> None:
    client = label_client
    true_labels = state.run.labels
    assert client.get("/api/learner").json()["num_labels"] == 0
    for _ in range(12):
        [item] = client.get("/api/queue", params={"limit": 1}).json()["items"]
        assert item["reason"]
        label = {"video": item["video"], "label": true_labels[item["video"]]}
        learner = client.post("/api/labels", json=label).json()
    assert (learner["num_labels"], learner["num_held_out"], learner["num_trained"]) == (12, 2, 10)
    assert learner["low"] <= learner["score"] <= learner["high"]
    assert learner["curve"][-1]["num_labels"] == 12
    predictions = client.get("/api/learner/predictions").json()
    assert len(predictions["predictions"]) == len(state.run)
    labels = client.get("/api/labels").json()
    assert sum(labels["counts"].values()) == len(labels["labels"]) == 12
    assert len(labels["held_out"]) == 2
    span = {"video": 0, "label": "a moment", "start": 0.1, "end": 0.5}
    assert client.post("/api/labels", json=span).status_code == 200
    expected = [{"start": 0.1, "end": 0.5, "label": "a moment"}]
    assert client.get("/api/videos/0").json()["spans"] == expected
    assert client.post("/api/labels/undo").status_code == 200
    assert client.get("/api/videos/0").json()["spans"] == []
    assert client.post("/api/labels/skip", json={"video": 3}).status_code == 200
    assert client.get("/api/labels").json()["skipped"] == [3]
    removed = client.post("/api/labels", json={"video": labels["labels"][0][0], "label": None})
    assert removed.json()["num_labels"] == 11


def test_views_and_the_export(label_client: TestClient, copied_folder: Path) -> None:
    for view in ("doubtful", "duplicates", "outliers"):
        items = label_client.get(f"/api/views/{view}").json()["items"]
        assert all(item["reason"] and item["videos"] for item in items)
        if view == "duplicates":
            assert 25 in items[0]["videos"]  # the copy
    assert label_client.get("/api/views/others").status_code == 422
    assert label_client.post("/api/export").status_code == 400  # nothing is labelled
    for video in range(4):
        label_client.post("/api/labels", json={"video": video, "label": "=a" if video % 2 else "b"})
    export = label_client.post("/api/export").json()
    assert export["catalog"] == str(copied_folder / "labels" / "catalog.csv")
    assert "'=a" in Path(export["catalog"]).read_text()  # no formula of a spreadsheet
    assert Path(export["head"]).is_dir()
    assert export["command"].startswith("clipset predict")


def test_labels_that_cannot_be_are_one_line(client: TestClient) -> None:
    for body in (
        {"video": 26, "label": "a"},
        {"video": 0, "label": " "},
        {"video": 0, "label": "a", "start": 1.0},
        {"video": 0, "label": "a", "start": 2.0, "end": 1.0},
        {"video": 0, "label": "a", "start": 0.0, "end": 1e6},
        {"video": 0, "label": "a\u202eb"},
        {"video": -1, "label": "a"},
        {"video": 0, "label": "a", "more": 1},
    ):
        response = client.post("/api/labels", json=body)
        assert response.status_code in (400, 422), body
        assert isinstance(response.json()["detail"], str)
    lone_surrogate = client.post("/api/labels", content=b'{"video": 0, "label": "\\ud800"}')
    assert lone_surrogate.status_code in (400, 422)


def test_a_full_disk_is_said_and_the_label_is_not_taken(
    label_client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = {"video": 0, "label": "a"}
    assert label_client.post("/api/labels", json=label).status_code == 200

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(log, "_write_at", fail)
        refused = label_client.post("/api/labels", json={"video": 1, "label": "b"})
    assert refused.status_code == 409
    assert "No space left on device; free disk space" in refused.json()["detail"]
    assert label_client.get("/api/labels").json()["labels"] == [[0, "a"]]
    assert label_client.post("/api/labels", json={"video": 1, "label": "b"}).status_code == 200


def start_server(run: Path) -> tuple[subprocess.Popen[str], str]:
    """`clipset serve` as a process, and its address."""
    command = [Path(sys.executable).with_name("clipset"), "serve", run, "--port", 0, "--no-browser"]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = next((line for line in process.stdout if re.match(r"http://127.0.0.1:\d+/$", line)), "")
    assert line, process.communicate()
    return process, line.strip()


@pytest.mark.slow
def test_a_server_killed_after_every_label_has_lost_none(copied_folder: Path) -> None:
    for count in range(4):
        process, address = start_server(copied_folder)
        try:
            labels = httpx.get(f"{address}api/labels").json()["labels"]
            assert labels == [[video, f"class {video}"] for video in range(count)]
            label = {"video": count, "label": f"class {count}"}
            assert httpx.post(f"{address}api/labels", json=label).status_code == 200
        finally:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_ctrl_c_ends_the_server_and_its_workers_and_a_second_server_is_refused(
    copied_folder: Path,
) -> None:
    process, address = start_server(copied_folder)
    assert httpx.get(f"{address}api/videos/0/thumbnail").headers["content-type"] == "image/webp"
    assert httpx.get(address).text.startswith("<!doctype html>")
    with pytest.raises(AssertionError, match="is being written by process"):
        start_server(copied_folder)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)
