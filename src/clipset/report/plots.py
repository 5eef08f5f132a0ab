"""Where the marks of reliability diagrams, low-shot curves and differences go, in percent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from clipset.report.charts import SMALLEST, IntervalMark, Tick, round_ticks
from clipset.report.trust import Calibration, Difference, LowShotRow
from clipset.report.wording import ERRORS, count, figure, percent, percent_sign

LARGEST_DOT = 14.0  # radius in pixels of a bin that holds all predictions
SMALLEST_DOT = 2.5
DASHES = ("", "7 4", "2 3", "9 3 2 3")  # rows of one colour are told apart by their dashes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityDot:
    """One bin: where it lies, how large it is, what it says."""

    x: float
    y: float
    radius: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityPlot:
    """One row's diagram."""

    name: str
    is_scale: bool
    error: str
    verdict: str
    dots: tuple[ReliabilityDot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceRow:
    """One paired difference with its marks; the middle of the axis is no difference."""

    difference: Difference
    mark: IntervalMark
    points: str
    interval: str
    p: str
    is_worse: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceChart:
    """All differences on one axis."""

    rows: tuple[DifferenceRow, ...]
    ticks: tuple[Tick, ...]
    is_error: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LowShotLine:
    """One row's curve: its line, its points with whiskers, and how it is drawn."""

    name: str
    is_scale: bool
    dash: str
    line: str
    points: tuple[tuple[float, IntervalMark, str], ...]
    scores: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LowShotChart:
    """All curves in one box."""

    lines: tuple[LowShotLine, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    columns: tuple[tuple[str, str], ...]


def place_reliability(rows: Sequence[Calibration]) -> tuple[ReliabilityPlot, ...]:
    """A diagram for each row; a dot's area is its share of the predictions."""
    return tuple(_place_reliability(row) for row in rows if row.bins)


def _place_reliability(row: Calibration) -> ReliabilityPlot:
    total = sum(each.count for each in row.bins)
    dots = tuple(
        ReliabilityDot(
            x=round(100 * each.confidence, 2),
            y=round(100 - 100 * each.right, 2),
            radius=round(max(SMALLEST_DOT, LARGEST_DOT * math.sqrt(each.count / total)), 2),
            text=f"{percent_sign(each.confidence)} sure, {percent_sign(each.right)} right "
            f"({count(each.count)} predictions)",
        )
        for each in row.bins
    )
    return ReliabilityPlot(
        name=row.name,
        is_scale=row.features == "scale",
        error=percent_sign(row.error),
        verdict=_verdict(row.gap),
        dots=dots,
    )


def _verdict(gap: float) -> str:
    if abs(gap) < 0.02:
        return "on average as sure as right"
    return f"{percent(abs(gap))} points {'too sure' if gap > 0 else 'too careful'}"


def place_differences(differences: Sequence[Difference]) -> DifferenceChart | None:
    """The differences around a common zero."""
    if not differences:
        return None
    is_error = differences[0].metric in ERRORS
    unit = 1 if is_error else 100
    ends = [abs(unit * end) for each in differences for end in (*each.interval, each.difference)]
    reach = round_ticks(0, max(ends) if max(ends) > SMALLEST else 1, 3)[-1]
    write = _signed_figure if is_error else _signed

    def place(value: float) -> float:
        return round(50 + 50 * unit * value / reach, 3)

    rows = tuple(
        DifferenceRow(
            difference=each,
            mark=IntervalMark(
                value=place(each.difference),
                low=place(each.interval[0]),
                high=place(each.interval[1]),
            ),
            points=write(each.difference),
            interval=f"{write(each.interval[0])} to {write(each.interval[1])}",
            is_worse=(each.difference < 0) != is_error,
            p="" if each.p is None else "< 0.001" if each.p < 0.001 else f"{each.p:.3f}",
        )
        for each in differences
    )
    ticks = (-reach, -reach / 2, 0, reach / 2, reach)
    return DifferenceChart(
        rows=rows,
        ticks=tuple(
            Tick(place=place(tick / unit), text=f"{tick:+g}".replace("-", "−") if tick else "0")
            for tick in ticks
        ),
        is_error=is_error,
    )


def _signed_figure(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{figure(abs(value))}"


def _signed(fraction: float) -> str:
    return f"{100 * fraction:+.1f}".replace("-", "−").replace("+0.0", "0.0")


def place_low_shot(rows: Sequence[LowShotRow]) -> LowShotChart | None:
    """Scores over the share of labels, on a logarithmic axis."""
    points = [point for row in rows for point in row.points]
    if not points:
        return None
    shares = sorted({point.fraction for point in points})
    videos = {point.fraction: point.videos for point in points}
    low, high = math.log(shares[0]), math.log(shares[-1])
    top = max(max(point.value, *(point.interval or (0,))) for point in points)
    y_ticks = round_ticks(0, max(100 * top, 10), 5)

    def across(share: float) -> float:
        return round(100 * (math.log(share) - low) / (high - low), 2) if high > low else 50.0

    def down(value: float) -> float:
        return round(100 - 100 * 100 * value / y_ticks[-1], 2)

    seen = {"scale": 0, "backbone": 0}
    lines = []
    for row in rows:
        kind = "scale" if row.features == "scale" else "backbone"
        dash = DASHES[seen[kind] % len(DASHES)]
        seen[kind] += 1
        lines.append(
            LowShotLine(
                name=row.name,
                is_scale=kind == "scale",
                dash=dash,
                line=" ".join(f"{across(p.fraction)},{down(p.value)}" for p in row.points),
                points=tuple(
                    (
                        across(p.fraction),
                        IntervalMark(
                            value=down(p.value),
                            low=down(p.interval[0]) if p.interval else None,
                            high=down(p.interval[1]) if p.interval else None,
                        ),
                        f"{row.name}, {percent(p.fraction)} % of the labels: "
                        f"{percent_sign(p.value)}",
                    )
                    for p in row.points
                ),
                scores=tuple(_score(row, share) for share in shares),
            )
        )
    return LowShotChart(
        lines=tuple(lines),
        x_ticks=tuple(Tick(place=across(share), text=percent(share)) for share in shares),
        y_ticks=tuple(Tick(place=down(tick / 100), text=f"{tick:g}") for tick in y_ticks),
        columns=tuple((percent_sign(share), count(videos[share])) for share in shares),
    )


def _score(row: LowShotRow, share: float) -> str:
    found = [point for point in row.points if point.fraction == share]
    return percent(found[0].value, digits=1) if found else "–"
