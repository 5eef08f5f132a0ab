"""Where the marks of each chart go, as percentages of its box: the templates only place them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clipset.report.content import Step
from clipset.report.records import Panel, ProbeRecord
from clipset.report.wording import (
    Number,
    curve_name,
    duration,
    figure,
    percent,
    percent_sign,
    score_text,
)

MOST_VERTICES = 600  # more would not be seen in a small chart
SMALLEST = 1e-10  # an axis that ends below this shows nothing but zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A place on an axis and what is written there."""

    place: Number
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalMark:
    """A score as a dot and its interval as a line, in percent of the width."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One row of the table of probes, with its marks."""

    record: ProbeRecord
    mark: IntervalMark
    score: str
    interval: str
    starts_group: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """How well one class is recognised by clipset and by the baseline."""

    label: str
    ours: float | None
    theirs: float | None
    score: str
    gain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveChart:
    """One metric over the epochs: broken lines in a box of 100 × 100 and the ticks around it."""

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


def place_probes(panel: Panel) -> tuple[ProbeRow, ...]:
    """The rows of a panel; a new group starts where the kind of probe changes."""
    rows = []
    before = None
    reach = _reach(panel)
    for record in panel.records:
        new = before not in (None, record.probe)
        rows.append(_place_probe(record, reach, starts_group=new))
        before = record.probe
    return tuple(rows)


def place_chance(panel: Panel) -> Tick | None:
    """Where guessing would end, if all records agree on it."""
    chances = {record.chance_level for record in panel.records}
    chance = chances.pop() if len(chances) == 1 else None
    if chance is None:
        return None
    what = "the mean" if panel.is_error else "chance"
    text = f"{what} {score_text(panel.metric, chance)}"
    return Tick(place=_clamp(100 * chance / _reach(panel)), text=text)


def place_axis(panel: Panel) -> tuple[Tick, ...]:
    """What is written above a panel's chart."""
    if not panel.is_error:
        return tuple(Tick(place=place, text=str(place)) for place in (0, 25, 50, 75, 100))
    reach = _reach(panel)
    return tuple(
        Tick(place=_clamp(100 * tick / reach), text=figure(tick))
        for tick in round_ticks(0, reach, 5)
        if tick <= reach * (1 + 1e-9)
    )


def _reach(panel: Panel) -> float:
    """The score at the right end of a panel's chart."""
    if not panel.is_error:
        return 1.0
    ends = [
        end for r in panel.records for end in (r.value, *(r.interval or ()), r.chance_level or 0)
    ]
    return round_ticks(0, max(ends) if max(ends) > SMALLEST else 1, 5)[-1]


def place_classes(ours: ProbeRecord, theirs: ProbeRecord | None) -> tuple[ClassRow, ...]:
    """The classes by what clipset gains over the baseline, the largest gain first."""
    mine = ours.class_accuracy()
    other = theirs.class_accuracy() if theirs else {}
    rows = [(label, value, other.get(label)) for label, value in mine.items()]

    def rank(row: tuple[str, float | None, float | None]) -> tuple[bool, Number, str]:
        label, value, rival = row
        return value is None, -((value or 0) - (rival or 0)), label

    return tuple(_place_class(*row) for row in sorted(rows, key=rank))


def worst_classes(rows: Sequence[ClassRow], shown: int) -> tuple[ClassRow, ...]:
    """The classes at the other end of the same order, the largest loss first."""
    compared = [row for row in rows if row.ours is not None and row.theirs is not None]
    return tuple(reversed(compared[-shown:]))


def place_curve(metric: str, points: Sequence[tuple[Number, Number]]) -> CurveChart:
    """A metric's curve; epochs whose value is not finite leave a gap."""
    points = _thin(points)
    finite = [value for _, value in points if math.isfinite(value)]
    is_share = metric.endswith("accuracy")
    low, high, y_ticks = _value_axis(finite, from_zero=is_share or metric == "learning_rate")
    write = percent_sign if is_share else figure
    epochs = [epoch for epoch, _ in points]
    first, last = (min(epochs), max(epochs)) if epochs else (0, 0)
    places = [(_part(e, first, last), 100 - _part(v, low, high)) for e, v in points]
    runs = _finite_runs(places)
    return CurveChart(
        title=curve_name(metric),
        last=write(points[-1][1]) if points else "",
        lines=tuple(_path(run) for run in runs if len(run) > 1),
        dots=tuple(run[0] for run in runs if len(run) == 1),
        x_ticks=_epoch_ticks(first, last),
        y_ticks=tuple(Tick(place=100 - _part(v, low, high), text=write(v)) for v in y_ticks),
        readings=tuple(
            (round(x, 2), round(y, 2), f"epoch {epoch:g}: {write(value)}")
            for (x, y), (epoch, value) in zip(places, points, strict=True)
            if math.isfinite(y)
        ),
    )


