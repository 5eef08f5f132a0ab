"""Video and Catalog: the videos of a folder or a table, with their labels, splits and groups."""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clipset.config import fingerprint, read_json
from clipset.data.tables import SUFFIXES, read_table
from clipset.errors import CatalogError, ConfigError
from clipset.files import write_atomic
from clipset.progress import log
from clipset.text import (
    counted,
    csv_text,
    deneutralise,
    escape_undecodable,
    name_text,
    normal_form,
    path_text,
    text_path,
    unique_ids,
)

EXTENSIONS = (
    "mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ts", "mts", "wmv", "flv", "gif",
    "ogv", "3gp",
)  # fmt: skip
COLUMN_NAMES = {  # common names of each column; the first one that a table has is used
    "id": ("id", "video_id"),
    "path": ("path", "file", "filename", "video"),
    "label": ("label", "class"),
    "split": ("split", "subset"),
    "group": ("group",),
    "target": ("target",),
    "end": ("end",),
}
SPLIT_NAMES = {
    "train": "train", "training": "train", "test": "test", "testing": "test",
    "val": "val", "valid": "val", "validate": "val", "validation": "val",
}  # fmt: skip
MISSING_VALUES = frozenset(("", "nan", "NaN", "None", "null", "NULL", "NA", "N/A", "n/a", "<NA>"))
"""How pandas and others write a missing value."""
MAX_TARGET = 1e15  # the squared errors of many videos fit into 32-bit floats
TEXT_COLUMNS = ("label", "split", "group")
OWN_FILES = {  # files by which a run or a feature store is known, and keys that they have
    "run.json": {"recipe", "steps"},
    "manifest.json": {"backbone", "sampling"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """One video file and its annotations.

    `label` is its class, `target` a number to predict instead. Videos of one `group` belong in one
    split. Frames after `end` (seconds) are ignored. `columns` are (name, value) of other columns of
    the table, to search by.
    """

    id: str
    path: Path
    label: str | None = None
    split: str | None = None
    group: str | None = None
    target: float | None = None
    end: float | None = None
    columns: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for field in ("id", "label", "split", "group"):
            text = getattr(self, field)
            if text == "":
                raise CatalogError(f"the video {self.path} has an empty {field}")
            if text is not None and escape_undecodable(text) != text:
                raise CatalogError(
                    f"the {field} {text!a} has a NUL or bytes that are not UTF-8; escape them"
                )
        if self.target is not None and not abs(self.target) <= MAX_TARGET:
            raise CatalogError(
                f"the target of {self.id!r} must be a number from {-MAX_TARGET:g} to "
                f"{MAX_TARGET:g}, got {self.target}; use another unit"
            )
        if own := [name for name, _ in self.columns if not name or name.lower() in COLUMN_NAMES]:
            raise CatalogError(f"{self.id!r} has another column called {own[0]!r}; rename it")
        if self.end is not None and not 0.0 < self.end < math.inf:
            raise CatalogError(f"the end of {self.id!r} must be after 0 s, got {self.end}")

    @property
    def is_labelled(self) -> bool:
        """Whether there is something to predict: a label or a target."""
        return self.label is not None or self.target is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """An ordered list of videos with unique ids.

    `has_drawn_splits` says that clipset divided the videos at random, as no splits were given.
    """

    name: str
    videos: tuple[Video, ...]
    has_drawn_splits: bool = False

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

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the other columns of the table."""
        return tuple(dict.fromkeys(name for video in self.videos for name, _ in video.columns))

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
        return replace(self, videos=tuple(videos))

    @property
    def fingerprint(self) -> str:
        """A hash of ids and annotations; it does not depend on where the files are."""
        rows: list[list[str | float | None]] = []
        for video in self.videos:
            rows.append([video.id, video.label, video.split, video.group])
            if video.target is not None or video.end is not None:
                rows[-1] += [video.target, video.end]
        return fingerprint(rows)


def describe_catalog(catalog: Catalog) -> str:
    """One line about a catalog: number of videos, classes and videos of each split."""
    num_classes = len(catalog.classes)
    classes = counted(num_classes, "class", "classes") if num_classes else "no labels"
    splits = "".join(f", {len(catalog.split(name))} {name}" for name in catalog.splits)
    return f"{counted(len(catalog), 'video')}, {classes}{splits}"


def find_missing(catalog: Catalog) -> tuple[list[str], list[str]]:
    """The ids of videos whose files do not exist, and a line of text for each split."""
    missing_videos = [v for v in catalog if not os.path.isfile(v.path)]  # noqa: PTH113 (never raises)
    num_listed = Counter(video.split or "no split" for video in catalog)
    num_missing = Counter(video.split or "no split" for video in missing_videos)
    lines = [
        f"{split}: {count - num_missing[split]} of {counted(count, 'video')} found"
        for split, count in sorted(num_listed.items())
    ]
    return [video.id for video in missing_videos], lines


def write_catalog(catalog: Catalog, table_path: str | Path) -> None:
    """Write a catalog as csv with absolute paths; `read_catalog` restores it."""
    write_atomic(Path(table_path), encode_catalog(catalog))


def encode_catalog(catalog: Catalog) -> bytes:
    """The content of a catalog's csv file.

    Cells that a spreadsheet would take for a formula get an apostrophe, which reading removes.
    """
    others = catalog.columns
    rows: list[list[Any]] = [[*COLUMN_NAMES, *others]]
    for video in catalog:
        cells = {column: getattr(video, column) for column in COLUMN_NAMES}
        cells["path"] = path_text(video.path.absolute())
        rows.append([*cells.values(), *map(dict(video.columns).get, others)])
    return csv_text(rows).encode("utf-8", errors="surrogateescape")


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
    """All video files under a folder, in natural order, labelled by `label_by_folder`."""
    folder = Path(folder).absolute()
    video_paths = {path_text(path.as_posix()): folder / path for path in list_videos(folder)}
    if not video_paths:
        raise CatalogError(
            f"{folder} contains no videos; supported file extensions: {', '.join(EXTENSIONS)}"
        )
    ids = unique_ids(sorted(video_paths, key=natural_key))
    files = {video_id: video_paths[text] for text, video_id in ids.items()}
    return label_by_folder(files, folder, name=name or name_text(folder.name) or "videos")


def label_by_folder(files: Mapping[str, Path], folder: Path, *, name: str) -> Catalog:
    """A catalog of files by id; the first sub-folder of a file in `folder` is its label.

    If all first sub-folders are called train, test or val, they are splits, and the second one is
    the label.
    """
    sub_folders = [
        [name_text(part) for part in path.relative_to(folder).parts[:-1]] for path in files.values()
    ]
    top_folders = {folder_names[0] for folder_names in sub_folders if folder_names}
    has_splits = all(split_name(text) in SPLIT_NAMES.values() for text in top_folders)
    columns = ("split", "label") if has_splits else ("label",)
    rows = (dict(zip(columns, folder_names, strict=False)) for folder_names in sub_folders)
    videos = (
        Video(id=video_id, path=path, label=row.get("label"), split=row.get("split"))
        for (video_id, path), row in zip(files.items(), clean_rows(rows, name), strict=True)
    )
    return Catalog(name=name, videos=tuple(videos))


def list_videos(video_folder: Path) -> list[Path]:
    """Relative paths of the video files under a folder."""
    return [
        path.relative_to(video_folder)
        for path in walk_files(video_folder)
        if path.suffix.lower().removeprefix(".") in EXTENSIONS
    ]


def walk_files(folder: Path, *, quiet: bool = False) -> Iterator[Path]:
    """The files under a folder: skips hidden ones, follows links.

    Runs and feature stores in sub-folders are skipped, and so is a sub-folder that cannot be read;
    with a message unless `quiet`.
    """

    def skip(error: OSError) -> None:
        reason = (error.strerror or str(error)).lower()
        message = f"cannot read the folder {error.filename}: {reason}"
        if Path(error.filename) == folder:
            raise CatalogError(message)
        if not quiet:
            log(f"skipped: {message}")

    visited: set[str] = set()
    own_folders: list[str] = []
    for parent, sub_folders, file_names in os.walk(folder, onerror=skip, followlinks=True):
        real_path = os.path.realpath(parent)
        if real_path in visited:
            sub_folders.clear()
            continue
        visited.add(real_path)
        if Path(parent) != folder and _is_own_folder(Path(parent), file_names):
            own_folders.append(parent)
            sub_folders.clear()
            continue
        sub_folders[:] = sorted((n for n in sub_folders if not n.startswith(".")), reverse=True)
        yield from (Path(parent, name) for name in file_names if not name.startswith("."))
    if own_folders and not quiet:
        what = counted(len(own_folders), "run or feature store", "runs or feature stores")
        log(f"skipped: {what} of clipset in {folder}, such as {own_folders[0]}")


def _is_own_folder(folder: Path, file_names: Sequence[str]) -> bool:
    """Whether a folder is a run or a feature store."""
    for name, keys in OWN_FILES.items():
        if name in file_names:
            with suppress(ConfigError):
                content = read_json(folder / name)
                if isinstance(content, dict) and keys <= content.keys():
                    return True
    return False


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """A sort key that puts clip2 before clip10."""
    parts = re.split(r"([0-9]+)", text)
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts if part]


def read_catalog_table(
    table_path: str | Path, *, name: str | None = None, columns: Mapping[str, str] | None = None
) -> Catalog:
    """The videos of a csv, tsv, jsonl or parquet file; paths are relative to the file's folder.

    `columns` maps our column names to the table's, such as {"path": "clip_file"}.
    """
    table_path = Path(table_path)
    for column in columns or {}:
        if column not in COLUMN_NAMES:
            raise CatalogError(
                f"unknown catalog column {column!r}; available: {', '.join(COLUMN_NAMES)}"
            )
    rows, others = read_table(table_path, COLUMN_NAMES, required="path", columns=columns)
    if not rows:
        raise CatalogError(f"{table_path} has a header but lists no videos")
    for line_number, row in enumerate(rows, start=2):
        if "path" not in row:
            raise CatalogError(f"row {line_number} of {table_path} has an empty path")
        row |= {key: deneutralise(row[key]) for key in ("id", *TEXT_COLUMNS) if key in row}
    ids = unique_ids(row["path"] for row in rows if "id" not in row)
    table_folder = table_path.parent.absolute()
    videos = (
        _make_video(row, cells, table_folder, ids)
        for row, cells in zip(clean_rows(rows, table_path.name), others, strict=True)
    )
    return Catalog(name=name or name_text(table_path.stem), videos=tuple(videos))


def split_name(text: str) -> str:
    """The canonical name of a split: `Train` and ` training` are train; other names stay."""
    name = normal_form(text)
    return SPLIT_NAMES.get(name.lower(), name)


def clean_rows(rows: Iterable[dict[str, str]], source: str) -> list[dict[str, str]]:
    """The rows with label, split and group in one spelling each, and without missing values.

    Prints how many values were missing and which spellings were merged.
    """
    cleaned = [dict(row) for row in rows]
    for column in (*TEXT_COLUMNS, "target"):
        missing: list[str] = []
        spellings: defaultdict[str, set[str]] = defaultdict(set)
        for row in (row for row in cleaned if column in row):
            raw_text = row[column]
            if raw_text.strip() in MISSING_VALUES:
                missing.append(row.pop(column))
            elif column != "target":
                row[column] = (split_name if column == "split" else normal_form)(raw_text)
                spellings[row[column]].add(raw_text)
        if missing:
            words = ", ".join(repr(text) for text in sorted(set(missing)) if text.strip())
            thing = "class" if column == "label" else column
            hint = f" ({words} means missing; give it another name if it is a {thing})"
            videos = counted(len(missing), "video has", "videos have")
            log(f"{source}: {videos} no {column}{hint if words else ''}")
        merged = [(text, sorted(raw)) for text, raw in spellings.items() if len(raw) > 1]
        if merged:
            text, raw = merged[0]
            names = " and ".join(repr(name) if name == text else ascii(name) for name in raw[:2])
            difference = "case, spaces" if column == "split" else "spaces"
            log(
                f"{source}: merged the spellings of {len(merged)} {column}s that differ only by "
                f"{difference} or Unicode form, such as {names}"
            )
    return cleaned


def clean_catalog(catalog: Catalog) -> Catalog:
    """The same catalog with labels, splits and groups in one spelling each."""
    rows = (
        {key: text for key in TEXT_COLUMNS if (text := getattr(video, key)) is not None}
        for video in catalog
    )
    return catalog.only(
        replace(video, label=row.get("label"), split=row.get("split"), group=row.get("group"))
        for video, row in zip(catalog, clean_rows(rows, catalog.name), strict=True)
    )


def _make_video(
    row: dict[str, str], others: dict[str, str], table_folder: Path, ids: Mapping[str, str]
) -> Video:
    fields: dict[str, Any] = {"id": ids.get(row["path"]), **row, "columns": tuple(others.items())}
    fields["path"] = text_path(row["path"], table_folder)
    for column in ("target", "end"):
        try:
            fields[column] = float(row[column]) if column in row else None
        except ValueError:
            path_in_table = escape_undecodable(row["path"])
            raise CatalogError(
                f"the {column} of {path_in_table!r} must be a number, got {row[column]!r}"
            ) from None
    return Video(**fields)
