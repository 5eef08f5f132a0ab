"""HMDB51 with its three official splits."""

from __future__ import annotations

from pathlib import Path

from clipset.data.catalog import Catalog, Video
from clipset.data.datasets.lists import FileFinder, check_fold, read_lines
from clipset.errors import CatalogError
from clipset.text import escape_undecodable, path_text

SPLIT_OF_FLAG = {"0": None, "1": "train", "2": "test"}


def read_hmdb51(videos: Path, lists: Path, *, fold: int = 1) -> Catalog:
    """HMDB51 with an official split: <class>_test_split1.txt (2, 3) for each class in `lists`.

    Videos that a split does not use are in the catalog without a split.
    """
    check_fold(fold)
    files = FileFinder(videos)
    suffix = f"_test_split{fold}.txt"
    class_lists = sorted(lists.glob(f"*{suffix}"))
    if not class_lists:
        raise CatalogError(f"{lists} contains no HMDB51 lists (*{suffix})")
    listed_videos = [
        _parse_line(line, path_text(class_list.name).removesuffix(suffix), class_list, files)
        for class_list in class_lists
        for line in read_lines(class_list)
    ]
    return Catalog(name=f"hmdb51-{fold}", videos=tuple(listed_videos))


def _parse_line(line: str, label: str, class_list: Path, files: FileFinder) -> Video:
    name, _, flag = line.rpartition(" ")
    if flag not in SPLIT_OF_FLAG:
        raise CatalogError(f"{line!r} in {class_list} must end in 0, 1 (train) or 2 (test)")
    listed = f"{label}/{name.strip()}"
    return Video(
        id=escape_undecodable(listed),
        path=files.find(listed),
        label=escape_undecodable(label),
        split=SPLIT_OF_FLAG[flag],
    )
