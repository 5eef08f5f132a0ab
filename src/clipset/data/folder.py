"""Video files under a folder: which files, in which order, and what their sub-folders are called.

This is the one place where folder names become splits and labels, for videos and for features.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from clipset.data.labels import is_split_name
from clipset.errors import CatalogError
from clipset.progress import log
from clipset.text import name_text

EXTENSIONS = (
    "mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ts", "mts", "wmv", "flv", "gif",
    "ogv", "3gp",
)  # fmt: skip


def parse_folder_names(paths: Sequence[Path]) -> list[dict[str, str]]:
    """The `label` and `split` of relative paths, from their first sub-folders.

    The first sub-folder is the split if all of them are called train, test or val.
    """
    folders = [[name_text(name) for name in path.parts[:-1]] for path in paths]
    top_folders = {names[0] for names in folders if names}
    has_splits = bool(top_folders) and all(is_split_name(name) for name in top_folders)
    rows = []
    for names in folders:
        split, label = (names[:1], names[1:2]) if has_splits else ([], names[:1])
        row = {"split": "".join(split), "label": "".join(label)}
        rows.append({key: text for key, text in row.items() if text})
    return rows


def list_videos(folder: Path) -> list[Path]:
    """Relative paths of the video files under a folder; skips hidden files, follows links."""
    paths: list[Path] = []
    visited: set[str] = set()
    pending = [folder]
    while pending:
        current = pending.pop()
        if (real_path := os.path.realpath(current)) in visited:
            continue
        visited.add(real_path)
        try:
            entries = _scan_folder(current)
        except CatalogError as error:
            if current == folder:
                raise
            log(f"skipped: {error}")
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            if os.path.isdir(path):  # noqa: PTH112 (never raises)
                pending.append(path)
            elif path.suffix.lower().removeprefix(".") in EXTENSIONS:
                paths.append(path.relative_to(folder))
    return paths


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """A sort key that puts clip2 before clip10."""
    parts = re.split(r"([0-9]+)", text)
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts if part]


def _scan_folder(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CatalogError(f"cannot read the folder {folder}: {reason}") from None
