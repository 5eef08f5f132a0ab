"""UCF101 with its three official splits."""

from __future__ import annotations

import re
from pathlib import Path

from clipset.data.catalog import Catalog, Video
from clipset.data.datasets.lists import FileFinder, check_fold, read_lines
from clipset.errors import CatalogError
from clipset.text import escape_undecodable


def read_ucf101(videos: Path, lists: Path, *, fold: int = 1) -> Catalog:
    """UCF101 with an official split: trainlist01.txt and testlist01.txt (02, 03) in `lists`."""
    check_fold(fold)
    files = FileFinder(videos)
    listed_videos = [
        _parse_line(line, split, files)
        for split in ("train", "test")
        for line in read_lines(lists / f"{split}list{fold:02d}.txt")
    ]
    return Catalog(name=f"ucf101-{fold}", videos=tuple(listed_videos))


def _parse_line(line: str, split: str, files: FileFinder) -> Video:
    listed = line.split(" ")[0]
    label, _, name = listed.partition("/")
    group = re.search(r"_(g\d+)_", name)
    if not name or group is None:
        raise CatalogError(f"{line!r} is not a line of a UCF101 list (Class/v_Class_g01_c01.avi)")
    return Video(
        id=escape_undecodable(listed),
        path=files.find(listed),
        label=escape_undecodable(label),
        split=split,
        group=escape_undecodable(f"{label}_{group[1]}"),
    )
