"""Axes and curves of the charts, in percent of their boxes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clipset.evaluation.results import ERROR_METRICS, Comparison, LowShotCurve, ProbeResult
from clipset.report.content import Panel
from clipset.report.wording import (
    CURVE_NAMES,
    Number,
    format_number,
    format_percent,
    percent_sign,
    plain,
    sentence_case,
)

MAX_VERTICES = 600  # more cannot be seen in a small chart
MIN_EXTENT = 1e-10  # an axis that ends below this shows nothing but zero
DASHES = ("", "7 4", "2 3", "9 3 2 3")  # distinguish curves of one colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis from `start` (left or top) to `end`, with ticks: values and their texts."""

    start: Number
    end: Number
    ticks: tuple[tuple[Number, str], ...]
    is_logarithmic: bool = False

    def position(self, value: Number) -> float:
        """The position of a value, in percent; 50 on an axis without extent."""
        if self.start == self.end:
            return 50.0
        start, end = self.start, self.end
        if self.is_logarithmic:
            value, start, end = math.log(value), math.log(start), math.log(end)
        return round(100 * (value - start) / (end - start), 3) + 0.0  # not -0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """Accuracy of one class with clipset and with the baseline; None without videos."""

    label: str
    ours: float | None
    baseline: float | None

    @property
    def gain(self) -> str:
        """Points above the baseline."""
        if self.ours is None or self.baseline is None:
            return ""
        gain = f"{100 * (self.ours - self.baseline):+.0f}"
        return gain.replace("-", "−").replace("+0", "±0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveChart:
    """One training metric by epoch: polylines and dots in a box of 100 × 100, and readings."""

    title: str
    last: str
    x_axis: Axis
    y_axis: Axis
    lines: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]
    readings: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LowShotChart:
    """All low-shot curves; `num_videos` maps fractions of the labels to training videos."""

    x_axis: Axis
    y_axis: Axis
    num_videos: Mapping[float, int]
    lines: tuple[tuple[LowShotCurve, str], ...]
    """curves and their dashes"""


def panel_axis(panel: Panel) -> Axis:
    """The axis of scores: to 100 %, or to a round number above the largest error."""
    if not panel.is_error:
        return Axis(start=0, end=1, ticks=tuple((x / 100, str(x)) for x in (0, 25, 50, 75, 100)))
    largest_value = max(max(r.value, *r.interval, r.chance_level or 0) for r in panel.results)
    ticks = round_ticks(0, largest_value if largest_value > MIN_EXTENT else 1, 5)
    return Axis(start=0, end=ticks[-1], ticks=tuple((x, format_number(x)) for x in ticks))


def chance_level(panel: Panel) -> float | None:
    """The chance level (for an error: that of the mean), if all results have the same."""
    chance_levels = {result.chance_level for result in panel.results}
    return chance_levels.pop() if len(chance_levels) == 1 else None


def class_rows(ours: ProbeResult, baseline: ProbeResult | None) -> tuple[ClassRow, ...]:
    """The classes by their gain over the baseline, the largest first."""
    baseline_accuracy = baseline.class_accuracy() if baseline else {}
    rows = (
        ClassRow(label=label, ours=accuracy, baseline=baseline_accuracy.get(label))
        for label, accuracy in ours.class_accuracy().items()
    )
    # classes without videos come last
    return tuple(
        sorted(rows, key=lambda r: (r.ours is None, (r.baseline or 0) - (r.ours or 0), r.label))
    )


