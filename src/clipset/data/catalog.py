"""Video and Catalog: which videos there are, what they show, and which split they belong to."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from clipset.config import fingerprint, write_atomic
from clipset.data.labels import WORDS, clean_rows
from clipset.data.tables import read_table, say_decoded
from clipset.errors import CatalogError
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
USUAL_NAMES = {  # what the columns of a catalog are often called
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
    """One video file: where it is and what is known about it.

    `label` is its class, `target` a number to predict instead; videos of one `group` belong in one
    split; what comes after `end` (seconds) is not part of the video.
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
            if getattr(self, field) == "":
                raise CatalogError(f"the video {self.path} has an empty {field}")
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
        """Changes when a video or what is known of it changes; not when the folder is moved."""
        return fingerprint([_facts(video) for video in self.videos])


def _facts(video: Video) -> list[str | float | None]:
    facts: list[str | float | None] = [video.id, video.label, video.split, video.group]
    if video.target is not None or video.end is not None:
        facts += [video.target, video.end]
    return facts


def describe(catalog: Catalog) -> str:
    """A catalog in one line."""
    classes = f", {len(catalog.classes)} classes" if catalog.classes else ", no labels"
    splits = "".join(f", {len(catalog.split(name))} {name}" for name in catalog.splits)
    return f"{len(catalog)} videos{classes}{splits}"


def write_catalog(catalog: Catalog, path: Path) -> None:
    """Write a catalog.csv that `read_catalog` reads back as it was, from any folder.

    A word that a spreadsheet would take for a formula gets an apostrophe, which reading removes.
    """
    rows = (
        (
            video.id, path_text(video.path.absolute()), video.label, video.split, video.group,
            video.target, video.end,
        )
        for video in catalog
    )  # fmt: skip
    text = csv_text([COLUMNS, *rows])
    write_atomic(path, text.encode("utf-8", errors="surrogateescape"))


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
        row |= {word: deneutralise(row[word]) for word in ("id", *WORDS) if word in row}
    folder = path.parent.absolute()
    _choose_paths(rows, folder, path)
    ids = unique_ids(row["path"] for row in rows if "id" not in row)
    videos = (_video(row, folder, ids) for row in clean_rows(rows, path.name))
    return Catalog(name=name or name_text(path.stem), videos=tuple(videos))


def clean_catalog(catalog: Catalog) -> Catalog:
    """The same catalog with labels, splits and groups in one spelling each."""
    words = [
        {word: text for word in WORDS if (text := getattr(video, word)) is not None}
        for video in catalog
    ]
    return catalog.only(
        replace(video, label=row.get("label"), split=row.get("split"), group=row.get("group"))
        for video, row in zip(catalog, clean_rows(words, catalog.name), strict=True)
    )


def _choose_paths(rows: list[dict[str, str]], folder: Path, table: Path) -> None:
    """Of a path that is not UTF-8, take the spelling that exists: its bytes, or Windows-1252."""
    examples = []
    for row in rows:
        text = decode_western(row["path"])
        if text != row["path"] and not _exists(folder, row["path"]) and _exists(folder, text):
            examples.append(text)
            row["path"] = text
    say_decoded(table, examples)


def _exists(folder: Path, path: str) -> bool:
    return os.path.isfile(folder / text_path(path))  # noqa: PTH113 (never raises)


def _video(row: dict[str, str], folder: Path, ids: Mapping[str, str]) -> Video:
    return Video(
        id=row["id"] if "id" in row else ids[row["path"]],
        path=folder / text_path(row["path"]),
        label=row.get("label"),
        split=row.get("split"),
        group=row.get("group"),
        target=_number(row, "target"),
        end=_number(row, "end"),
    )


def _number(row: dict[str, str], column: str) -> float | None:
    try:
        return float(row[column]) if column in row else None
    except ValueError:
        path = escape_undecodable(row["path"])
        raise CatalogError(
            f"the {column} of {path!r} must be a number, got {row[column]!r}"
        ) from None
