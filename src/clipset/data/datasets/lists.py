"""Official lists of datasets: their lines, and the listed video files in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from clipset.data.folder import list_videos
from clipset.data.tables import read_text
from clipset.errors import CatalogError
from clipset.text import text_path

FOLDS = (1, 2, 3)  # the official splits of UCF101 and HMDB51
MAX_DEPTH = 3  # levels of sub-folders that are searched for lists
LIST_PATTERNS = {  # a file that only the folder of a dataset's lists contains
    "ucf101": "trainlist01.txt",
    "hmdb51": "*_test_split1.txt",
    "kinetics": "*.csv",
    "ssv2": "*labels.json",
}


class FileFinder:
    """Finds listed video files anywhere under a folder, by their names."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise CatalogError(f"{folder} is not a folder of videos")
        self.folder = folder.absolute()
        self.by_stem = {path.stem: path for path in sorted(list_videos(folder), reverse=True)}

    def find(self, listed: str, *other_stems: str) -> Path:
        """The path of a listed file; the expected path if the file is missing."""
        path = text_path(listed)
        if os.path.isfile(self.folder / path):  # noqa: PTH113 (never raises)
            return self.folder / path
        for stem in (path.stem, *(str(text_path(stem)) for stem in other_stems)):
            if stem in self.by_stem:
                return self.folder / self.by_stem[stem]
        return self.folder / path


def read_lines(path: Path) -> Iterator[str]:
    """The non-empty lines of a list, stripped."""
    for line in read_text(path).splitlines():
        if line.strip():
            yield line.strip()


def find_lists(folder: Path, dataset: str) -> Path:
    """The one folder with the official lists: the dataset's folder or one below it."""
    pattern = LIST_PATTERNS[dataset]
    folders = sorted({path.parent for path in search_lists(folder, pattern)})
    if len(folders) != 1:
        names = ", ".join(str(path) for path in folders) or "none"
        raise CatalogError(
            f"the lists of {dataset} ({pattern}) must be in one folder under {folder}, found: "
            f"{names}; name it with data.lists"
        )
    return folders[0]


def search_lists(folder: Path, pattern: str) -> Iterator[Path]:
    """Files under a folder that match a pattern, the nearest ones first."""
    return (
        path
        for depth in range(MAX_DEPTH + 1)
        for path in sorted(folder.glob("*/" * depth + pattern))
    )


def check_fold(fold: int) -> None:
    """Raise CatalogError unless `fold` is an official split."""
    if fold not in FOLDS:
        raise CatalogError(f"the official splits are 1, 2 and 3, got {fold}")
