"""Calibration, paired differences, low-shot curves, and the order of confused classes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from tests.report.conftest import make_result

from clipset.checksums import seal
from clipset.errors import ProbeError
from clipset.evaluation.results import Comparison, LowShotCurve, LowShotPoint
from clipset.report.charts import comparison_axis, low_shot_chart
from clipset.report.confusion import most_confused, order_classes
from clipset.report.content import ReportContent
from clipset.report.page import render_report
from clipset.report.run_page import read_calibration


def write_predictions(path: Path, classes: list[str]) -> None:
    """Four videos, two seeds, one row that is always 80 % sure and right three times of four."""
    truth = np.array([0, 1, 0, 1])
    said = np.array([0, 1, 0, 0])
    one = np.where(np.eye(2)[said] == 1, 0.8, 0.2).astype(np.float32)
    about = {
        "classes": json.dumps(classes), "ids": json.dumps(list("abcd")),
        "seeds": json.dumps({"scale/linear": [0, 1]}), "groups": json.dumps([]),
    }  # fmt: skip
    arrays = {"truth": truth, "scale/linear": np.stack([one, one])}
    path.write_bytes(seal(save(arrays, metadata=about)))


def test_calibration_is_read_from_the_predictions_of_a_run(tmp_path: Path) -> None:
    write_predictions(tmp_path / "predictions.safetensors", ["a", "b"])
    [row] = read_calibration(tmp_path / "predictions.safetensors")
    assert (row.probe, len(row.bins), row.bins[0].count) == ("linear", 1, 8)
    assert row.error == pytest.approx(0.05)
    assert row.gap == pytest.approx(0.05)


def test_a_run_without_the_files_has_none_of_it(tmp_path: Path) -> None:
    assert read_calibration(tmp_path / "predictions.safetensors") == []
    write_predictions(tmp_path / "numbers.safetensors", [])
    assert read_calibration(tmp_path / "numbers.safetensors") == []
    page = render_report(ReportContent(title="bare"))
    assert 'id="calibration"' not in page
    assert 'id="low-shot"' not in page
    assert "Paired differences" not in page


def test_a_file_that_holds_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "predictions.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(ProbeError, match="holds no predictions"):
        read_calibration(path)


def test_a_dot_lies_where_it_says(tmp_path: Path) -> None:
    write_predictions(tmp_path / "predictions.safetensors", ["a", "b"])
    calibration = read_calibration(tmp_path / "predictions.safetensors")
    page = render_report(ReportContent(title="t", calibration=calibration))
    [dot] = re.findall(r'<circle class="value" (cx[^>]+)\s*><title>(.+?)</title>', page, re.S)
    assert dot == (
        'cx="80.0%" cy="25.0%" r="14.0"\n              ',
        "confidence 80\u202f%, accuracy 75\u202f% (8 predictions)",
    )
    assert "Overconfident by 5 points" in page


def difference(gap: float, low: float, high: float) -> Comparison:
    return Comparison(
        features="scale", probe="linear", baseline_features="backbone", baseline_probe="linear",
        metric="top1", difference=gap, interval=(low, high), n=80, p=0.02,
    )  # fmt: skip


def low_shot_curve(features: str, scores: dict[float, float]) -> LowShotCurve:
    points = [
        LowShotPoint(
            fraction=fraction, videos=round(1000 * fraction), value=value,
            interval=(value - 0.1, value + 0.1), selected_on="validation",
        )
        for fraction, value in scores.items()
    ]  # fmt: skip
    return LowShotCurve(
        features=features, probe="linear", metric="top1", split="test", n=80, points=tuple(points)
    )


def test_differences_stand_around_zero() -> None:
    comparisons = [difference(0.1, -0.02, 0.2), difference(-0.1, -0.15, -0.05)]
    axis = comparison_axis(comparisons)
    assert axis.position(-0.02) < 50 < axis.position(0.1)
    assert axis.position(-0.1) == pytest.approx(100 - axis.position(0.1))
    assert [axis.position(value) for value, _ in axis.ticks] == [0, 25, 50, 75, 100]
    page = render_report(ReportContent(title="t", comparisons=comparisons, results=[make_result()]))
    rows = re.findall(r'<tr role="row" class="([\w ]*)">(.*?)</tr>', page, re.S)[1:]
    assert [kind.split() for kind, _ in rows] == [[], ["clear", "worse"]]
    assert "+10.0" in rows[0][1]
    assert "−10.0" in rows[1][1]


def test_low_shot_points_stand_on_a_logarithmic_axis() -> None:
    chart = low_shot_chart([low_shot_curve("scale", {0.01: 0.2, 0.1: 0.5, 1.0: 0.8})])
    assert chart is not None
    axis = chart.x_axis
    assert [axis.position(fraction) for fraction, _ in axis.ticks] == [0.0, 50.0, 100.0]
    assert [text for _, text in axis.ticks] == ["1", "10", "100"]
    assert chart.num_videos == {0.01: 10, 0.1: 100, 1.0: 1000}
    assert low_shot_chart([]) is None


def test_curves_without_a_fraction_leave_a_gap_in_the_table() -> None:
    curves = [low_shot_curve("scale", {0.1: 0.5, 1.0: 0.5}), low_shot_curve("backbone", {1.0: 0.5})]
    page = render_report(ReportContent(title="t", low_shot=curves))
    table = page[page.index('aria-label="Scores with fewer labels"') :]
    rows = re.findall(r"<tr>\s*<th scope=\"row\">SCALE linear</th>(.*?)</tr>", table, re.S)
    rows += re.findall(r"<tr>\s*<th scope=\"row\">Linear</th>(.*?)</tr>", table, re.S)
    assert [re.findall("<td>(.*?)</td>", row) for row in rows] == [["50.0", "50.0"], ["–", "50.0"]]


def blocks_of_classes(groups: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix in which classes are taken for others of their group only, shuffled."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(groups), size))
    same = group[:, None] == group[None, :]
    counts = np.where(same, rng.integers(1, 4, (len(group), len(group))), 0).astype(np.float64)
    np.fill_diagonal(counts, 20)
    return counts, group


def test_classes_that_are_taken_for_each_other_stand_together() -> None:
    counts, group = blocks_of_classes(50, 4, seed=0)
    order, _ = order_classes(counts)
    assert sorted(order) == list(range(200))
    changes = np.count_nonzero(np.diff(group[order]))
    assert changes == 49


def test_the_groups_that_are_mixed_up_most_are_whole_and_apart() -> None:
    counts, group = blocks_of_classes(10, 4, seed=1)
    order, groups = order_classes(counts)
    mixed = most_confused(counts, order, groups)
    assert len(mixed) == 6
    for confused in mixed:
        classes = order[int(confused["first"]) :][: int(confused["size"])]
        assert len(set(group[classes])) == 1
        inner = counts[np.ix_(classes, classes)]
        assert confused["mistakes"] == inner.sum() - np.trace(inner)


def test_two_classes_or_no_mistakes_need_no_order() -> None:
    assert order_classes(np.eye(2)) == ([0, 1], [])
    assert most_confused(np.eye(9), *order_classes(np.eye(9))) == []
    assert sorted(order_classes(np.zeros((5, 5)))[0]) == list(range(5))


def test_many_classes_show_the_largest_gains_and_losses_first(content_of: Any) -> None:
    few, many = (render_report(content_of(videos=8, classes=n)) for n in (12, 60))
    assert "Largest gains" not in few
    assert "Largest gains" in many
    assert "All 60 classes" in many
    shown = many[many.index("Largest gains") : many.index("All 60 classes")]
    assert shown.count('role="rowheader"') == 30
