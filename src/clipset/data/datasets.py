"""Public datasets as catalogs, by their official lists: UCF101, HMDB51, Kinetics, SSv2 and LVU."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from clipset.config import near_names
from clipset.data.catalog import Catalog, Video, list_videos, split_name
from clipset.data.tables import decode_json, read_table, read_text
from clipset.errors import CatalogError
from clipset.text import escape_undecodable, path_text, text_path

DatasetName = Literal["ucf101", "hmdb51", "kinetics", "ssv2", "lvu"]
OFFICIAL_SPLITS = ("split-1", "split-2", "split-3")  # of UCF101 and HMDB51
MAX_DEPTH = 3  # levels of sub-folders that are searched for lists
LIST_PATTERNS = {  # a file that only the folder of a dataset's lists contains
    "ucf101": "trainlist01.txt",
    "hmdb51": "*_test_split1.txt",
    "kinetics": "*.csv",
    "ssv2": "*labels.json",
}
HMDB51_SPLITS = {"0": None, "1": "train", "2": "test"}
SSV2_SPLITS = {"train": "train", "validation": "val", "test": "test"}
KINETICS_COLUMNS = ("label", "youtube_id", "time_start", "time_end", "split")
CLASSIFICATION = ("relationship", "way_speaking", "scene", "director", "writer", "year", "genre")
REGRESSION = ("like_ratio", "view_count")
LVU_TASKS = CLASSIFICATION + REGRESSION
LVU_TASK_GROUPS = {
    "auto": LVU_TASKS,
    "all": LVU_TASKS,
    "classification": CLASSIFICATION,
    "regression": REGRESSION,
}
LVU_COLUMNS = {  # those of the other tasks are class_id and class_name
    "like_ratio": ["like_count", "dislike_count"],
    "view_count": ["view_count"],
}


class FileFinder:
    """Finds listed video files anywhere under a folder, by their names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.by_stem = {path.stem: path for path in sorted(list_videos(folder), reverse=True)}

    def find(self, listed_path: str, *other_stems: str) -> Path:
        """The path of a listed file; the expected path if the file is missing."""
        path = text_path(listed_path)
        if os.path.isfile(self.folder / path):  # noqa: PTH113 (never raises)
            return self.folder / path
        stems = (path.stem, *(str(text_path(stem)) for stem in other_stems))
        return self.folder / next((self.by_stem[s] for s in stems if s in self.by_stem), path)

    def make_video(self, listed_path: str, label: str, split: str | None) -> Video:
        """The video of a listed file, which is also its id."""
        video_id, label = escape_undecodable(listed_path), escape_undecodable(label)
        return Video(id=video_id, path=self.find(listed_path), label=label, split=split)


def read_dataset(
    dataset: str, folder: Path, lists: Path | None = None, task: str = "auto"
) -> dict[str, Catalog]:
    """The catalogs of a dataset's tasks, by their names; missing files are listed, too.

    `lists` is the path of the official lists; without it they are searched for in the folder.
    """
    if not folder.is_dir():
        raise CatalogError(f"{folder} is not a folder of {dataset}")
    names: tuple[str, ...] = ("",)
    if dataset == "lvu":
        names = LVU_TASK_GROUPS.get(task, (task,))
        lists = lists or _find_lists(folder, dataset, f"{names[0]}/train.csv").parent
    elif dataset in ("ucf101", "hmdb51"):
        names = OFFICIAL_SPLITS if task == "all" else ("split-1" if task == "auto" else task,)
    lists = lists or _find_lists(folder, dataset, LIST_PATTERNS[dataset])
    files, catalogs = FileFinder(folder), {}
    for name in names:
        videos = READERS[dataset](files, lists, name.removeprefix("split-"))
        title = "-".join(filter(None, (dataset, name.removeprefix("split-"))))
        catalogs[name] = Catalog(name=title, videos=tuple(videos))
    return catalogs


