"""Video and Catalog: which videos there are, what they show, and which split they belong to."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from clipset.config import fingerprint, write_atomic
from clipset.errors import CatalogError
from clipset.videos.tables import read_table

COLUMNS = ("id", "path", "label", "split", "group")
USUAL_NAMES = {  # what the columns of a catalog are often called
    "id": ("id", "video_id"),
    "path": ("path", "file", "filename", "video"),
    "label": ("label", "class"),
    "split": ("split", "subset"),
    "group": ("group",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """One video file: where it is and what is known about it."""

    id: str
    path: Path
    label: str | None = None
    split: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        for field in ("id", "label", "split", "group"):
            if getattr(self, field) == "":
                raise CatalogError(f"the video {self.path} has an empty {field}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """An ordered list of videos with unique ids."""

    name: str
    videos: tuple[Video, ...]

    def __post_init__(self) -> None:
        counts = Counter(video.id for video in self.videos)
        twice = [id for id, count in counts.items() if count > 1]
        if twice:
            raise CatalogError(f"the catalog {self.name!r} lists {twice[0]!r} more than once")

    def __len__(self) -> int:
        return len(self.videos)

    def __iter__(self) -> Iterator[Video]:
        return iter(self.videos)

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels that occur, sorted: a class's number is its place here."""
        return tuple(sorted({video.label for video in self.videos if video.label is not None}))

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that occur, sorted."""
        return tuple(sorted({video.split for video in self.videos if video.split is not None}))

    def split(self, name: str) -> Catalog:
        """The videos of one split."""
        if name not in self.splits:
            known = ", ".join(self.splits) or "none"
            raise CatalogError(f"the catalog {self.name!r} has no split {name!r}; it has: {known}")
        return self.only(video for video in self.videos if video.split == name)

    def only(self, videos: Iterable[Video]) -> Catalog:
        """The same catalog with just these videos."""
        return Catalog(name=self.name, videos=tuple(videos))

    @property
    def fingerprint(self) -> str:
        """Changes when a video, label, split or group changes; not when the folder is moved."""
        return fingerprint([[v.id, v.label, v.split, v.group] for v in self.videos])


def write_catalog(catalog: Catalog, path: Path) -> None:
    """Write a catalog.csv that `read_catalog` reads back as it was, from any folder."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for video in catalog:
        where = str(video.path.absolute())
        writer.writerow([video.id, where, video.label or "", video.split or "", video.group or ""])
    write_atomic(path, text.getvalue().encode("utf-8", errors="surrogateescape"))


def read_catalog(
    path: Path, *, name: str | None = None, columns: Mapping[str, str] | None = None
) -> Catalog:
    """The catalog in a csv, tsv, jsonl or parquet file; paths in it start at the file's folder.

    `columns` names the table's columns where they are not the usual ones: {"path": "clip_file"}.
    """
    table, columns = read_table(path), columns or {}
    unknown = sorted(set(columns) - set(COLUMNS))
    if unknown:
        raise CatalogError(f"a catalog has no {unknown[0]!r}; it has: {', '.join(COLUMNS)}")
    if "path" not in columns and not table.has(USUAL_NAMES["path"]):
        raise CatalogError(f"{path} needs a column 'path'; {table.found}")
    if not table.rows:
        raise CatalogError(f"{path} names its columns but lists no video")
    rows = table.renamed(columns, USUAL_NAMES)
    for number, row in enumerate(rows, start=2):
        if "path" not in row:
            raise CatalogError(f"row {number} of {path} has an empty path")
    return Catalog(
        name=name or path.stem, videos=tuple(_video(row, path.parent.absolute()) for row in rows)
    )


def _video(row: dict[str, str], folder: Path) -> Video:
    return Video(
        id=row.get("id", row["path"]),
        path=folder / row["path"],
        label=row.get("label"),
        split=row.get("split"),
        group=row.get("group"),
    )
