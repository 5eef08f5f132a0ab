"""Endpoints of media: the files of videos, previews and pictures of them."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse

from clipset.errors import VideoError
from clipset.web.media_worker import MediaKind
from clipset.web.routing import (
    BINARY_SCHEMA,
    PROBLEM_ANSWERS,
    CurrentState,
    VideoIndex,
    has_tag,
)
from clipset.web.state import ServerState

VIDEO_TYPES = {
    ".mp4": "video/mp4", ".m4v": "video/mp4", ".mov": "video/quicktime", ".mkv": "video/x-matroska",
    ".webm": "video/webm", ".avi": "video/x-msvideo", ".mpg": "video/mpeg", ".mpeg": "video/mpeg",
    ".gif": "image/gif", ".ogv": "video/ogg", ".3gp": "video/3gpp",
}  # fmt: skip
PLACEHOLDER = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 160 120" role="img">
<rect width="160" height="120" fill="#8884"/>
<g fill="none" stroke="#888" stroke-width="3" stroke-linecap="round">
<rect x="52" y="32" width="56" height="40" rx="4"/><path d="M60 64l40-24"/></g>
<text x="80" y="94" fill="#888" font-family="sans-serif" font-size="11" text-anchor="middle"
>cannot be read</text></svg>"""
MEDIA_POLICY = "default-src 'none'; sandbox"
PICTURE_ANSWER: dict[int | str, dict[str, Any]] = {200: {"content": {"image/*": BINARY_SCHEMA}}}
VIDEO_ANSWERS: dict[int | str, dict[str, Any]] = {
    status: {"content": {"video/*": BINARY_SCHEMA}} for status in (200, 206)
}

Time = Annotated[float | None, Query(ge=0, le=1e7)]  # seconds

media_router = APIRouter(responses=PROBLEM_ANSWERS)


@media_router.get("/api/videos/{index}/file", response_class=Response, responses=VIDEO_ANSWERS)
def get_file(index: VideoIndex, state: CurrentState) -> Response:
    """The file itself; ranges are answered, so that a browser can seek in it."""
    file = state.media.open_file(index)
    media_type = VIDEO_TYPES.get(file.path.suffix.lower(), "application/octet-stream")
    return _media_file(file.path, media_type)


@media_router.get("/api/videos/{index}/preview", response_class=Response, responses=VIDEO_ANSWERS)
async def get_preview(index: VideoIndex, state: CurrentState, start: Time = None) -> Response:
    """H.264 for players that cannot play the file: the whole video (at most 5 minutes) at 320 px.

    With `start`, 8 seconds from there. Made when it is first asked for; without sound.
    """
    file = await asyncio.to_thread(state.media.open_file, index)
    path = await asyncio.wrap_future(state.media.make(file, index, "preview", start))
    return _media_file(path, "video/mp4")


@media_router.get(
    "/api/videos/{index}/thumbnail", response_class=Response, responses=PICTURE_ANSWER
)
async def get_thumbnail(
    request: Request, index: VideoIndex, state: CurrentState, time: Time = None
) -> Response:
    """The middle frame as WebP, or that at a time; a placeholder if the video cannot be read."""
    return await _picture(request, index, state, "thumbnail", time)


@media_router.get("/api/videos/{index}/sprite", response_class=Response, responses=PICTURE_ANSWER)
async def get_sprite(request: Request, index: VideoIndex, state: CurrentState) -> Response:
    """Ten frames side by side as WebP; a placeholder if the video cannot be read."""
    if content := await asyncio.to_thread(state.media.stored_sprite, index):
        return _webp(request, hashlib.blake2b(content, digest_size=12).hexdigest(), content)
    return await _picture(request, index, state, "sprite")


async def _picture(
    request: Request, index: int, state: ServerState, kind: MediaKind, time: float | None = None
) -> Response:
    content = b""
    try:
        file = await asyncio.to_thread(state.media.open_file, index)
        if not has_tag(request, file.tag):
            path = await asyncio.wrap_future(state.media.make(file, index, kind, time))
            content = await asyncio.to_thread(path.read_bytes)
    except (VideoError, OSError):  # `problem` of the video says why
        headers = {"content-security-policy": MEDIA_POLICY, "cache-control": "no-store"}
        return Response(PLACEHOLDER, media_type="image/svg+xml", headers=headers)
    return _webp(request, file.tag, content)


def _webp(request: Request, tag: str, content: bytes) -> Response:
    """A picture, if the browser does not have it."""
    headers = {
        "content-security-policy": MEDIA_POLICY,
        "etag": f'"{tag}"',
        "cache-control": "private, max-age=86400",
    }
    if has_tag(request, tag):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="image/webp", headers=headers)


def _media_file(path: Path, media_type: str) -> Response:
    headers = {"cache-control": "private, no-cache", "content-security-policy": MEDIA_POLICY}
    return FileResponse(path, media_type=media_type, headers=headers)
