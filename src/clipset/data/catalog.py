"""Video and Catalog: the videos of a folder or a table, with their labels, splits and groups."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from clipset.config import fingerprint
from clipset.data.folder import EXTENSIONS, list_videos, natural_key, parse_folder_names
from clipset.data.labels import TEXT_COLUMNS, clean_rows
from clipset.data.tables import SUFFIXES, read_table, say_decoded
from clipset.errors import CatalogError
from clipset.files import write_atomic
from clipset.text import (
    csv_text,
    decode_western,
    deneutralise,
    escape_undecodable,
    name_text,
    path_text,
    text_path,
    unique_ids,
)

COLUMNS = ("id", "path", "label", "split", "group", "target", "end")
COLUMN_NAMES = {  # common names of each column, the first one found is used
    "id": ("id", "video_id"),
    "path": ("path", "file", "filename", "video"),
    "label": ("label", "class"),
    "split": ("split", "subset"),
    "group": ("group",),
    "target": ("target",),
    "end": ("end",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """One video file and its annotations.

    `label` is its class, `target` a number to predict instead. Videos of one `group` belong in one
    split. Frames after `end` (seconds) are ignored.
    """

    id: str
    path: Path
    label: str | None = None
    split: str | None = None
    group: str | None = None
    target: float | None = None
    end: float | None = None

    def __post_init__(self) -> None:
        for field in ("id", "label", "split", "group"):
            text = getattr(self, field)
            if text == "":
                raise CatalogError(f"the video {self.path} has an empty {field}")
            if text is not None and escape_undecodable(text) != text:
                raise CatalogError(
                    f"the {field} {text!a} has a NUL or bytes that are not UTF-8; escape them"
                )
        if self.target is not None and not math.isfinite(self.target):
            raise CatalogError(f"the target of {self.id!r} must be a number, got {self.target}")
        if self.end is not None and not 0.0 < self.end < math.inf:
            raise CatalogError(f"the end of {self.id!r} must be after 0 s, got {self.end}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """An ordered list of videos with unique ids."""

    name: str
    videos: tuple[Video, ...]

    def __post_init__(self) -> None:
        counts = Counter(video.id for video in self.videos)
        duplicates = [video_id for video_id, count in counts.items() if count > 1]
        if duplicates:
            raise CatalogError(f"the catalog {self.name!r} lists {duplicates[0]!r} more than once")

    def __len__(self) -> int:
        return len(self.videos)

    def __iter__(self) -> Iterator[Video]:
        return iter(self.videos)

    @property
    def classes(self) -> tuple[str, ...]:
        """The distinct labels, sorted; the class index is the index in this tuple."""
        return tuple(sorted({video.label for video in self.videos if video.label is not None}))

    @property
    def splits(self) -> tuple[str, ...]:
        """The distinct splits, sorted."""
        return tuple(sorted({video.split for video in self.videos if video.split is not None}))

    def split(self, name: str) -> Catalog:
        """The videos of one split."""
        if name not in self.splits:
            available = ", ".join(self.splits) or "none"
            raise CatalogError(
                f"the catalog {self.name!r} has no split {name!r}; available: {available}"
            )
        return self.only(video for video in self.videos if video.split == name)

    def only(self, videos: Iterable[Video]) -> Catalog:
        """A catalog of the same name with the given videos."""
        return Catalog(name=self.name, videos=tuple(videos))

    @property
    def fingerprint(self) -> str:
        """A hash of ids and annotations; it does not depend on where the files are."""
        return fingerprint([_annotations(video) for video in self.videos])


def _annotations(video: Video) -> list[str | float | None]:
    annotations: list[str | float | None] = [video.id, video.label, video.split, video.group]
    if video.target is not None or video.end is not None:
        annotations += [video.target, video.end]
    return annotations


def describe_catalog(catalog: Catalog) -> str:
    """One line about a catalog: number of videos, classes and videos of each split."""
    classes = f", {len(catalog.classes)} classes" if catalog.classes else ", no labels"
    splits = "".join(f", {len(catalog.split(name))} {name}" for name in catalog.splits)
    return f"{len(catalog)} videos{classes}{splits}"


def write_catalog(catalog: Catalog, path: str | Path) -> None:
    """Write a catalog as csv with absolute paths; `read_catalog` restores it.

    Cells that a spreadsheet would take for a formula get an apostrophe, which reading removes.
    """
    rows = (
        (
            video.id, path_text(video.path.absolute()), video.label, video.split, video.group,
            video.target, video.end,
        )
        for video in catalog
    )  # fmt: skip
    text = csv_text([COLUMNS, *rows])
    write_atomic(Path(path), text.encode("utf-8", errors="surrogateescape"))


def read_catalog(source: str | Path, *, name: str | None = None) -> Catalog:
    """The videos of a folder, or of a catalog file (csv, tsv, jsonl or parquet)."""
    source = Path(source)
    if os.path.isdir(source):  # noqa: PTH112 (never raises)
        return read_folder(source, name=name)
    if not os.path.exists(source):  # noqa: PTH110 (never raises)
        raise CatalogError(f"{source} not found; give a folder of videos or a catalog file")
    if source.suffix.lower() not in SUFFIXES:
        raise CatalogError(
            f"{source} is neither a folder nor a catalog; a catalog ends in {', '.join(SUFFIXES)}"
        )
    return read_catalog_table(source, name=name)


def read_folder(folder: str | Path, *, name: str | None = None) -> Catalog:
    """All video files under a folder, in natural order.

    The first sub-folder of a video's path is its label. If all first sub-folders are called train,
    test or val, they are splits, and the second one is the label. Unreadable sub-folders are
    skipped with a message.
    """
    folder = Path(folder).absolute()
    paths = sorted(list_videos(folder), key=lambda path: natural_key(path_text(path.as_posix())))
    if not paths:
        raise CatalogError(
            f"{folder} contains no videos; supported file extensions: {', '.join(EXTENSIONS)}"
        )
    ids = unique_ids(path_text(path.as_posix()) for path in paths)
    files = {ids[path_text(path.as_posix())]: folder / path for path in paths}
    return label_by_folder(files, folder, name=name or name_text(folder.name) or "videos")


def label_by_folder(files: Mapping[str, Path], folder: Path, *, name: str) -> Catalog:
    """A catalog of files by id; their sub-folders in `folder` are labels, or splits and labels."""
    rows = parse_folder_names([path.relative_to(folder) for path in files.values()])
    videos = (
        Video(id=video_id, path=path, label=row.get("label"), split=row.get("split"))
        for (video_id, path), row in zip(files.items(), clean_rows(rows, name), strict=True)
    )
    return Catalog(name=name, videos=tuple(videos))


def read_catalog_table(
    path: str | Path, *, name: str | None = None, columns: Mapping[str, str] | None = None
) -> Catalog:
    """The videos of a csv, tsv, jsonl or parquet file; paths are relative to the file's folder.

    `columns` maps our column names to the table's, such as {"path": "clip_file"}.
    """
    path, columns = Path(path), columns or {}
    table = read_table(path)
    unknown = sorted(set(columns) - set(COLUMNS))
    if unknown:
        raise CatalogError(
            f"unknown catalog column {unknown[0]!r}; available: {', '.join(COLUMNS)}"
        )
    if "path" not in columns and not table.has_column(COLUMN_NAMES["path"]):
        raise CatalogError(f"{path} needs a column 'path'; {table.columns_text}")
    if not table.rows:
        raise CatalogError(f"{path} has a header but lists no videos")
    rows = table.select(columns, COLUMN_NAMES)
    for line, row in enumerate(rows, start=2):
        if "path" not in row:
            raise CatalogError(f"row {line} of {path} has an empty path")
        row |= {key: deneutralise(row[key]) for key in ("id", *TEXT_COLUMNS) if key in row}
    folder = path.parent.absolute()
    _resolve_encodings(rows, folder, path)
    ids = unique_ids(row["path"] for row in rows if "id" not in row)
    videos = (_make_video(row, folder, ids) for row in clean_rows(rows, path.name))
    return Catalog(name=name or name_text(path.stem), videos=tuple(videos))


def clean_catalog(catalog: Catalog) -> Catalog:
    """The same catalog with labels, splits and groups in one spelling each."""
    rows = [
        {key: text for key in TEXT_COLUMNS if (text := getattr(video, key)) is not None}
        for video in catalog
    ]
    return catalog.only(
        replace(video, label=row.get("label"), split=row.get("split"), group=row.get("group"))
        for video, row in zip(catalog, clean_rows(rows, catalog.name), strict=True)
    )


def _resolve_encodings(rows: list[dict[str, str]], folder: Path, table: Path) -> None:
    """Read paths that are not UTF-8 as Windows-1252 where only that file exists."""
    examples = []
    for row in rows:
        text = decode_western(row["path"])
        if text != row["path"] and not _exists(folder, row["path"]) and _exists(folder, text):
            examples.append(text)
            row["path"] = text
    say_decoded(table, examples)


def _exists(folder: Path, path: str) -> bool:
    return os.path.isfile(folder / text_path(path))  # noqa: PTH113 (never raises)


def _make_video(row: dict[str, str], folder: Path, ids: Mapping[str, str]) -> Video:
    return Video(
        id=row["id"] if "id" in row else ids[row["path"]],
        path=folder / text_path(row["path"]),
        label=row.get("label"),
        split=row.get("split"),
        group=row.get("group"),
        target=_parse_float(row, "target"),
        end=_parse_float(row, "end"),
    )


def _parse_float(row: dict[str, str], column: str) -> float | None:
    try:
        return float(row[column]) if column in row else None
    except ValueError:
        path = escape_undecodable(row["path"])
        raise CatalogError(
            f"the {column} of {path!r} must be a number, got {row[column]!r}"
        ) from None