def _find_lists(folder: Path, dataset: str, pattern: str) -> Path:
    """The one folder with files that match a pattern: the dataset's folder or one below it."""
    folders = sorted({path.parent for path in _search_files(folder, pattern)})
    if len(folders) != 1:
        names = ", ".join(str(path) for path in folders) or "none"
        raise CatalogError(
            f"the lists of {dataset} ({pattern}) must be in one folder under {folder}, found: "
            f"{names}; name it with data.lists or --lists"
        )
    return folders[0]


def _search_files(folder: Path, pattern: str) -> Iterator[Path]:
    """Files under a folder that match a pattern, the nearest ones first."""
    for depth in range(MAX_DEPTH + 1):
        yield from sorted(folder.glob("*/" * depth + pattern))


def read_ucf101(files: FileFinder, lists: Path, fold: str) -> Iterator[Video]:
    """UCF101 with an official split: trainlist01.txt and testlist01.txt (02, 03) in `lists`."""
    for split in ("train", "test"):
        for line in _read_lines(lists / f"{split}list{fold:>02}.txt"):
            listed_path = line.split(" ")[0]
            label, _, file_name = listed_path.partition("/")
            group = re.search(r"_(g\d+)_", file_name)
            if group is None:
                raise CatalogError(
                    f"{line!r} is not a line of a UCF101 list (Class/v_Class_g01_c01.avi)"
                )
            video = files.make_video(listed_path, label, split)
            yield replace(video, group=f"{video.label}_{group[1]}")


def read_hmdb51(files: FileFinder, lists: Path, fold: str) -> Iterator[Video]:
    """HMDB51 with an official split: <class>_test_split1.txt (2, 3) for each class in `lists`.

    Videos that a split does not use are listed without a split.
    """
    suffix = f"_test_split{fold}.txt"
    class_lists = sorted(lists.glob(f"*{suffix}"))
    if not class_lists:
        raise CatalogError(f"{lists} contains no HMDB51 lists (*{suffix})")
    for class_list in class_lists:
        label = path_text(class_list.name).removesuffix(suffix)
        for line in _read_lines(class_list):
            file_name, _, flag = line.rpartition(" ")
            if flag not in HMDB51_SPLITS:
                raise CatalogError(f"{line!r} in {class_list} must end in 0, 1 (train) or 2 (test)")
            listed_path = f"{label}/{file_name.strip()}"
            yield files.make_video(listed_path, label, HMDB51_SPLITS[flag])


def read_kinetics(files: FileFinder, lists: Path, _: str) -> Iterator[Video]:
    """Kinetics by its csv files; clips are called <youtube_id>_<start>_<end> or <youtube_id>."""
    common_names = {column: (column,) for column in KINETICS_COLUMNS}
    for path in sorted(lists.glob("*.csv")) if lists.is_dir() else [lists]:
        for row in read_table(path, common_names, required="youtube_id")[0]:
            try:
                youtube_id = video_id = row["youtube_id"]
                if "time_start" in row and "time_end" in row:
                    start, end = (int(float(row[key])) for key in ("time_start", "time_end"))
                    video_id = f"{youtube_id}_{start:06d}_{end:06d}"
            except (KeyError, ValueError):
                raise CatalogError(
                    f"{path} has a row without a youtube_id, or with times that are not numbers"
                ) from None
            label = row.get("label")
            listed_path = f"{label}/{video_id}.mp4" if label else f"{video_id}.mp4"
            yield Video(
                id=video_id,
                path=files.find(listed_path, youtube_id),
                label=label,
                split=split_name(row["split"]) if "split" in row else None,
                group=youtube_id,
            )


def read_ssv2(files: FileFinder, lists: Path, _: str) -> Iterator[Video]:
    """Something-Something v2 by its json files (…labels, …train, …validation, …test) in `lists`.

    The class of a video is its template without brackets; the test list has none.
    """
    classes = _read_ssv2_list(lists, "labels.json", dict)
    for list_name, split in SSV2_SPLITS.items():
        if list_name == "test" and not list(lists.glob("*test.json")):
            continue
        for entry in _read_ssv2_list(lists, f"{list_name}.json", list):
            if not isinstance(entry, dict) or "id" not in entry:
                raise CatalogError(f"an entry of an SSv2 list needs an 'id', got {entry!r}")
            video_id, label = str(entry["id"]), None
            if "template" in entry:
                label = str(entry["template"]).replace("[", "").replace("]", "")
                if label not in classes:
                    raise CatalogError(f"{label!r} (video {video_id}) is not in SSv2's labels.json")
            yield Video(id=video_id, path=files.find(f"{video_id}.webm"), label=label, split=split)


