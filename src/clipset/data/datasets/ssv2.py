"""Something-Something v2 by its JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clipset.data.catalog import Catalog, Video
from clipset.data.datasets.lists import FileFinder
from clipset.data.tables import read_json
from clipset.errors import CatalogError

SPLIT_OF_LIST = {"train": "train", "validation": "val", "test": "test"}


def read_ssv2(videos: Path, lists: Path) -> Catalog:
    """Something-Something v2 by its json files (…labels, …train, …validation, …test) in `lists`."""
    files = FileFinder(videos)
    classes = read_json(_find_list(lists, "labels.json"))
    listed_videos = []
    for list_name, split in SPLIT_OF_LIST.items():
        if list_name == "test" and not list(lists.glob("*test.json")):
            continue
        for entry in _read_entries(_find_list(lists, f"{list_name}.json")):
            label = _parse_label(entry, classes)
            path = files.find(f"{entry['id']}.webm")
            listed_videos.append(Video(id=str(entry["id"]), path=path, label=label, split=split))
    return Catalog(name="ssv2", videos=tuple(listed_videos))


def _read_entries(path: Path) -> list[Any]:
    entries = read_json(path)
    if not isinstance(entries, list):
        raise CatalogError(f"{path} must contain a list of videos")
    return entries


def _parse_label(entry: Any, classes: Any) -> str | None:
    """The class of an entry: its template without brackets. The test list has none."""
    if not isinstance(entry, dict) or "id" not in entry:
        raise CatalogError(f"an entry of an SSv2 list needs an 'id', got {entry!r}")
    if "template" not in entry:
        return None
    label = str(entry["template"]).replace("[", "").replace("]", "")
    if label not in classes:
        raise CatalogError(f"{label!r} (video {entry['id']}) is not in SSv2's labels.json")
    return label


def _find_list(folder: Path, suffix: str) -> Path:
    paths = sorted(folder.glob(f"*{suffix}"))
    if len(paths) != 1:
        names = ", ".join(path.name for path in paths) or "none"
        raise CatalogError(f"{folder} must contain one file that ends in {suffix}, found: {names}")
    return paths[0]
