"""Where the marks of the charts go."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.conftest import make_result

from clipset.report.charts import class_rows, curve_chart, round_ticks
from clipset.report.content import ReportContent, Step
from clipset.report.page import render_report
from clipset.report.wording import (
    format_duration,
    format_hours,
    format_number,
    format_percent,
)
from clipset.text import counted


@given(
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-3, 1e6),
    about=st.integers(2, 8),
)
def test_ticks_enclose_the_values_and_are_few(low: float, width: float, about: int) -> None:
    ticks = round_ticks(low, low + width, about)
    slack = 1e-6 * (abs(low) + width)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + width - slack
    assert len(ticks) <= about + 2


def test_a_curve_starts_left_and_ends_right_and_falls_downwards() -> None:
    chart = curve_chart("loss", [(1, 4.0), (2, 2.0), (3, 0.0)])
    assert chart.lines == ("0.00,0.00 50.00,50.00 100.00,100.00",)
    assert chart.readings[1] == (50.0, 50.0, "epoch 2: 2")


def test_an_epoch_that_is_not_finite_leaves_a_gap() -> None:
    chart = curve_chart("loss", [(1, 4.0), (2, 3.0), (3, float("nan")), (4, 1.0)])
    assert len(chart.lines) == 1
    assert len(chart.dots) == 1
    assert len(chart.readings) == 3


@pytest.mark.parametrize("value", [0.0, 3, 1e-9, -2.5, float("nan"), float("inf")])
def test_one_epoch_is_enough_for_a_chart(value: float) -> None:
    chart = curve_chart("masked_clip", [(1, value)])
    assert chart.title == "Masked clip loss"
    assert not chart.lines


def test_a_long_curve_keeps_its_last_value() -> None:
    chart = curve_chart("loss", [(epoch, float(epoch)) for epoch in range(1, 10_001)])
    assert len(chart.readings) <= 601
    assert chart.readings[-1][2] == "epoch 10000: 10000"


def test_an_accuracy_is_drawn_from_zero_in_percent() -> None:
    chart = curve_chart("set_accuracy", [(1, 0.5), (2, 0.75)])
    assert chart.y_axis.ticks[0] == (0, "0\u202f%")
    assert chart.last == "75\u202f%"


def test_a_curve_without_points_is_left_out() -> None:
    page = render_report(ReportContent(title="t", curves={"loss": []}))
    assert "No model was trained in this run" in page


def test_steps_share_one_scale() -> None:
    steps = [
        Step(name="a", seconds=0, note="done before"), Step(name="b", seconds=90),
        Step(name="c", seconds=45),
    ]  # fmt: skip
    page = render_report(ReportContent(title="t", steps=steps))
    rows = re.findall(r"<tr>\s*<th scope=\"row\">(\w)</th>(.*?)</tr>", page, re.S)
    assert [re.findall(r"width:([\d.]+)%", row) for _, row in rows] == [[], ["100.0"], ["50.0"]]
    assert [re.findall(r"\d+ min \d+ s|\d+ s", row) for _, row in rows] == [
        [], ["1 min 30 s"], ["45 s"]
    ]  # fmt: skip


def test_the_largest_gain_comes_first_and_a_class_without_videos_last() -> None:
    ours = make_result(per_class={"a": 0.5, "b": 0.9, "c": None, "d": 0.25})
    baseline = make_result(per_class={"a": 0.5, "b": 0.2, "c": 0.5, "d": 0.5})
    rows = class_rows(ours, baseline)
    assert [(row.label, row.gain) for row in rows] == [
        ("b", "+70"), ("a", "±0"), ("d", "−25"), ("c", "")
    ]  # fmt: skip


def test_a_group_of_rows_holds_one_kind_of_probe() -> None:
    kinds = [("backbone", "knn"), ("scale", "knn"), ("backbone", "linear"), ("scale", "linear")]
    page = render_report(ReportContent(title="t", results=[make_result(*kind) for kind in kinds]))
    rows = re.findall(r'<tr role="row" class="([\w ]+)">\s*<th role="rowheader"', page)
    assert rows == ["backbone", "scale", "backbone new", "scale"]


def test_numbers_are_written_as_a_reader_wants_them() -> None:
    assert [format_duration(s) for s in (0.04, 9.97, 59.6, 3599.7, 7320)] == [
        "0.0 s", "10 s", "1 min 0 s", "1 h 0 min", "2 h 2 min"
    ]  # fmt: skip
    assert [format_percent(f) for f in (0.5, 0.125, 0.0025, 0.0, 1.0)] == [
        "50",
        "12.5",
        "0.25",
        "0",
        "100",
    ]
    assert [format_number(v) for v in (0, 0.5, 5e-5, 12345.6, 1e9)] == [
        "0",
        "0.5",
        "5e-5",
        "12346",
        "1e9",
    ]
    assert [format_hours(v) for v in (0.426, 3, 1234)] == ["0.43", "3.0", "1\u202f234"]
    numbers = (0, 1, 2, 1234)
    assert [counted(n, "class", "classes") for n in numbers] == [
        "0 classes",
        "1 class",
        "2 classes",
        "1\u202f234 classes",
    ]