def read_lvu(files: FileFinder, lists: Path, task: str) -> Iterator[Video]:
    """One task of LVU: `lists` contains <task>/train.csv, val.csv and test.csv.

    Classification tasks have labels, regression tasks have targets: the natural logarithm of the
    views, and ten times the fraction of likes. Films are groups. A file durations.csv (with videoid
    and duration) under the folder of videos sets the ends of videos, to cut off the advertisement.
    A video that is listed again gets a number appended to its id.
    """
    if task not in LVU_TASKS:
        raise CatalogError(f"LVU has no task {task!r}; {near_names(task, LVU_TASKS)}")
    ends = _read_durations(files.folder)
    columns = [*LVU_COLUMNS.get(task, ["class_id", "class_name"]), "youtube_id", "imdb_id"]
    id_counts: Counter[str] = Counter()
    for split in ("train", "val", "test"):
        path = lists / task / f"{split}.csv"
        header, *rows = [line.split() for line in _read_lines(path)] or [[]]
        if header != columns:
            raise CatalogError(
                f"{path} must begin with the columns {' '.join(columns)}, got: {' '.join(header)}"
            )
        for row in rows:
            if len(row) != len(columns):
                raise CatalogError(f"{path} has a line of {len(row)} words: {' '.join(row)!r}")
            *values, youtube_id, film_id = (escape_undecodable(word) for word in row)
            id_counts[youtube_id] += 1
            number = f"#{id_counts[youtube_id]}" if id_counts[youtube_id] > 1 else ""
            yield Video(
                id=youtube_id + number,
                path=files.find(f"{youtube_id}.mp4"),
                label=None if task in REGRESSION else values[1],
                target=_parse_lvu_target(values, task) if task in REGRESSION else None,
                split=split,
                group=film_id,
                end=ends.get(youtube_id),
            )


READERS = {
    "ucf101": read_ucf101,
    "hmdb51": read_hmdb51,
    "kinetics": read_kinetics,
    "ssv2": read_ssv2,
    "lvu": read_lvu,
}


def _read_lines(list_path: Path) -> Iterator[str]:
    """The non-empty lines of a list, stripped."""
    return (line.strip() for line in read_text(list_path).splitlines() if line.strip())


def _read_ssv2_list(folder: Path, suffix: str, kind: type) -> Any:
    list_paths = sorted(folder.glob(f"*{suffix}"))
    if len(list_paths) != 1:
        names = ", ".join(path.name for path in list_paths) or "none"
        raise CatalogError(f"{folder} must contain one file that ends in {suffix}, found: {names}")
    content = decode_json(read_text(list_paths[0]), str(list_paths[0]))
    if not isinstance(content, kind):
        raise CatalogError(f"{list_paths[0]} must contain a JSON {kind.__name__}")
    return content


def _parse_lvu_target(values: list[str], task: str) -> float:
    try:
        counts = [float(value) for value in values]
        return math.log(counts[0]) if task == "view_count" else 10.0 * counts[0] / sum(counts)
    except (ValueError, ZeroDivisionError):
        raise CatalogError(f"{task} needs counts above zero, got {' '.join(values)!r}") from None


def _read_durations(folder: Path) -> dict[str, float]:
    """The durations of videos by their YouTube ids; none if no file under a folder has them."""
    table_path = next(_search_files(folder, "durations.csv"), None)
    if table_path is None:
        return {}
    column_names = {"videoid": ("videoid",), "duration": ("duration",)}
    rows, _ = read_table(table_path, column_names, required="duration")
    try:
        durations = {row["videoid"]: float(row["duration"]) for row in rows}
    except (KeyError, ValueError):
        raise CatalogError(
            f"{table_path} needs a videoid and a duration in seconds in each row"
        ) from None
    return {video_id: seconds for video_id, seconds in durations.items() if seconds > 0}
