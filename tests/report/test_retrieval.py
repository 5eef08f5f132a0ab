"""The table of retrieval on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clipset.config import to_mapping
from clipset.errors import ProbeError
from clipset.evaluation.results import RetrievalResult, read_optional
from clipset.report.content import ReportContent
from clipset.report.page import render_report

ROW = RetrievalResult(
    features="scale", vectors="time_course", mean_average_precision=0.523, interval=(0.48, 0.57),
    recall={"1": 0.61, "5": 0.875}, n=40, num_train=160,
)  # fmt: skip


def test_the_page_has_a_row_for_each_kind_of_vector() -> None:
    rows = [
        RetrievalResult(**(to_mapping(ROW) | {"features": "backbone", "vectors": "mean"})),
        ROW,
    ]
    page = render_report(ReportContent(title="run", retrieval=rows))
    section = page.partition('<section id="retrieval">')[2].partition("</section>")[0]
    for text in ("Mean feature", "SCALE time course", "52.3", "48.0–57.0", "R@5", "87.5"):
        assert text in section
    assert "160\u202ftraining videos" in section or "160 training videos" in section
    assert 'id="retrieval"' not in render_report(ReportContent(title="bare"))


def test_a_name_in_the_file_never_becomes_html() -> None:
    hostile = RetrievalResult(**(to_mapping(ROW) | {"vectors": "<b>x</b>"}))
    assert "<b>x</b>" not in render_report(ReportContent(title="run", retrieval=[hostile]))


def test_a_file_that_was_edited_is_named(tmp_path: Path) -> None:
    path = tmp_path / "retrieval.json"
    assert read_optional(path, RetrievalResult) == []
    path.write_text(json.dumps([to_mapping(ROW)]))
    assert read_optional(path, RetrievalResult) == [ROW]
    path.write_text(json.dumps([to_mapping(ROW) | {"mean_average_precision": "high"}]))
    with pytest.raises(ProbeError, match=r"retrieval\.json"):
        read_optional(path, RetrievalResult)
