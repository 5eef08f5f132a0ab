"""What a run found, as one HTML page that opens offline."""

from clipset.report.content import (
    Counts,
    FactGroup,
    FailedVideo,
    Hit,
    MapPoint,
    Neighbours,
    ReportContent,
    Step,
    Strip,
)
from clipset.report.page import render_report, write_report
from clipset.report.records import ProbeRecord, read_record

__all__ = [
    "Counts",
    "FactGroup",
    "FailedVideo",
    "Hit",
    "MapPoint",
    "Neighbours",
    "ProbeRecord",
    "ReportContent",
    "Step",
    "Strip",
    "read_record",
    "render_report",
    "write_report",
]
