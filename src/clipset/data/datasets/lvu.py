"""LVU: nine tasks on clips of films, by the official lists."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

from clipset.config import near_names
from clipset.data.catalog import Catalog, Video
from clipset.data.datasets.lists import FileFinder, search_lists
from clipset.data.tables import read_table, read_text
from clipset.errors import CatalogError
from clipset.text import escape_undecodable

CLASSIFICATION = ("relationship", "way_speaking", "scene", "director", "writer", "year", "genre")
REGRESSION = ("like_ratio", "view_count")
TASKS = CLASSIFICATION + REGRESSION
VALUE_COLUMNS = {  # the columns before youtube_id and imdb_id; elsewhere class_id and class_name
    "like_ratio": ("like_count", "dislike_count"),
    "view_count": ("view_count",),
}


def read_lvu(videos: Path, lists: Path, *, task: str, durations: Path | None = None) -> Catalog:
    """One task of LVU: `lists` contains <task>/train.csv, val.csv and test.csv.

    Classification tasks have labels, regression tasks have targets: the natural logarithm of the
    views, and ten times the fraction of likes. Films are groups. `durations` (a csv with videoid
    and duration) sets the ends of videos, to cut off the advertisement. A video that is listed
    again gets a number appended to its id.
    """
    if task not in TASKS:
        raise CatalogError(f"LVU has no task {task!r}; {near_names(task, TASKS)}")
    files = FileFinder(videos)
    ends = _read_durations(durations) if durations is not None else {}
    listed_videos: list[Video] = []
    id_counts: Counter[str] = Counter()
    for split in ("train", "val", "test"):
        for row in _read_rows(lists / task / f"{split}.csv", task):
            video = _parse_row(row, task, split, files, ends)
            id_counts[video.id] += 1
            suffix = f"#{id_counts[video.id]}" if id_counts[video.id] > 1 else ""
            listed_videos.append(replace(video, id=video.id + suffix))
    return Catalog(name=f"lvu-{task}", videos=tuple(listed_videos))


def find_lvu_lists(folder: Path, task: str) -> Path:
    """The folder with the lists of a task: the dataset's folder or one below it."""
    path = next(search_lists(folder, f"{task}/train.csv"), None)
    if path is None:
        raise CatalogError(
            f"{folder} contains no lists of LVU ({task}/train.csv); name their folder with "
            f"data.lists"
        )
    return path.parent.parent


def _read_rows(path: Path, task: str) -> list[list[str]]:
    """The rows of a list, split at spaces and checked against the header."""
    header, *lines = [line.split() for line in read_text(path).splitlines() if line.strip()] or [[]]
    expected = [*VALUE_COLUMNS.get(task, ("class_id", "class_name")), "youtube_id", "imdb_id"]
    if header != expected:
        raise CatalogError(
            f"{path} must begin with the columns {' '.join(expected)}, got: {' '.join(header)}"
        )
    for line in lines:
        if len(line) != len(expected):
            raise CatalogError(f"{path} has a line of {len(line)} words: {' '.join(line)!r}")
    return lines


def _parse_row(
    row: list[str], task: str, split: str, files: FileFinder, ends: dict[str, float]
) -> Video:
    *values, youtube_id, film_id = (escape_undecodable(word) for word in row)
    return Video(
        id=youtube_id,
        path=files.find(f"{youtube_id}.mp4"),
        label=None if task in REGRESSION else values[1],
        target=_parse_target(values, task) if task in REGRESSION else None,
        split=split,
        group=film_id,
        end=ends.get(youtube_id),
    )


def _parse_target(values: list[str], task: str) -> float:
    try:
        counts = [float(value) for value in values]
        if task == "view_count":
            return math.log(counts[0])
        return 10.0 * counts[0] / sum(counts)
    except (ValueError, ZeroDivisionError):
        raise CatalogError(f"{task} needs counts above zero, got {' '.join(values)!r}") from None


def _read_durations(path: Path) -> dict[str, float]:
    table = read_table(path)
    rows = table.select({}, {"id": ("videoid",), "end": ("duration",)})
    try:
        return {row["id"]: float(row["end"]) for row in rows if float(row["end"]) > 0}
    except (KeyError, ValueError):
        raise CatalogError(
            f"{path} needs columns 'videoid' and 'duration'; {table.columns_text}"
        ) from None
