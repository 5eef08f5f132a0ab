"""Endpoints of search: by videos, moments, uploads and text."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request

from clipset.retrieval import QueryExample
from clipset.text import name_text
from clipset.web import models
from clipset.web.routing import PROBLEM_ANSWERS, CurrentState, VideoIndex
from clipset.web.searching import read_examples, video_filter
from clipset.web.state import ServerState

UPLOAD_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}

search_router = APIRouter(responses=PROBLEM_ANSWERS)


@search_router.post("/api/search")
def search_videos(body: models.SearchRequest, state: CurrentState) -> models.SearchResponse:
    """Videos or moments that are similar to the positive examples, best first."""
    began = time.perf_counter()
    positive, negative = _read_query(body, state)
    result = state.search.find(
        positive, negative, unit=body.unit, allowed=video_filter(body.filter), top=body.limit,
        prepare=False,
    )  # fmt: skip
    return models.SearchResponse(
        results=[
            models.SearchEntry(video=h.video_index, score=h.score, start=h.start, end=h.end)
            for h in result.hits
        ],
        exact=result.is_exact,
        seconds=round(time.perf_counter() - began, 4),
    )


@search_router.post("/api/videos/{index}/similarity")
def measure_similarity(
    index: VideoIndex, body: models.SimilarityRequest, state: CurrentState
) -> models.Similarity:
    """How similar each moment of a video is to a query."""
    hits = state.search.index.clip_similarity(index, *_read_query(body, state))
    return models.Similarity(
        clips=[
            models.TimedScore(start=h.start or 0.0, end=h.end or 0.0, score=h.score) for h in hits
        ]
    )


@search_router.post("/api/uploads", openapi_extra=UPLOAD_BODY)
async def upload_video(
    request: Request, state: CurrentState, name: Annotated[str, Query(max_length=1000)] = "video"
) -> models.UploadAnswer:
    """Encode a video to search with. The file is deleted, its vectors are kept for a while."""
    with state.uploads.waiting(), tempfile.TemporaryDirectory(prefix="clipset-") as folder:
        path = await state.uploads.receive(request.stream(), Path(folder))
        upload = await asyncio.to_thread(state.uploads.encode, path)
    return models.UploadAnswer(
        upload=upload.key, name=name_text(Path(name).name), duration=upload.duration
    )


def _read_query(
    body: models.SimilarityRequest, state: ServerState
) -> tuple[list[QueryExample], list[QueryExample]]:
    """The positive and negative examples of a request; a text is a positive one."""
    index = state.search.index
    positive = read_examples(body.positive, index, state.uploads)
    if body.text is not None and body.text.strip():
        positive.append(state.search.text_example(body.text))
    if not positive:
        raise HTTPException(400, "give at least one positive example or a text")
    return positive, read_examples(body.negative, index, state.uploads)
