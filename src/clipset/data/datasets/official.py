"""Published data sets as catalogs: their own lists, and the files wherever they lie in a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clipset.data.catalog import Catalog, Video
from clipset.data.folder import list_videos
from clipset.data.labels import split_name
from clipset.data.tables import read_json, read_table, read_text
from clipset.errors import CatalogError
from clipset.text import escape_undecodable, path_text, text_path

FOLDS = (1, 2, 3)


class FileFinder:
    """Finds video files under a folder by their names."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise CatalogError(f"there is no folder of videos at {folder}")
        self.folder = folder.absolute()
        self.by_stem = {path.stem: path for path in sorted(list_videos(folder), reverse=True)}

    def find(self, listed: str, *other_stems: str) -> Path:
        """Where a listed file is; if nowhere, where it should be."""
        path = text_path(listed)
        if os.path.isfile(self.folder / path):  # noqa: PTH113 (never raises)
            return self.folder / path
        for stem in (path.stem, *(str(text_path(stem)) for stem in other_stems)):
            if stem in self.by_stem:
                return self.folder / self.by_stem[stem]
        return self.folder / path


def read_ucf101(videos: Path, lists: Path, *, fold: int = 1) -> Catalog:
    """UCF101 with its official split: trainlist01.txt and testlist01.txt (02, 03) in `lists`."""
    _check_fold(fold)
    files = FileFinder(videos)
    found = []
    for split in ("train", "test"):
        for line in _lines(lists / f"{split}list{fold:02d}.txt"):
            listed = line.split(" ")[0]
            label, _, name = listed.partition("/")
            group = re.search(r"_(g\d+)_", name)
            if not name or group is None:
                raise CatalogError(
                    f"{line!r} is no line of a UCF101 list (Class/v_Class_g01_c01.avi)"
                )
            found.append(
                Video(
                    id=escape_undecodable(listed),
                    path=files.find(listed),
                    label=escape_undecodable(label),
                    split=split,
                    group=escape_undecodable(f"{label}_{group[1]}"),
                )
            )
    return Catalog(name=f"ucf101-{fold}", videos=tuple(found))


def read_hmdb51(videos: Path, lists: Path, *, fold: int = 1) -> Catalog:
    """HMDB51 with its official split: <class>_test_split1.txt (2, 3) for each class in `lists`.

    Videos that a split leaves out are in the catalog without a split.
    """
    _check_fold(fold)
    files = FileFinder(videos)
    ending = f"_test_split{fold}.txt"
    class_lists = sorted(lists.glob(f"*{ending}"))
    if not class_lists:
        raise CatalogError(f"{lists} holds no HMDB51 lists (*{ending})")
    found = []
    for class_list in class_lists:
        label = path_text(class_list.name).removesuffix(ending)
        for line in _lines(class_list):
            name, _, flag = line.rpartition(" ")
            if flag not in ("0", "1", "2"):
                raise CatalogError(f"{line!r} in {class_list} must end in 0, 1 (train) or 2 (test)")
            listed = f"{label}/{name.strip()}"
            split = {"0": None, "1": "train", "2": "test"}[flag]
            found.append(
                Video(
                    id=escape_undecodable(listed),
                    path=files.find(listed),
                    label=escape_undecodable(label),
                    split=split,
                )
            )
    return Catalog(name=f"hmdb51-{fold}", videos=tuple(found))


def read_kinetics(videos: Path, *lists: Path) -> Catalog:
    """Kinetics by its csv files; clips are called <youtube_id>_<start>_<end> or <youtube_id>."""
    files = FileFinder(videos)
    usual = {
        "label": ("label",),
        "youtube": ("youtube_id",),
        "start": ("time_start",),
        "end": ("time_end",),
        "split": ("split",),
    }
    found = []
    for path in lists:
        table = read_table(path)
        if not table.has(usual["youtube"]):
            raise CatalogError(f"{path} needs a column 'youtube_id'; {table.found}")
        try:
            found += [_kinetics_video(row, files) for row in table.renamed({}, usual)]
        except (KeyError, ValueError):
            raise CatalogError(
                f"{path} has a row without a youtube_id, or with times that are no numbers"
            ) from None
    return Catalog(name="kinetics", videos=tuple(found))


def _kinetics_video(row: dict[str, str], files: FileFinder) -> Video:
    youtube, label = row["youtube"], row.get("label")
    name = youtube
    if "start" in row and "end" in row:
        name = f"{youtube}_{int(float(row['start'])):06d}_{int(float(row['end'])):06d}"
    listed = f"{label}/{name}.mp4" if label else f"{name}.mp4"
    split = row.get("split")
    return Video(
        id=name,
        path=files.find(listed, youtube),
        label=label,
        split=split_name(split) if split else None,
        group=youtube,
    )


def read_ssv2(videos: Path, lists: Path) -> Catalog:
    """Something-Something v2 by its json files (…labels, …train, …validation, …test) in `lists`."""
    files = FileFinder(videos)
    classes = read_json(_only_file(lists, "labels.json"))
    found = []
    for ending, split in (("train", "train"), ("validation", "val"), ("test", "test")):
        if ending == "test" and not list(lists.glob("*test.json")):
            continue
        for entry in _entries(_only_file(lists, f"{ending}.json")):
            label = _template(entry, classes)
            path = files.find(f"{entry['id']}.webm")
            found.append(Video(id=str(entry["id"]), path=path, label=label, split=split))
    return Catalog(name="ssv2", videos=tuple(found))


def _entries(path: Path) -> list[Any]:
    entries = read_json(path)
    if not isinstance(entries, list):
        raise CatalogError(f"{path} must hold a list of videos")
    return entries


def _template(entry: Any, classes: Any) -> str | None:
    """The class of an SSv2 entry: its template without brackets. The test list has none."""
    if not isinstance(entry, dict) or "id" not in entry:
        raise CatalogError(f"an entry of an SSv2 list needs an 'id', got {entry!r}")
    if "template" not in entry:
        return None
    label = str(entry["template"]).replace("[", "").replace("]", "")
    if label not in classes:
        raise CatalogError(f"SSv2's labels.json does not know {label!r} (video {entry['id']})")
    return label


def _only_file(folder: Path, ending: str) -> Path:
    found = sorted(folder.glob(f"*{ending}"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise CatalogError(f"{folder} must hold one file that ends in {ending}; it has: {names}")
    return found[0]


def _lines(path: Path) -> Iterator[str]:
    """The lines of an official list that hold something."""
    for line in read_text(path).splitlines():
        if line.strip():
            yield line.strip()


def _check_fold(fold: int) -> None:
    if fold not in FOLDS:
        raise CatalogError(f"the official splits are 1, 2 and 3, got {fold}")
