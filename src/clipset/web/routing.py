"""What the endpoints share: the served run, the index of a video, descriptions of answers."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request

from clipset.web import models
from clipset.web.state import ServerState

PROBLEM_ANSWERS: dict[int | str, dict[str, Any]] = {
    status: {"model": models.Problem} for status in (400, 404, 409, 411, 413, 422)
}
BINARY_SCHEMA = {"schema": {"type": "string", "format": "binary"}}


async def get_state(request: Request) -> ServerState:
    """The served run."""
    state: ServerState = request.app.state.server
    return state


CurrentState = Annotated[ServerState, Depends(get_state)]


async def check_index(index: int, state: CurrentState) -> int:
    """The index of a video of the run."""
    if not 0 <= index < len(state.run):
        last = len(state.run) - 1
        raise HTTPException(404, f"videos are numbered from 0 to {last}, got {index}")
    return index


VideoIndex = Annotated[int, Depends(check_index)]


def content_tag(content: bytes) -> str:
    """Other content has another tag."""
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def has_tag(request: Request, tag: str) -> bool:
    """Whether the client has this content already."""
    return f'"{tag}"' in request.headers.get("if-none-match", "")
