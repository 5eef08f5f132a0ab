"""Labels of a run's videos: an append-only log, a classifier of them, and what to label next."""

from clipset.labelling.export import LabelExport
from clipset.labelling.log import LabelEvent, LabelLog, LabelState, clean_label
from clipset.labelling.loop import LabelLoop, LabelPredictions, SpanLabel
from clipset.labelling.queue import QueueItem
from clipset.labelling.score import HeldOutScore, LearnerState
from clipset.labelling.views import ViewItem, ViewName

__all__ = [
    "HeldOutScore", "LabelEvent", "LabelExport", "LabelLog", "LabelLoop", "LabelPredictions",
    "LabelState", "LearnerState", "QueueItem", "SpanLabel", "ViewItem", "ViewName", "clean_label",
]  # fmt: skip
