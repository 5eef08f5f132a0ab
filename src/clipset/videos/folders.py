"""A folder of video files as a catalog: labels and splits are the names of its sub-folders."""

from __future__ import annotations

import os
import re
from pathlib import Path

from clipset.errors import CatalogError
from clipset.videos.catalog import Catalog, Video

EXTENSIONS = (
    "mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ts", "mts", "wmv", "flv", "gif",
    "ogv", "3gp",
)  # fmt: skip
SPLIT_NAMES = {
    "train": "train", "training": "train", "test": "test", "testing": "test",
    "val": "val", "valid": "val", "validate": "val", "validation": "val",
}  # fmt: skip


def read_folder(folder: Path, *, name: str | None = None) -> Catalog:
    """Every video file under a folder, in natural order.

    The first sub-folder on the way to a video is its label. If all first sub-folders are called
    train, test or val, they are splits, and the next one is the label.
    """
    folder = folder.absolute()
    paths = sorted(list_videos(folder), key=lambda path: natural_key(path.as_posix()))
    if not paths:
        raise CatalogError(
            f"{folder} holds no videos; looked for files ending in {', '.join(EXTENSIONS)}"
        )
    tops = {path.parts[0] for path in paths if len(path.parts) > 1}
    splits = bool(tops) and all(top.lower() in SPLIT_NAMES for top in tops)
    videos = (_video(folder, path, splits) for path in paths)
    return Catalog(name=name or folder.name or "videos", videos=tuple(videos))


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
        for entry in _entries(here):
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            if path.is_dir():
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


def _video(folder: Path, path: Path, has_splits: bool) -> Video:
    """The video at a path relative to the folder, with what the names on the way say."""
    names = list(path.parts[:-1])
    split = SPLIT_NAMES[names.pop(0).lower()] if has_splits and names else None
    label = names[0] if names else None
    return Video(id=path.as_posix(), path=folder / path, label=label, split=split)
