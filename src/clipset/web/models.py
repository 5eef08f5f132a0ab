"""The JSON of requests and answers; /openapi.json describes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from clipset.inference.run import ClassProbability, Moment

MAX_EXAMPLES = 64  # positive or negative ones of a query
MAX_RESULTS = 500
MAX_TEXT = 500  # characters of a query or a label
MAX_JSON_BYTES = 1 << 20  # of a request
MAX_UPLOAD_BYTES = 512 << 20  # of one file
MAX_UPLOAD_SECONDS = 600.0  # of one video
MAX_UPLOADS = 64  # that are remembered
VideoNumber = Annotated[int, Field(ge=0, lt=2**31)]
VideoOf = Annotated[int, Field(validation_alias="video_index")]  # of what the library returns
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class RequestBody(BaseModel):
    """A body with nothing but what is described."""

    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """Why a request was refused, in one line."""

    detail: str


class Background(BaseModel):
    """What is computed after the start: `pending`, `ready`, `none` or the reason why it failed."""

    map: str
    predictions: str


class RunSummary(BaseModel):
    """The run as a whole."""

    name: str
    num_videos: int
    classes: list[str]
    splits: list[str]
    columns: list[str]
    backbone: str
    has_model: bool
    has_report: bool
    can_search_text: bool
    can_predict: bool
    can_label: bool
    background: Background
    version: str


class VideoColumns(BaseModel):
    """All videos, one array for each column."""

    ids: list[str]
    names: list[str]
    labels: list[str | None]
    splits: list[str | None]
    durations: list[float]
    predictions: list[str | None]
    confidences: list[float | None]
    columns: dict[str, list[str | None]]


class Clip(BaseModel):
    """A regular clip: seconds, and fractions of the frame."""

    start: float
    end: float
    top: float
    left: float
    bottom: float
    right: float


class TimedLabel(BaseModel):
    """A label from `start` to `end`, in seconds."""

    start: float
    end: float
    label: str


class VideoDetails(BaseModel):
    """One video; `problem` says why it cannot be played, or what is wrong with it."""

    id: str
    name: str
    label: str | None
    split: str | None
    duration: float
    width: int
    height: int
    problem: str | None
    columns: dict[str, str | None]
    clips: list[Clip]
    classes: list[ClassProbability]
    timeline: list[Moment]
    spans: list[TimedLabel]


class Example(RequestBody):
    """A video of the run, a moment of it, or an uploaded video."""

    video: VideoNumber | None = None
    start: Seconds | None = None
    end: Seconds | None = None
    upload: Annotated[str, Field(max_length=64)] | None = None

    @model_validator(mode="after")
    def check(self) -> Example:
        if (self.video is None) == (self.upload is None):
            raise ValueError("an example is a video or an upload")
        if (self.start is None) != (self.end is None) or (self.upload and self.end is not None):
            raise ValueError("a moment is a video with start and end")
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ValueError("a moment ends after it starts")
        return self


class Filter(RequestBody):
    """Allowed values of each column; null is for videos that have none."""

    label: list[str | None] | None = None
    split: list[str | None] | None = None
    columns: dict[str, list[str | None]] = {}


ExampleList = Annotated[list[Example], Field(max_length=MAX_EXAMPLES)]


class SimilarityRequest(RequestBody):
    """What to look for."""

    positive: ExampleList = []
    negative: ExampleList = []
    text: Annotated[str, Field(max_length=MAX_TEXT)] | None = None


class SearchRequest(SimilarityRequest):
    """What to look for, and where."""

    unit: Literal["video", "moment"] = "video"
    filter: Filter | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = 100


class SearchEntry(BaseModel):
    """A video, or a moment of it."""

    video: VideoOf
    score: float
    start: float | None
    end: float | None


class SearchResponse(BaseModel):
    """Hits, best first; `exact` is false if an approximate index was used."""

    results: list[SearchEntry]
    exact: bool
    seconds: float


class TimedScore(BaseModel):
    """How similar a moment is to a query."""

    start: float
    end: float
    score: float


class Similarity(BaseModel):
    """How similar each moment of a video is to a query."""

    clips: list[TimedScore]


class UploadAnswer(BaseModel):
    """An uploaded video, for the examples of a query."""

    upload: str
    name: str
    duration: float


class SpanEntry(BaseModel):
    """A labelled moment."""

    video: VideoOf
    start: float
    end: float
    label: str


class LabelsAnswer(BaseModel):
    """What was labelled so far."""

    classes: list[str]
    counts: dict[str, int]
    labels: list[tuple[int, str]]
    spans: list[SpanEntry]
    skipped: list[int]
    held_out: list[int]
    num_events: int


class LabelRequest(RequestBody):
    """A label of a video, or of a moment of it; without a label, it is removed."""

    video: VideoNumber
    label: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    start: Seconds | None = None
    end: Seconds | None = None


class SkipRequest(RequestBody):
    """A video that is not to be labelled."""

    video: VideoNumber


class LearnerPredictions(BaseModel):
    """The labels that the labelling head predicts, for every video."""

    classes: list[str]
    predictions: list[str | None]
    confidences: list[float | None]


class QueueEntry(BaseModel):
    """A video to label next, and why."""

    video: VideoOf
    reason: str
    suggestion: str | None
    probability: float | None


class QueueAnswer(BaseModel):
    """What to label next."""

    items: list[QueueEntry]


class ViewEntry(BaseModel):
    """Videos to look at, and why."""

    videos: Annotated[list[int], Field(validation_alias="video_indices")]
    score: float
    reason: str


class View(BaseModel):
    """Doubtful labels, duplicates or outliers, the clearest first."""

    items: list[ViewEntry]


class Export(BaseModel):
    """The written files, and the command that uses them."""

    catalog: str
    spans: str | None
    head: str | None
    command: str
