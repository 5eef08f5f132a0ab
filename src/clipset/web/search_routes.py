"""Endpoints of search: by videos, moments, uploads and text."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request

from clipset.retrieval import QueryExample, SearchHit
from clipset.text import name_text
from clipset.web import models
from clipset.web.routing import PROBLEM_ANSWERS, CurrentState, VideoIndex
from clipset.web.state import ServerState

UPLOAD_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}

search_router = APIRouter(responses=PROBLEM_ANSWERS)


@search_router.post("/api/search", response_model=models.SearchResponse)
def search_videos(body: models.SearchRequest, state: CurrentState) -> dict[str, Any]:
    """Videos or moments that are similar to the positive examples, best first."""
    began = time.perf_counter()
    filters = body.filter or models.Filter()
    columns = {"label": filters.label, "split": filters.split, **filters.columns}
    allowed = state.search.filter_videos({name: v for name, v in columns.items() if v})
    positive, negative = _read_query(body, state)
    result = state.search.find(
        positive, negative, unit=body.unit, allowed=allowed, top=body.limit, prepare=False
    )
    seconds = round(time.perf_counter() - began, 4)
    return {"results": result.hits, "exact": result.is_exact, "seconds": seconds}


@search_router.post("/api/videos/{index}/similarity", response_model=models.Similarity)
def measure_similarity(
    index: VideoIndex, body: models.SimilarityRequest, state: CurrentState
) -> dict[str, list[SearchHit]]:
    """How similar each moment of a video is to a query."""
    return {"clips": state.search.index.clip_similarity(index, *_read_query(body, state))}


@search_router.post("/api/uploads", openapi_extra=UPLOAD_BODY)
async def upload_video(
    request: Request, state: CurrentState, name: Annotated[str, Query(max_length=1000)] = "video"
) -> models.UploadAnswer:
    """Encode a video to search with. The file is deleted, its vectors are kept for a while."""
    with state.uploads.waiting(), tempfile.TemporaryDirectory(prefix="clipset-") as folder:
        path = await state.uploads.receive(request.stream(), Path(folder))
        key, duration = await asyncio.to_thread(state.uploads.encode, path)
    return models.UploadAnswer(upload=key, name=name_text(Path(name).name), duration=duration)


def _read_query(
    body: models.SimilarityRequest, state: ServerState
) -> tuple[list[QueryExample], list[QueryExample]]:
    """The positive and negative examples of a request; a text is a positive one."""
    positive = [_read_example(example, state) for example in body.positive]
    if body.text is not None and body.text.strip():
        positive.append(state.search.text_example(body.text))
    if not positive:
        raise HTTPException(400, "give at least one positive example or a text")
    return positive, [_read_example(example, state) for example in body.negative]


def _read_example(example: models.Example, state: ServerState) -> QueryExample:
    """A video, a moment or an upload as vectors."""
    if example.upload is not None:
        return state.uploads.find(example.upload)
    assert example.video is not None
    if example.start is None or example.end is None:
        return state.search.index.video_example(example.video)
    return state.search.index.moment_example(example.video, example.start, example.end)
