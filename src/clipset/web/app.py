"""The endpoints: thin functions over ServerState, described by /openapi.json."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse

from clipset.errors import ClipsetError, LockError, OutputError, VideoError
from clipset.text import name_text, visible
from clipset.web import models
from clipset.web.guards import Guards
from clipset.web.media_worker import MediaKind
from clipset.web.state import PENDING, READY, ServerState

MEDIA_TYPES = {
    ".mp4": "video/mp4", ".m4v": "video/mp4", ".mov": "video/quicktime", ".mkv": "video/x-matroska",
    ".webm": "video/webm", ".avi": "video/x-msvideo", ".mpg": "video/mpeg", ".mpeg": "video/mpeg",
    ".gif": "image/gif", ".ogv": "video/ogg", ".3gp": "video/3gpp",
}  # fmt: skip
STATIC_TYPES = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".png": "image/png",
}  # fmt: skip
PLACEHOLDER = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 160 120" role="img">
<rect width="160" height="120" fill="#8884"/>
<g fill="none" stroke="#888" stroke-width="3" stroke-linecap="round">
<rect x="52" y="32" width="56" height="40" rx="4"/><path d="M60 64l40-24"/></g>
<text x="80" y="94" fill="#888" font-family="sans-serif" font-size="11" text-anchor="middle"
>cannot be read</text></svg>"""
MEDIA_POLICY = "default-src 'none'; sandbox"
REPORT_POLICY = (  # a report may come with a run of somebody else: it has no access to the API
    "sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
CACHED = "private, max-age=86400"
PROBLEM: dict[int | str, dict[str, Any]] = {
    status: {"model": models.Problem} for status in (400, 404, 409, 413, 422)
}
BINARY = {"schema": {"type": "string", "format": "binary"}}

router = APIRouter(responses=PROBLEM)


async def get_state(request: Request) -> ServerState:
    """What the endpoints use."""
    state: ServerState = request.app.state.server
    return state


async def check_index(index: int, state: State) -> int:
    """The index of a video of the run."""
    if not 0 <= index < len(state.run):
        last = len(state.run) - 1
        raise HTTPException(404, f"videos are numbered from 0 to {last}, got {index}")
    return index


State = Annotated[ServerState, Depends(get_state)]
VideoIndex = Annotated[int, Depends(check_index)]


def create_app(
    state: ServerState,
    *,
    hosts: frozenset[str] = frozenset({"localhost"}),
    token: str | None = None,
) -> FastAPI:
    """The application; its background work starts with it, and it closes the state."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        state.start()
        yield
        state.close()

    app = FastAPI(
        title="clipset", version=version("clipset"), docs_url=None, redoc_url=None,
        lifespan=lifespan,
    )  # fmt: skip
    app.state.server = state
    app.include_router(router)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(ClipsetError, _answer_refused)
    app.add_exception_handler(Exception, _answer_bug)
    app.add_middleware(Guards, hosts=hosts, token=token, max_upload_bytes=1 << 29)
    return app


async def _answer_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return _problem(422, f"{place}: {first['msg']}")


async def _answer_refused(_request: Request, error: Exception) -> Response:
    status = 400
    if isinstance(error, VideoError):
        status = 404
    elif isinstance(error, OutputError | LockError):
        status = 409
    return _problem(status, str(error))


async def _answer_bug(_request: Request, error: Exception) -> Response:
    return _problem(500, f"a bug of clipset: {type(error).__name__}")


def _problem(status: int, line: str) -> JSONResponse:
    text = visible(" ".join(line.split())).encode("utf-8", errors="replace").decode()
    return JSONResponse({"detail": text}, status)


@cache
def static_files() -> dict[str, Path]:
    """The files of the page by name."""
    folder, raster = Path(str(files("clipset.web"))) / "static", "raster.js"
    paths = {path.name: path for path in folder.iterdir() if path.suffix in STATIC_TYPES}
    return paths | {raster: Path(str(files("clipset.report"))) / "assets" / raster}


@router.get("/", include_in_schema=False)
def get_page() -> Response:
    return get_static("index.html")


@router.get("/static/{name}", include_in_schema=False)
def get_static(name: str) -> Response:
    path = static_files().get(name)
    if path is None or not path.is_file():
        raise HTTPException(404, "the page has no such file")
    headers = {"cache-control": "no-cache"}
    return FileResponse(path, media_type=STATIC_TYPES[path.suffix], headers=headers)


@router.get("/api/run")
def get_run(state: State) -> models.RunSummary:
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
        can_search_text=False,
        can_predict=state.background["predictions"] == READY,
        can_label=state.is_writable,
        background=models.Background(**state.background),
        limits=models.Limits(upload_bytes=1 << 29, upload_seconds=600, uploads=32),
        version=version("clipset"),
    )


@router.get("/api/videos", response_model=models.VideoColumns)
def get_videos(request: Request, state: State) -> Response:
    """All videos in columns; compressed, and with an ETag."""
    encoded = state.run.encoded()
    headers = {"etag": f'"{encoded.tag}"', "cache-control": "no-cache", "vary": "accept-encoding"}
    if _has_tag(request, encoded.tag):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(encoded.compressed, media_type="application/json", headers=headers)
    return Response(encoded.plain, media_type="application/json", headers=headers)


@router.get(
    "/api/map",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": BINARY}}, 410: PROBLEM[404]},
)
def get_map(state: State) -> Response:
    """Positions: N × 2 float32, little-endian, from 0 to 1. 404 until they are computed."""
    if state.map is None:
        status = state.background["map"]
        if status == PENDING:
            raise HTTPException(404, "the map is being computed; ask again in a few seconds")
        raise HTTPException(410, f"there is no map: {status}")
    content = state.map.positions.astype("<f4").tobytes()
    return Response(
        content, media_type="application/octet-stream", headers={"x-kind": state.map.kind}
    )


@router.get("/api/videos/{index}")
def get_video(index: VideoIndex, state: State) -> models.VideoDetails:
    """One video: its file, clips, predictions and labelled spans."""
    run, entry = state.run, state.run.store.entries[index]
    video = run.videos[index]
    return models.VideoDetails(
        id=video.id,
        name=name_text(video.path.name),
        label=video.label,
        split=video.split,
        duration=entry.duration,
        width=entry.width,
        height=entry.height,
        problem=state.media.find_problem(index),
        columns={name: values[index] for name, values in run.columns.items()},
        clips=[models.Clip(**box) for box in run.boxes(index)],
        classes=[models.LabelProbability(**c) for c in state.predictions.top_classes(index)],
        timeline=[models.TimedPrediction(**w) for w in state.predictions.timeline(index)],
        spans=[],
    )


@router.get(
    "/api/videos/{index}/file",
    response_class=Response,
    responses={status: {"content": {"video/*": BINARY}} for status in (200, 206)},
)
def get_file(index: VideoIndex, state: State) -> Response:
    """The file itself; ranges are answered, so that a browser can seek in it."""
    file = state.media.open_file(index)
    media_type = MEDIA_TYPES.get(file.path.suffix.lower(), "application/octet-stream")
    return _media_file(file.path, media_type)


@router.get(
    "/api/videos/{index}/preview",
    response_class=Response,
    responses={status: {"content": {"video/mp4": BINARY}} for status in (200, 206)},
)
async def get_preview(
    index: VideoIndex, state: State, start: Annotated[float | None, Query(ge=0, le=1e7)] = None
) -> Response:
    """H.264 for players that cannot play the file: the whole video (at most 5 minutes) at 320 px.

    With `start`, 8 seconds from there. Made when it is first asked for; without sound.
    """
    file = await asyncio.to_thread(state.media.open_file, index)
    path = await asyncio.wrap_future(state.media.make(file, index, "preview", start))
    return _media_file(path, "video/mp4")


@router.get(
    "/api/videos/{index}/thumbnail",
    response_class=Response,
    responses={200: {"content": {"image/*": BINARY}}},
)
async def get_thumbnail(request: Request, index: VideoIndex, state: State) -> Response:
    """The middle frame as WebP; a placeholder if the video cannot be read."""
    return await _picture(request, index, state, "thumbnail")


@router.get(
    "/api/videos/{index}/sprite",
    response_class=Response,
    responses={200: {"content": {"image/*": BINARY}}},
)
async def get_sprite(request: Request, index: VideoIndex, state: State) -> Response:
    """Ten frames side by side as WebP; a placeholder if the video cannot be read."""
    return await _picture(request, index, state, "sprite")


@router.get("/report", include_in_schema=False)
def get_report(state: State) -> Response:
    """The run's report, which a frame of the page shows."""
    if state.run.report is None:
        raise HTTPException(404, "the run has no report; `clipset report RUN` writes it")
    headers = {"content-security-policy": REPORT_POLICY, "cache-control": "no-cache"}
    return FileResponse(state.run.report, media_type=STATIC_TYPES[".html"], headers=headers)


async def _picture(request: Request, index: int, state: ServerState, kind: MediaKind) -> Response:
    try:
        file = state.media.open_file(index)
        headers = {"etag": f'"{file.tag}"', "cache-control": CACHED}
        headers["content-security-policy"] = MEDIA_POLICY
        if _has_tag(request, file.tag):
            return Response(status_code=304, headers=headers)
        path = await asyncio.wrap_future(state.media.make(file, index, kind))
        content = await asyncio.to_thread(path.read_bytes)
    except (VideoError, OSError):  # `problem` of the video says why
        headers = {"content-security-policy": MEDIA_POLICY, "cache-control": "no-store"}
        return Response(PLACEHOLDER, media_type="image/svg+xml", headers=headers)
    return Response(content, media_type="image/webp", headers=headers)


def _media_file(path: Path, media_type: str) -> Response:
    headers = {"cache-control": "private, no-cache", "content-security-policy": MEDIA_POLICY}
    return FileResponse(path, media_type=media_type, headers=headers)


def _has_tag(request: Request, tag: str) -> bool:
    return f'"{tag}"' in request.headers.get("if-none-match", "")
