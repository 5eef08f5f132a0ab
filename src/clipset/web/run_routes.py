"""Endpoints of the run: its facts, videos, map and report."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import FileResponse

from clipset.text import name_text
from clipset.web import models
from clipset.web.routing import (
    BINARY_SCHEMA,
    PROBLEM_ANSWERS,
    CurrentState,
    VideoIndex,
    has_tag,
)
from clipset.web.state import PENDING, READY

REPORT_POLICY = (  # a report may come with a run of somebody else: it has no access to the API
    "sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)

run_router = APIRouter(responses=PROBLEM_ANSWERS)


@run_router.get("/api/run")
def get_run(state: CurrentState) -> models.RunSummary:
    """The run as a whole."""
    run = state.run
    return models.RunSummary(
        name=run.name,
        num_videos=len(run),
        classes=list(run.store.catalog.classes),
        splits=list(run.store.catalog.splits),
        columns=list(run.columns),
        backbone=run.store.manifest.backbone.name,
        has_model=(run.folder / "model" / "model.json").is_file(),
        has_report=run.report is not None,
        can_search_text=state.can_search_text,
        can_predict=state.background["predictions"] == READY,
        can_label=state.is_writable,
        background=models.Background(**state.background),
        version=version("clipset"),
    )


@run_router.get("/api/videos", response_model=models.VideoColumns)
def get_videos(request: Request, state: CurrentState) -> Response:
    """All videos in columns; compressed, and with an ETag."""
    encoded = state.run.encoded
    headers = {"etag": f'"{encoded.tag}"', "cache-control": "no-cache", "vary": "accept-encoding"}
    if has_tag(request, encoded.tag):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(encoded.compressed, media_type="application/json", headers=headers)
    return Response(encoded.plain, media_type="application/json", headers=headers)


@run_router.get(
    "/api/map",
    response_class=Response,
    responses={
        200: {"content": {"application/octet-stream": BINARY_SCHEMA}},
        410: PROBLEM_ANSWERS[404],
    },
)
def get_map(state: CurrentState) -> Response:
    """Positions: N × 2 float32, little-endian, from 0 to 1. 404 until they are computed."""
    if state.map is None:
        status = state.background["map"]
        if status == PENDING:
            raise HTTPException(404, "the map is being computed; ask again in a few seconds")
        raise HTTPException(410, f"there is no map: {status}")
    positions, kind = state.map
    content = positions.astype("<f4").tobytes()
    return Response(content, media_type="application/octet-stream", headers={"x-kind": kind})


@run_router.get("/api/videos/{index}", response_model=models.VideoDetails)
def get_video(index: VideoIndex, state: CurrentState) -> dict[str, Any]:
    """One video: its file, clips, predictions and labelled spans."""
    run, entry, video = state.run, state.run.store.entries[index], state.run.videos[index]
    return {
        "id": video.id,
        "name": name_text(video.path.name),
        "label": video.label,
        "split": video.split,
        "duration": entry.duration,
        "width": entry.width,
        "height": entry.height,
        "problem": state.media.find_problem(index),
        "columns": {name: values[index] for name, values in run.columns.items()},
        "clips": run.boxes(index),
        "classes": state.predictions.top_classes(index),
        "timeline": state.predictions.timeline(index),
        "spans": [span for span in state.labels.spans if span.video_index == index],
    }


@run_router.get("/report", include_in_schema=False)
def get_report(state: CurrentState) -> Response:
    """The run's report, which a frame of the page shows."""
    if state.run.report is None:
        raise HTTPException(404, "the run has no report; `clipset report RUN` writes it")
    headers = {"content-security-policy": REPORT_POLICY, "cache-control": "no-cache"}
    return FileResponse(state.run.report, media_type="text/html", headers=headers)
