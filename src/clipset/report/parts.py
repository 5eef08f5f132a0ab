"""The records of several official splits or tasks, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from clipset.errors import ReportError
from clipset.report.table import PageCell, PageRow, TablePage
from clipset.report.trust import read_differences
from clipset.report.wording import figure, metric_name, percent, row_name, row_order

Record = dict[str, Any]
SHARES = ("top1", "top5", "accuracy", "mean_class")  # metrics that are shares of one
MEAN = "mean"


def join_records(parts: Mapping[str, Sequence[Record]], *, averaged: bool) -> list[Record]:
    """The mean of each row over the parts, or (where parts are different tasks) all rows."""
    if not averaged:
        return [_lean(r) | {"task": name} for name, records in parts.items() for r in records]
    rows: dict[tuple[str, str, str], dict[str, Record]] = {}
    for name, records in parts.items():
        for record in records:
            key = (record["features"], record["probe"], record["metric"])
            rows.setdefault(key, {})[name] = record
    return [mean_record(row) for row in rows.values() if len(row) == len(parts)]


def mean_record(parts: Mapping[str, Record]) -> Record:
    """One record for several parts: the mean of their scores.

    The ends of the interval are the means of the parts' ends. That is right if the parts' errors go
    together, and too wide if they are independent; it never promises too much. `with_intervals`
    puts better ones in their place where the predictions are known.
    """
    for part, record in parts.items():
        for name in ("interval", "n", "seconds"):
            if record.get(name) is None:
                raise ReportError(f"a record of the part {part!r} has no {name!r}; run again")
    records = list(parts.values())
    first = records[0]
    joined: Record = {
        name: value
        for name, value in _lean(first).items()
        if name not in ("learning_rate", "epochs")
    }
    joined |= {
        "task": MEAN,
        "value": mean(record["value"] for record in records),
        "interval": [mean(record["interval"][end] for record in records) for end in (0, 1)],
        "n": sum(record["n"] for record in records),
        "seconds": sum(record["seconds"] for record in records),
        "task_values": {name: record["value"] for name, record in parts.items()},
    }
    if all(record.get("chance_level") is not None for record in records):
        joined["chance_level"] = mean(record["chance_level"] for record in records)
    return joined


def with_intervals(
    records: Sequence[Record], intervals: Mapping[Any, tuple[float, float]]
) -> list[Record]:
    """The same records with intervals by a bootstrap over the videos of all parts."""
    found = []
    for record in records:
        pooled = intervals.get((record["features"], record["probe"]))
        found.append(record if pooled is None else {**record, "interval": list(pooled)})
    return found


def write_comparisons(comparisons: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each pair of rows: is one really better than the other?"""
    found = []
    for each in read_differences(comparisons):
        digits = {"metric": each.metric}
        ends = [write_score({**digits, "value": end}) for end in each.interval]
        p = "no p" if each.p is None else "p < 0.001" if each.p < 0.001 else f"p = {each.p:.3f}"
        gap = write_score({**digits, "value": each.difference})
        found.append(
            f"{each.name} minus {each.against}, mean over the parts: "
            f"{gap} ({ends[0]} to {ends[1]}), "
            f"{p}; {each.n} videos, each drawn for all the parts that test it"
        )
    return found


def write_score(record: Record) -> str:
    """A score as it stands in a table: in percent if it is a share."""
    value = record["value"]
    return percent(value, digits=1) if record["metric"] in SHARES else figure(value)


def write_interval(record: Record) -> str:
    """The interval of a record, in the unit of its score; empty if it has none."""
    if not record.get("interval"):
        return ""
    low, high = (write_score({**record, "value": end}) for end in record["interval"])
    return f"({low}–{high})"


def scores_page(title: str, columns: Mapping[str, Sequence[Record]]) -> TablePage:
    """Scores as a table: a column for each part, a row for each probe."""
    records = [record for each in columns.values() for record in each]
    rows = sorted(
        {(record["features"], record["probe"]) for record in records},
        key=lambda row: row_order(*row),
    )
    metrics = ", ".join(sorted({metric_name(record["metric"]) for record in records}))
    ssl = ", ".join(sorted({str(record.get("ssl_split", "unknown")) for record in records}))
    told = "; that of a mean is drawn over the videos of all parts together"
    return TablePage(
        title=title,
        subtitle=f"{metrics or 'not scored'}; pre-trained with ssl_split = {ssl or 'unknown'}",
        lede=f"Each score with its 95 % interval{told if MEAN in columns else ''}.",
        columns=list(columns),
        rows=[
            PageRow(name=row_name(*row), cells=[_cell(each, row) for each in columns.values()])
            for row in rows
        ],
    )


def _cell(records: Sequence[Record], row: tuple[str, str]) -> PageCell:
    for record in records:
        if (record["features"], record["probe"]) == row:
            return PageCell(figure=write_score(record), beside=write_interval(record))
    return PageCell(below="not run")


def _lean(record: Record) -> Record:
    return {name: value for name, value in record.items() if name not in ("confusion", "per_class")}