def place_curves(curves: Mapping[str, Sequence[tuple[Number, Number]]]) -> tuple[CurveChart, ...]:
    """All curves that have a point."""
    return tuple(place_curve(metric, points) for metric, points in curves.items() if points)


def place_steps(steps: Sequence[Step]) -> tuple[StepBar, ...]:
    """The steps in their order, as bars on one scale."""
    longest = max((step.seconds for step in steps), default=0) or 1
    return tuple(
        StepBar(
            name=step.name,
            time="" if step.note and not step.seconds else duration(step.seconds),
            note=step.note,
            width=round(100 * step.seconds / longest, 2),
        )
        for step in steps
    )


def round_ticks(low: Number, high: Number, about: int) -> list[float]:
    """Round numbers from below `low` to above `high`, about as many as asked for."""
    rough = max((high - low) / max(about - 1, 1), SMALLEST)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * s for s in (1, 2, 2.5, 5, 10) if power * s >= rough * (1 - 1e-9))
    start, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * k, 12) for k in range(start, end + 1)]


def _place_probe(record: ProbeRecord, reach: float, *, starts_group: bool) -> ProbeRow:
    low, high = record.interval or (None, None)
    write = figure if record.is_error else percent
    return ProbeRow(
        record=record,
        mark=IntervalMark(
            value=_clamp(100 * record.value / reach),
            low=None if low is None else _clamp(100 * low / reach),
            high=None if high is None else _clamp(100 * high / reach),
        ),
        score=figure(record.value) if record.is_error else percent(record.value, digits=1),
        interval="" if low is None or high is None else f"{write(low)}–{write(high)}",
        starts_group=starts_group,
    )


def _place_class(label: str, ours: float | None, theirs: float | None) -> ClassRow:
    gain = None if ours is None or theirs is None else 100 * (ours - theirs)
    return ClassRow(
        label=label,
        ours=None if ours is None else _clamp(100 * ours),
        theirs=None if theirs is None else _clamp(100 * theirs),
        score="–" if ours is None else percent(ours, digits=0),
        gain="" if gain is None else f"{gain:+.0f}".replace("-", "−").replace("+0", "±0"),
    )


def _thin(points: Sequence[tuple[Number, Number]]) -> Sequence[tuple[Number, Number]]:
    """Every so many points and the last one, if there are more than can be seen."""
    if len(points) <= MOST_VERTICES:
        return points
    stride = math.ceil(len(points) / MOST_VERTICES)
    return [*points[:-1:stride], points[-1]]


def _value_axis(values: list[Number], *, from_zero: bool) -> tuple[Number, Number, list[float]]:
    low: Number = min(values, default=0)
    high: Number = max(values, default=1)
    if from_zero:
        low = min(low, 0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    ticks = round_ticks(low, high, 4)
    return ticks[0], ticks[-1], ticks


def _epoch_ticks(first: Number, last: Number) -> tuple[Tick, ...]:
    if first == last:
        return (Tick(place=50, text=f"{first:g}"),)
    inner = [tick for tick in round_ticks(first, last, 5) if first <= tick <= last]
    return tuple(Tick(place=_part(tick, first, last), text=f"{tick:g}") for tick in inner)


def _finite_runs(places: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    runs: list[list[tuple[float, float]]] = [[]]
    for place in places:
        if math.isfinite(place[1]):
            runs[-1].append(place)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _path(run: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in run)


def _part(value: Number, low: Number, high: Number) -> float:
    """Where a value lies between low and high, in percent; the middle if they are the same."""
    return 100 * (value - low) / (high - low) if high > low else 50.0


def _clamp(place: Number) -> float:
    return round(min(max(place, 0.0), 100.0), 3)
