"""Endpoints of the label loop. A label is on the disk before its request is answered."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Response

from clipset.labelling import LearnerState, QueueItem, ViewItem, ViewName
from clipset.text import name_text
from clipset.web import models
from clipset.web.routing import PROBLEM_ANSWERS, CurrentState

label_router = APIRouter(responses=PROBLEM_ANSWERS)


@label_router.get("/api/labels", response_model=models.LabelsAnswer)
def get_labels(state: CurrentState) -> dict[str, Any]:
    """All labels, spans and skipped videos."""
    loop, labels = state.labels, state.labels.labels
    return {
        "classes": loop.classes,
        "counts": Counter(labels.values()),
        "labels": list(labels.items()),
        "spans": loop.spans,
        "skipped": loop.skipped,
        "held_out": loop.held_out,
        "num_events": loop.log.num_events,
    }


@label_router.post("/api/labels")
def add_label(body: models.LabelRequest, state: CurrentState) -> LearnerState:
    """Label a video, or a moment of it; without a label, remove it."""
    if body.label is None:
        state.labels.remove(body.video, body.start, body.end)
    else:
        state.labels.add(body.video, body.label, body.start, body.end)
    return state.labels.score()


@label_router.post("/api/labels/skip")
def skip_video(body: models.SkipRequest, state: CurrentState) -> LearnerState:
    """Show a video no more in the queue."""
    state.labels.skip(body.video)
    return state.labels.score()


@label_router.post("/api/labels/undo")
def undo_label(state: CurrentState) -> LearnerState:
    """Take back the last label, span, removal or skip."""
    state.labels.undo()
    return state.labels.score()


@label_router.get("/api/learner")
def get_learner(state: CurrentState) -> LearnerState:
    """The score of the labelling head on held-out labels."""
    return state.labels.score()


@label_router.get("/api/learner/predictions", response_model=models.LearnerPredictions)
def get_learner_predictions(state: CurrentState) -> Response:
    """What the labelling head predicts for every video."""
    predictions = state.labels.predictions()
    content = {
        "classes": predictions.classes,
        "predictions": predictions.labels,
        "confidences": [None if c is None else round(c, 4) for c in predictions.confidences],
    }
    return Response(msgspec.json.encode(content), media_type="application/json")


@label_router.get("/api/queue", response_model=models.QueueAnswer)
def get_queue(
    state: CurrentState, limit: Annotated[int, Query(ge=1, le=models.MAX_RESULTS)] = 12
) -> dict[str, list[QueueItem]]:
    """The next videos to label, each with the reason why."""
    return {"items": state.labels.queue(limit)}


@label_router.get("/api/views/{name}", response_model=models.View)
def get_view(name: ViewName, state: CurrentState) -> dict[str, list[ViewItem]]:
    """Doubtful labels, duplicates or outliers, the clearest first."""
    return {"items": state.labels.view(name)}


@label_router.post("/api/export")
def post_export(state: CurrentState) -> models.Export:
    """Write a catalog with the labels, and a head that `clipset predict` uses."""
    export = state.labels.export()
    return models.Export(
        catalog=name_text(export.catalog),
        spans=None if export.spans is None else name_text(export.spans),
        head=None if export.head is None else name_text(export.head),
        command=export.command,
    )
