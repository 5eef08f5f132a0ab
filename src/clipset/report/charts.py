"""Geometry of the charts, in percent of their boxes; the templates only draw it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clipset.evaluation.results import ERROR_METRICS, Comparison, LowShotCurve, ProbeResult
from clipset.report.content import Step
from clipset.report.records import Calibration, Panel
from clipset.report.wording import (
    Number,
    curve_name,
    format_count,
    format_duration,
    format_number,
    format_p_value,
    format_percent,
    format_score,
    format_signed,
    percent_sign,
    row_name,
)

MAX_VERTICES = 600  # more cannot be seen in a small chart
MIN_EXTENT = 1e-10  # an axis that ends below this shows nothing but zero
MAX_DOT_RADIUS = 14.0  # pixels of a bin with all predictions
MIN_DOT_RADIUS = 2.5
CALIBRATED_GAP = 0.02  # confidence and accuracy that differ by less are called equal
DASHES = ("", "7 4", "2 3", "9 3 2 3")  # distinguish curves of one colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A position on an axis and its label."""

    position: Number
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalMark:
    """A score as a dot and its interval as a line."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One row of the table of probes, with its marks."""

    name: str
    is_scale: bool
    mark: IntervalMark
    score: str
    interval: str
    num_videos: int
    num_seeds: int
    selected_on: str
    starts_group: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """Accuracy of one class with clipset and with the baseline."""

    label: str
    ours: float | None
    baseline: float | None
    score: str
    gain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveChart:
    """One training metric by epoch: polylines in a box of 100 × 100, and ticks."""

    title: str
    last: str
    lines: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    readings: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBar:
    """One step as a bar, in percent of the longest one."""

    name: str
    time: str
    note: str
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityDot:
    """One bin of a reliability diagram."""

    x: float
    y: float
    radius: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityPlot:
    """The reliability diagram of one probe."""

    name: str
    is_scale: bool
    error: str
    verdict: str
    dots: tuple[ReliabilityDot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One paired difference; zero is in the middle of the axis."""

    name: str
    baseline: str
    mark: IntervalMark
    difference: str
    interval: str
    p_value: str
    is_clear: bool
    is_worse: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonChart:
    """All paired differences on one axis."""

    rows: tuple[ComparisonRow, ...]
    ticks: tuple[Tick, ...]
    is_error: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveMark:
    """One score of a low-shot curve: its position across, and the vertical marks."""

    x: float
    mark: IntervalMark
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LowShotLine:
    """The low-shot curve of one probe; `scores` are the cells of its table row."""

    name: str
    is_scale: bool
    dash: str
    line: str
    points: tuple[CurveMark, ...]
    scores: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LowShotChart:
    """All low-shot curves; `columns` are fractions of the labels and numbers of videos."""

    lines: tuple[LowShotLine, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    columns: tuple[tuple[str, str], ...]


def probe_rows(panel: Panel) -> tuple[ProbeRow, ...]:
    """The rows of a panel; a group starts where the kind of probe changes."""
    rows: list[ProbeRow] = []
    extent, previous = _axis_extent(panel), None
    for result in panel.results:
        low, high = result.interval
        write = format_number if panel.is_error else format_percent
        rows.append(
            ProbeRow(
                name=row_name(*result.key),
                is_scale=result.is_scale,
                mark=IntervalMark(
                    value=_clamp(100 * result.value / extent),
                    low=_clamp(100 * low / extent),
                    high=_clamp(100 * high / extent),
                ),
                score=format_score(result.metric, result.value),
                interval=f"{write(low)}–{write(high)}",
                num_videos=result.n,
                num_seeds=len(result.seeds),
                selected_on=result.selected_on or "–",
                starts_group=previous not in (None, result.probe),
            )
        )
        previous = result.probe
    return tuple(rows)


def chance_tick(panel: Panel) -> Tick | None:
    """The chance level (for an error: that of the mean), if all results have the same."""
    levels = {result.chance_level for result in panel.results}
    level = levels.pop() if len(levels) == 1 else None
    if level is None:
        return None
    text = (
        f"mean {format_number(level)}" if panel.is_error else f"chance level {percent_sign(level)}"
    )
    return Tick(position=_clamp(100 * level / _axis_extent(panel)), text=text)


def axis_ticks(panel: Panel) -> tuple[Tick, ...]:
    """The ticks above a panel's chart."""
    if not panel.is_error:
        return tuple(Tick(position=value, text=str(value)) for value in (0, 25, 50, 75, 100))
    extent = _axis_extent(panel)
    return tuple(
        Tick(position=_clamp(100 * value / extent), text=format_number(value))
        for value in round_ticks(0, extent, 5)
        if value <= extent * (1 + 1e-9)
    )


def _axis_extent(panel: Panel) -> float:
    """The score at the right end of a panel's chart."""
    if not panel.is_error:
        return 1.0
    largest = max(max(r.value, *r.interval, r.chance_level or 0) for r in panel.results)
    return round_ticks(0, largest if largest > MIN_EXTENT else 1, 5)[-1]


def class_rows(ours: ProbeResult, baseline: ProbeResult | None) -> tuple[ClassRow, ...]:
    """The classes by their gain over the baseline, the largest first."""
    accuracy = ours.class_accuracy()
    other = baseline.class_accuracy() if baseline else {}

    def sort_key(label: str) -> tuple[bool, Number, str]:
        value = accuracy[label]
        return value is None, -((value or 0) - (other.get(label) or 0)), label

    return tuple(
        _class_row(label, accuracy[label], other.get(label))
        for label in sorted(accuracy, key=sort_key)
    )


def _class_row(label: str, ours: float | None, baseline: float | None) -> ClassRow:
    gain = None if ours is None or baseline is None else 100 * (ours - baseline)
    return ClassRow(
        label=label,
        ours=None if ours is None else _clamp(100 * ours),
        baseline=None if baseline is None else _clamp(100 * baseline),
        score="–" if ours is None else format_percent(ours, digits=0),
        gain="" if gain is None else f"{gain:+.0f}".replace("-", "−").replace("+0", "±0"),
    )


def largest_losses(rows: Sequence[ClassRow], count: int) -> tuple[ClassRow, ...]:
    """The classes at the end of the same order, the largest loss first."""
    compared = [row for row in rows if row.ours is not None and row.baseline is not None]
    return tuple(reversed(compared[-count:]))


def curve_charts(curves: Mapping[str, Sequence[tuple[Number, Number]]]) -> tuple[CurveChart, ...]:
    """A chart for each metric that has a point."""
    return tuple(curve_chart(metric, points) for metric, points in curves.items() if points)


def curve_chart(metric: str, points: Sequence[tuple[Number, Number]]) -> CurveChart:
    """A metric by epoch; values that are not finite leave a gap."""
    points = _subsample(points)
    finite = [value for _, value in points if math.isfinite(value)]
    is_accuracy = metric.endswith("accuracy")
    y_ticks = _value_ticks(finite, from_zero=is_accuracy or metric == "learning_rate")
    low, high = y_ticks[0], y_ticks[-1]
    write = percent_sign if is_accuracy else format_number
    first, last = min(epoch for epoch, _ in points), max(epoch for epoch, _ in points)
    positions = [(_scale(e, first, last), 100 - _scale(v, low, high)) for e, v in points]
    segments = _finite_segments(positions)
    return CurveChart(
        title=curve_name(metric),
        last=write(points[-1][1]),
        lines=tuple(
            " ".join(f"{x:.2f},{y:.2f}" for x, y in segment)
            for segment in segments
            if len(segment) > 1
        ),
        dots=tuple(segment[0] for segment in segments if len(segment) == 1),
        x_ticks=_epoch_ticks(first, last),
        y_ticks=tuple(Tick(position=100 - _scale(v, low, high), text=write(v)) for v in y_ticks),
        readings=tuple(
            (round(x, 2), round(y, 2), f"epoch {epoch:g}: {write(value)}")
            for (x, y), (epoch, value) in zip(positions, points, strict=True)
            if math.isfinite(y)
        ),
    )


def _subsample(points: Sequence[tuple[Number, Number]]) -> Sequence[tuple[Number, Number]]:
    """Every n-th point and the last one, if there are more than can be seen."""
    if len(points) <= MAX_VERTICES:
        return points
    stride = math.ceil(len(points) / MAX_VERTICES)
    return [*points[:-1:stride], points[-1]]


def _value_ticks(values: list[Number], *, from_zero: bool) -> list[float]:
    low: Number = min(values, default=0)
    high: Number = max(values, default=1)
    if from_zero:
        low = min(low, 0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    return round_ticks(low, high, 4)


def _epoch_ticks(first: Number, last: Number) -> tuple[Tick, ...]:
    if first == last:
        return (Tick(position=50, text=f"{first:g}"),)
    inner = [tick for tick in round_ticks(first, last, 5) if first <= tick <= last]
    return tuple(Tick(position=_scale(tick, first, last), text=f"{tick:g}") for tick in inner)


def _finite_segments(positions: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    segments: list[list[tuple[float, float]]] = [[]]
    for position in positions:
        if math.isfinite(position[1]):
            segments[-1].append(position)
        elif segments[-1]:
            segments.append([])
    return [segment for segment in segments if segment]


def step_bars(steps: Sequence[Step]) -> tuple[StepBar, ...]:
    """The steps in order, as bars on one scale."""
    longest = max((step.seconds for step in steps), default=0) or 1
    return tuple(
        StepBar(
            name=step.name,
            time="" if step.note and not step.seconds else format_duration(step.seconds),
            note=step.note,
            width=round(100 * step.seconds / longest, 2),
        )
        for step in steps
    )


def reliability_plots(calibrations: Sequence[Calibration]) -> tuple[ReliabilityPlot, ...]:
    """A reliability diagram for each probe; the area of a dot is proportional to its bin."""
    plots = []
    for calibration in calibrations:
        total = sum(bin.count for bin in calibration.bins)
        dots = tuple(
            ReliabilityDot(
                x=round(100 * bin.confidence, 2),
                y=round(100 - 100 * bin.accuracy, 2),
                radius=round(max(MIN_DOT_RADIUS, MAX_DOT_RADIUS * math.sqrt(bin.count / total)), 2),
                text=f"confidence {percent_sign(bin.confidence)}, accuracy "
                f"{percent_sign(bin.accuracy)} ({format_count(bin.count)} predictions)",
            )
            for bin in calibration.bins
        )
        plots.append(
            ReliabilityPlot(
                name=row_name(calibration.features, calibration.probe),
                is_scale=calibration.features == "scale",
                error=percent_sign(calibration.error),
                verdict=_calibration_verdict(calibration.gap),
                dots=dots,
            )
        )
    return tuple(plots)


def _calibration_verdict(gap: float) -> str:
    if abs(gap) < CALIBRATED_GAP:
        return "well calibrated on average"
    return f"{'over' if gap > 0 else 'under'}confident by {format_percent(abs(gap))} points"


def comparison_chart(comparisons: Sequence[Comparison]) -> ComparisonChart | None:
    """Paired differences around a common zero."""
    if not comparisons:
        return None
    metric = comparisons[0].metric
    is_error = metric in ERROR_METRICS
    unit = 1 if is_error else 100
    largest = max(abs(unit * end) for c in comparisons for end in (*c.interval, c.difference))
    extent = round_ticks(0, largest if largest > MIN_EXTENT else 1, 3)[-1]

    def position(value: float) -> float:
        return round(50 + 50 * unit * value / extent, 3)

    rows = tuple(
        ComparisonRow(
            name=row_name(*comparison.key),
            baseline=row_name(*comparison.baseline),
            mark=IntervalMark(
                value=position(comparison.difference),
                low=position(comparison.interval[0]),
                high=position(comparison.interval[1]),
            ),
            difference=format_signed(metric, comparison.difference),
            interval=" to ".join(format_signed(metric, end) for end in comparison.interval),
            p_value=format_p_value(comparison.p),
            is_clear=comparison.is_significant,
            is_worse=(comparison.difference < 0) != is_error,
        )
        for comparison in comparisons
    )
    ticks = tuple(
        Tick(position=position(tick / unit), text=f"{tick:+g}".replace("-", "−") if tick else "0")
        for tick in (-extent, -extent / 2, 0, extent / 2, extent)
    )
    return ComparisonChart(rows=rows, ticks=ticks, is_error=is_error)


def low_shot_chart(curves: Sequence[LowShotCurve]) -> LowShotChart | None:
    """Scores by fraction of the labels, on a logarithmic axis."""
    points = [point for curve in curves for point in curve.points]
    if not points:
        return None
    fractions = sorted({point.fraction for point in points})
    num_videos = {point.fraction: point.videos for point in points}
    low, high = math.log(fractions[0]), math.log(fractions[-1])
    largest = max(max(p.value, *(p.interval or (0,))) for p in points)
    y_ticks = round_ticks(0, max(100 * largest, 10), 5)

    def x_of(fraction: float) -> float:
        return round(_scale(math.log(fraction), low, high), 2)

    def y_of(value: float) -> float:
        return round(100 - 100 * 100 * value / y_ticks[-1], 2)

    lines = []
    num_lines: Counter[str] = Counter()
    for curve in curves:
        name = row_name(*curve.key)
        scores = {p.fraction: format_percent(p.value, digits=1) for p in curve.points}
        lines.append(
            LowShotLine(
                name=name,
                is_scale=curve.features == "scale",
                dash=DASHES[num_lines[curve.features] % len(DASHES)],
                line=" ".join(f"{x_of(p.fraction)},{y_of(p.value)}" for p in curve.points),
                points=tuple(
                    CurveMark(
                        x=x_of(p.fraction),
                        mark=IntervalMark(
                            value=y_of(p.value),
                            low=y_of(p.interval[0]) if p.interval else None,
                            high=y_of(p.interval[1]) if p.interval else None,
                        ),
                        text=f"{name}, {format_percent(p.fraction)} % of the labels: "
                        f"{percent_sign(p.value)}",
                    )
                    for p in curve.points
                ),
                scores=tuple(scores.get(fraction, "–") for fraction in fractions),
            )
        )
        num_lines[curve.features] += 1
    return LowShotChart(
        lines=tuple(lines),
        x_ticks=tuple(Tick(position=x_of(f), text=format_percent(f)) for f in fractions),
        y_ticks=tuple(Tick(position=y_of(tick / 100), text=f"{tick:g}") for tick in y_ticks),
        columns=tuple((percent_sign(f), format_count(num_videos[f])) for f in fractions),
    )


def round_ticks(low: Number, high: Number, about: int) -> list[float]:
    """Round numbers that enclose `low` and `high`, `about` as many."""
    rough = max((high - low) / max(about - 1, 1), MIN_EXTENT)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * s for s in (1, 2, 2.5, 5, 10) if power * s >= rough * (1 - 1e-9))
    start, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * k, 12) for k in range(start, end + 1)]


def _scale(value: Number, low: Number, high: Number) -> float:
    """The position of a value between low and high, in percent; 50 if they are equal."""
    return 100 * (value - low) / (high - low) if high > low else 50.0


def _clamp(position: Number) -> float:
    return round(min(max(position, 0.0), 100.0), 3)
