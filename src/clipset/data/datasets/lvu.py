"""LVU: nine tasks on clips of films, by its own lists."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

from clipset.config import near_names
from clipset.data.catalog import Catalog, Video
from clipset.data.datasets.official import FileFinder
from clipset.data.tables import read_table, read_text
from clipset.errors import CatalogError
from clipset.text import escape_undecodable

CLASSIFICATION = ("relationship", "way_speaking", "scene", "director", "writer", "year", "genre")
REGRESSION = ("like_ratio", "view_count")
TASKS = CLASSIFICATION + REGRESSION
COLUMNS = {  # before youtube_id and imdb_id
    "like_ratio": ("like_count", "dislike_count"),
    "view_count": ("view_count",),
}


def read_lvu(videos: Path, lists: Path, *, task: str, durations: Path | None = None) -> Catalog:
    """One task of LVU: `lists` holds <task>/train.csv, val.csv and test.csv.

    Classification tasks give labels, regression tasks give targets: the natural logarithm of the
    views, and ten times the share of likes. Films are groups. Where `durations` (a csv with videoid
    and duration) knows a video, the advertisement after its end is cut off. A video that is listed
    again gets a number behind its id.
    """
    if task not in TASKS:
        raise CatalogError(f"LVU has no task {task!r}; {near_names(task, TASKS)}")
    files = FileFinder(videos)
    ends = _read_durations(durations) if durations is not None else {}
    found: list[Video] = []
    times: Counter[str] = Counter()
    for split in ("train", "val", "test"):
        for row in _read_rows(lists / task / f"{split}.csv", task):
            video = _video(row, task, split, files, ends)
            times[video.id] += 1
            again = f"#{times[video.id]}" if times[video.id] > 1 else ""
            found.append(replace(video, id=video.id + again))
    return Catalog(name=f"lvu-{task}", videos=tuple(found))


def _read_rows(path: Path, task: str) -> list[list[str]]:
    """The rows of a list, split at spaces, checked against its header."""
    header, *lines = [line.split() for line in read_text(path).splitlines() if line.strip()] or [[]]
    expected = [*COLUMNS.get(task, ("class_id", "class_name")), "youtube_id", "imdb_id"]
    if header != expected:
        raise CatalogError(
            f"{path} must begin with the columns {' '.join(expected)}; got: {' '.join(header)}"
        )
    for line in lines:
        if len(line) != len(expected):
            raise CatalogError(f"{path} has a line of {len(line)} words: {' '.join(line)!r}")
    return lines


def _video(
    row: list[str], task: str, split: str, files: FileFinder, ends: dict[str, float]
) -> Video:
    *facts, youtube, film = (escape_undecodable(word) for word in row)
    return Video(
        id=youtube,
        path=files.find(f"{youtube}.mp4"),
        label=None if task in REGRESSION else facts[1],
        target=_target(facts, task) if task in REGRESSION else None,
        split=split,
        group=film,
        end=ends.get(youtube),
    )


def _target(facts: list[str], task: str) -> float:
    try:
        counts = [float(fact) for fact in facts]
        if task == "view_count":
            return math.log(counts[0])
        return 10.0 * counts[0] / sum(counts)
    except (ValueError, ZeroDivisionError):
        raise CatalogError(f"{task} needs counts above zero, got {' '.join(facts)!r}") from None


def _read_durations(path: Path) -> dict[str, float]:
    table = read_table(path)
    rows = table.renamed({}, {"id": ("videoid",), "end": ("duration",)})
    try:
        return {row["id"]: float(row["end"]) for row in rows if float(row["end"]) > 0}
    except (KeyError, ValueError):
        raise CatalogError(
            f"{path} needs columns 'videoid' and 'duration'; {table.found}"
        ) from None
