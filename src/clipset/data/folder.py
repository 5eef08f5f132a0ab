"""A folder of video files as a catalog: labels and splits are the names of its sub-folders."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from clipset.data.catalog import Catalog, Video
from clipset.data.labels import clean_rows, is_split_name
from clipset.errors import CatalogError
from clipset.progress import say
from clipset.text import name_text, path_text, unique_ids

EXTENSIONS = (
    "mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ts", "mts", "wmv", "flv", "gif",
    "ogv", "3gp",
)  # fmt: skip


def read_folder(folder: Path, *, name: str | None = None) -> Catalog:
    """Every video file under a folder, in natural order.

    The first sub-folder on the way to a video is its label. If all first sub-folders are called
    train, test or val, they are splits, and the next one is the label. A sub-folder that cannot be
    read is passed over, and said.
    """
    folder = folder.absolute()
    paths = sorted(list_videos(folder), key=lambda path: natural_key(path_text(path.as_posix())))
    if not paths:
        raise CatalogError(
            f"{folder} holds no videos; looked for files ending in {', '.join(EXTENSIONS)}"
        )
    facts = clean_rows(read_names(paths), name_text(folder.name))
    ids = unique_ids(path_text(path.as_posix()) for path in paths)
    videos = (
        Video(
            id=ids[path_text(path.as_posix())],
            path=folder / path,
            label=row.get("label"),
            split=row.get("split"),
        )
        for path, row in zip(paths, facts, strict=True)
    )
    return Catalog(name=name or name_text(folder.name) or "videos", videos=tuple(videos))


def read_names(paths: Sequence[Path]) -> list[dict[str, str]]:
    """What the folders on the way to each file say: its label, and its split if all say one."""
    folders = [[name_text(name) for name in path.parts[:-1]] for path in paths]
    tops = {names[0] for names in folders if names}
    has_splits = bool(tops) and all(is_split_name(top) for top in tops)
    rows = []
    for names in folders:
        split, label = (names[:1], names[1:2]) if has_splits else ([], names[:1])
        row = {"split": "".join(split), "label": "".join(label)}
        rows.append({word: text for word, text in row.items() if text})
    return rows


def list_videos(folder: Path) -> list[Path]:
    """The video files under a folder, relative to it; hidden ones are left out, links followed."""
    found: list[Path] = []
    seen: set[str] = set()
    pending = [folder]
    while pending:
        here = pending.pop()
        if (real := os.path.realpath(here)) in seen:
            continue
        seen.add(real)
        try:
            entries = _entries(here)
        except CatalogError as error:
            if here == folder:
                raise
            say(f"skipped: {error}")
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            if os.path.isdir(path):  # noqa: PTH112 (never raises)
                pending.append(path)
            elif is_video_name(entry.name):
                found.append(path.relative_to(folder))
    return found


def is_video_name(name: str) -> bool:
    """Whether a file is called like a video."""
    return Path(name).suffix.lower().removeprefix(".") in EXTENSIONS


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """A key that sorts clip2 before clip10."""
    parts = re.split(r"([0-9]+)", text)
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts if part]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CatalogError(f"cannot read the folder {folder}: {reason}") from None
