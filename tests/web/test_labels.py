"""The label loop over HTTP."""

from __future__ import annotations

from fastapi.testclient import TestClient

from clipset.web.state import ServerState


def test_labels_are_learned_scored_and_taken_back(client: TestClient, state: ServerState) -> None:
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


def test_labels_that_cannot_be_are_one_line(client: TestClient) -> None:
    for body in (
        {"video": 25, "label": "a"},
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