def curve_chart(metric: str, points: Sequence[tuple[Number, Number]]) -> CurveChart:
    """A metric by epoch; values that are not finite leave a gap."""
    if len(points) > MAX_VERTICES:
        points = [*points[: -1 : math.ceil(len(points) / MAX_VERTICES)], points[-1]]
    is_accuracy = metric.endswith("accuracy")
    format_value = percent_sign if is_accuracy else format_number
    x_axis = _epoch_axis([epoch for epoch, _ in points])
    finite_values = [value for _, value in points if math.isfinite(value)]
    ticks = _value_ticks(finite_values, from_zero=is_accuracy or metric == "learning_rate")
    y_axis = Axis(start=ticks[-1], end=ticks[0], ticks=tuple((y, format_value(y)) for y in ticks))
    segments: list[list[tuple[float, float]]] = [[]]
    readings = []
    for epoch, value in points:
        if math.isfinite(value):
            x, y = x_axis.position(epoch), y_axis.position(value)
            segments[-1].append((x, y))
            readings.append((round(x, 2), round(y, 2), f"epoch {epoch:g}: {format_value(value)}"))
        else:
            segments.append([])
    lines = (segment for segment in segments if len(segment) > 1)
    return CurveChart(
        title=CURVE_NAMES.get(metric, sentence_case(plain(metric))),
        last=format_value(points[-1][1]),
        x_axis=x_axis,
        y_axis=y_axis,
        lines=tuple(" ".join(f"{x:.2f},{y:.2f}" for x, y in line) for line in lines),
        dots=tuple(segment[0] for segment in segments if len(segment) == 1),
        readings=tuple(readings),
    )


def _epoch_axis(epochs: Sequence[Number]) -> Axis:
    first_epoch, last_epoch = min(epochs), max(epochs)
    ticks = round_ticks(first_epoch, last_epoch, 5) if first_epoch < last_epoch else [first_epoch]
    inner_ticks = [(tick, f"{tick:g}") for tick in ticks if first_epoch <= tick <= last_epoch]
    return Axis(start=first_epoch, end=last_epoch, ticks=tuple(inner_ticks))


def _value_ticks(values: Sequence[Number], *, from_zero: bool) -> list[float]:
    low: Number = min(values, default=0)
    high: Number = max(values, default=1)
    if from_zero:
        low = min(low, 0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    return round_ticks(low, high, 4)


def comparison_axis(comparisons: Sequence[Comparison]) -> Axis:
    """The axis of paired differences, with zero in the middle; points of a hundred or errors."""
    unit = 1 if comparisons[0].metric in ERROR_METRICS else 100
    largest_value = max(abs(unit * end) for c in comparisons for end in (*c.interval, c.difference))
    extent = round_ticks(0, largest_value if largest_value > MIN_EXTENT else 1, 3)[-1]
    ticks = (-extent, -extent / 2, 0, extent / 2, extent)
    texts = (f"{tick:+g}".replace("-", "−") if tick else "0" for tick in ticks)
    values = [tick / unit for tick in ticks]
    return Axis(start=values[0], end=values[-1], ticks=tuple(zip(values, texts, strict=True)))


def low_shot_chart(curves: Sequence[LowShotCurve]) -> LowShotChart | None:
    """Scores by fraction of the labels, on a logarithmic axis."""
    curve_points = [point for curve in curves for point in curve.points]
    if not curve_points:
        return None
    num_videos = dict(sorted((point.fraction, point.videos) for point in curve_points))
    x_ticks = tuple((fraction, format_percent(fraction)) for fraction in num_videos)
    largest_value = max(max(point.value, *(point.interval or (0,))) for point in curve_points)
    percents = round_ticks(0, max(100 * largest_value, 10), 5)
    y_ticks = tuple((percent / 100, f"{percent:g}") for percent in percents)
    features = [curve.features for curve in curves]
    dashes = (DASHES[features[:i].count(own) % len(DASHES)] for i, own in enumerate(features))
    return LowShotChart(
        x_axis=Axis(start=x_ticks[0][0], end=x_ticks[-1][0], ticks=x_ticks, is_logarithmic=True),
        y_axis=Axis(start=y_ticks[-1][0], end=0, ticks=y_ticks),
        num_videos=num_videos,
        lines=tuple(zip(curves, dashes, strict=True)),
    )


def round_ticks(low: Number, high: Number, about: int) -> list[float]:
    """Round numbers that enclose `low` and `high`, `about` as many."""
    rough_step = max((high - low) / max(about - 1, 1), MIN_EXTENT)
    power = 10.0 ** math.floor(math.log10(rough_step))
    tick_step = next(power * s for s in (1, 2, 2.5, 5, 10) if power * s >= rough_step * (1 - 1e-9))
    first_tick, last_tick = math.floor(low / tick_step + 1e-9), math.ceil(high / tick_step - 1e-9)
    return [round(tick_step * tick_number, 12) for tick_number in range(first_tick, last_tick + 1)]
