"""The HTTP API of a served run."""

from __future__ import annotations

import io
import re
from pathlib import Path

import av
import numpy as np
from fastapi.testclient import TestClient
from PIL import Image
from tests.web.conftest import HOSTILE

from clipset.features.sprites import sprite_files, sprite_path
from clipset.web.state import ServerState


def test_the_run_and_its_videos_in_columns(client: TestClient, state: ServerState) -> None:
    run = client.get("/api/run").json()
    assert run["num_videos"] == 26
    assert run["classes"] == sorted([HOSTILE, "green", "red"])
    assert run["background"] == {"map": "ready", "predictions": "ready"}
    assert (run["has_model"], run["has_report"], run["can_predict"]) == (True, True, True)
    videos = client.get("/api/videos").json()
    assert tuple(videos["ids"]) == state.run.store.ids
    columns = [videos[name] for name in videos if name != "columns"]
    assert {len(column) for column in columns} == {26}
    assert set(videos["predictions"]) <= set(run["classes"])
    assert all(0 < confidence <= 1 for confidence in videos["confidences"])


def test_columns_are_compressed_and_cached_by_their_tag(client: TestClient) -> None:
    first = client.get("/api/videos")
    assert first.headers["content-encoding"] == "gzip"
    plain = client.get("/api/videos", headers={"accept-encoding": "identity"})
    assert plain.json() == first.json()
    again = client.get("/api/videos", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_map_is_an_array_in_the_unit_square(client: TestClient, state: ServerState) -> None:
    response = client.get("/api/map")
    positions = np.frombuffer(response.content, "<f4").reshape(-1, 2)
    assert len(positions) == len(state.run)
    assert response.headers["x-kind"] == "t-SNE"
    assert positions.min() == 0
    assert positions.max() == 1


def test_a_video_has_clips_classes_and_a_timeline(client: TestClient) -> None:
    video = client.get("/api/videos/0").json()
    assert (video["width"], video["height"], video["problem"]) == (64, 48, None)
    assert len(video["clips"]) == 4
    assert [c["probability"] for c in video["classes"]] == sorted(
        (c["probability"] for c in video["classes"]), reverse=True
    )
    assert all(0 <= w["start"] < w["end"] <= video["duration"] + 1e-3 for w in video["timeline"])
    assert len(video["timeline"]) == 2


def test_a_file_is_served_in_ranges(client: TestClient, state: ServerState) -> None:
    content = state.run.videos[0].path.read_bytes()
    whole = client.get("/api/videos/0/file")
    assert (whole.status_code, whole.content) == (200, content)
    assert whole.headers["content-type"] == "video/mp4"
    part = client.get("/api/videos/0/file", headers={"range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, content[10:20])
    assert client.get("/api/videos/0/file", headers={"range": "bytes=999999-"}).status_code == 416


def find_avi(state: ServerState) -> int:
    return next(i for i, video in enumerate(state.run.videos) if video.path.suffix == ".avi")


def test_a_preview_is_h264_that_streams(client: TestClient, state: ServerState) -> None:
    index = find_avi(state)
    response = client.get(f"/api/videos/{index}/preview")
    assert response.headers["content-type"] == "video/mp4"
    assert response.content.index(b"moov") < response.content.index(b"mdat")
    with av.open(io.BytesIO(response.content)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.frames) == ("h264", 24)
        assert stream.codec_context.pix_fmt == "yuv420p"
    moment = client.get(f"/api/videos/{index}/preview", params={"start": 1.5})
    with av.open(io.BytesIO(moment.content)) as container:
        assert container.streams.video[0].frames == 6
    late = client.get(f"/api/videos/{index}/preview", params={"start": 60})
    assert late.status_code == 404
    assert late.json()["detail"] == "starts at 60 s, but the video has 2 s"


def test_pictures_are_webp_and_cached(client: TestClient) -> None:
    for kind, size in (("thumbnail", (64, 48)), ("sprite", (640, 48))):
        response = client.get(f"/api/videos/1/{kind}")
        assert response.headers["content-type"] == "image/webp"
        assert Image.open(io.BytesIO(response.content)).size == size
        assert response.headers["cache-control"] == "private, max-age=86400"
        tag = {"if-none-match": response.headers["etag"]}
        assert client.get(f"/api/videos/1/{kind}", headers=tag).status_code == 304
    times = [client.get("/api/videos/1/thumbnail", params={"time": t}).content for t in (0, 0.6)]
    assert len(set(times)) == 2  # frames of two moments
    assert client.get("/api/videos/1/thumbnail", params={"time": -1}).status_code == 422


def test_a_deleted_video_says_so_everywhere(
    client: TestClient, state: ServerState, tmp_path: Path
) -> None:
    path = state.run.videos[2].path
    path.rename(tmp_path / "away.mp4")
    try:
        assert client.get("/api/videos/2").json()["problem"] == "no such file or directory"
        for kind in ("file", "preview"):
            response = client.get(f"/api/videos/2/{kind}")
            assert response.status_code == 404
            assert response.json() == {"detail": "no such file or directory"}
        picture = client.get("/api/videos/2/thumbnail")
        assert picture.headers["content-type"] == "image/svg+xml"
        assert b"cannot be read" in picture.content
        assert picture.headers["cache-control"] == "no-store"
    finally:
        (tmp_path / "away.mp4").rename(path)
    assert client.get("/api/videos/2").json()["problem"] is None


def test_a_stored_sprite_needs_neither_the_video_nor_a_worker(
    label_client: TestClient, copied_folder: Path, tmp_path: Path
) -> None:
    state: ServerState = label_client.app.state.server  # type: ignore[attr-defined]
    video = state.run.videos[2]
    stored = sprite_path(copied_folder / "store", state.run.store.entries[2].ordinal)
    video.path.rename(tmp_path / "away.mp4")
    try:
        response = label_client.get("/api/videos/2/sprite")
    finally:
        (tmp_path / "away.mp4").rename(video.path)
    assert response.headers["content-type"] == "image/webp"
    assert response.content == stored.read_bytes()
    tag = {"if-none-match": response.headers["etag"]}
    assert label_client.get("/api/videos/2/sprite", headers=tag).status_code == 304
    assert all(worker.process is None for worker in state.media.workers)
    assert label_client.get("/api/videos/99/sprite").status_code == 404


def test_a_store_without_sprites_gets_them_when_they_are_needed(
    label_client: TestClient, copied_folder: Path
) -> None:
    first, second = sprite_files(copied_folder / "store")[:2]
    first.unlink()
    second.write_bytes(second.read_bytes()[:50])
    for index in (0, 1):
        response = label_client.get(f"/api/videos/{index}/sprite")
        assert response.headers["content-type"] == "image/webp"
        assert Image.open(io.BytesIO(response.content)).size == (640, 48)
        assert response.headers["cache-control"] == "private, max-age=86400"


def test_the_report_is_framed_by_the_page_alone_and_has_no_access_to_it(client: TestClient) -> None:
    response = client.get("/report")
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "frame-ancestors 'self'" in policy
    assert "sandbox allow-scripts;" in policy


def test_the_page_asks_at_once_for_all_that_its_grid_needs(client: TestClient) -> None:
    page = client.get("/")
    preloaded = re.findall(r'<link rel="(?:module)?preload" href="([^"]+)"', page.text)
    needed, pending = set(), ["/static/app.js"]
    while pending:
        script = client.get(pending.pop())
        assert script.headers["content-type"].startswith("text/javascript")
        imported = {f"/static/{name}" for name in re.findall(r' from "\./(.+)";', script.text)}
        pending += imported - needed
        needed |= imported
    assert set(preloaded) == {"/api/run", "/api/videos", *needed}
    tag = {"if-none-match": page.headers["etag"]}
    assert client.get("/", headers=tag).status_code == 304


def test_unknown_videos_and_addresses_are_one_line(client: TestClient) -> None:
    assert client.get("/api/videos/26").json() == {
        "detail": "videos are numbered from 0 to 25, got 26"
    }
    for address in ("/api/videos/-1", "/api/nothing", "/static/nothing.js", "/static/..%2fapp.py"):
        assert client.get(address).status_code == 404
    invalid = client.get("/api/videos/one")
    assert invalid.status_code == 422
    assert isinstance(invalid.json()["detail"], str)
