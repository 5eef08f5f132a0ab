"""Kinetics-400, -600 and -700 by their csv files."""

from __future__ import annotations

from pathlib import Path

from clipset.data.catalog import Catalog, Video
from clipset.data.datasets.lists import FileFinder
from clipset.data.labels import split_name
from clipset.data.tables import read_table
from clipset.errors import CatalogError

COLUMN_NAMES = {
    "label": ("label",),
    "youtube_id": ("youtube_id",),
    "start": ("time_start",),
    "end": ("time_end",),
    "split": ("split",),
}


def read_kinetics(videos: Path, *lists: Path) -> Catalog:
    """Kinetics by its csv files; clips are called <youtube_id>_<start>_<end> or <youtube_id>."""
    files = FileFinder(videos)
    listed_videos: list[Video] = []
    for path in lists:
        table = read_table(path)
        if not table.has_column(COLUMN_NAMES["youtube_id"]):
            raise CatalogError(f"{path} needs a column 'youtube_id'; {table.columns_text}")
        try:
            listed_videos += [_parse_row(row, files) for row in table.select({}, COLUMN_NAMES)]
        except (KeyError, ValueError):
            raise CatalogError(
                f"{path} has a row without a youtube_id, or with times that are not numbers"
            ) from None
    return Catalog(name="kinetics", videos=tuple(listed_videos))


def _parse_row(row: dict[str, str], files: FileFinder) -> Video:
    youtube_id, label = row["youtube_id"], row.get("label")
    name = youtube_id
    if "start" in row and "end" in row:
        name = f"{youtube_id}_{int(float(row['start'])):06d}_{int(float(row['end'])):06d}"
    listed = f"{label}/{name}.mp4" if label else f"{name}.mp4"
    split = row.get("split")
    return Video(
        id=name,
        path=files.find(listed, youtube_id),
        label=label,
        split=split_name(split) if split else None,
        group=youtube_id,
    )
